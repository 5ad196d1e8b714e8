"""Quantizes the kernel of one layer, in NumPy.

`output_error` defines the output error of a layer and its candidates, the
quantized kernels. `grid` defines the levels. `heuristics` (GPTQ and coordinate
descent) and `encodings` search for the best candidate, and `layer` runs them.
"""
