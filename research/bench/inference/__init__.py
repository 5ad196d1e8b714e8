"""Time and memory of `kq.quantize`."""
