"""Studies with the tools of `keras_qpsbgd.analysis`, and their pictures."""
