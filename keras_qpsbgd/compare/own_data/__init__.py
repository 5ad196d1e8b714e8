"""Your own data under the protocol of the experiments: `kq.compare`."""
