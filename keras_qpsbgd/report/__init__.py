"""The report page of a recorded run: one HTML file without dependencies.

`page` puts the `sections` together. They draw the numbers of a run, which
`analysis` and `numbers` compute, with `svg`. `text` escapes everything that
comes from the run.
"""

from keras_qpsbgd.report.page import render

__all__ = ["render"]
