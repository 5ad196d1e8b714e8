"""`kq.compare`: the protocol of the experiments, applied to your own data."""
