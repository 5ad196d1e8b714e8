"""Quantizes the kernel of one layer, in NumPy.

`output_error` describes the output error of a layer and has its candidates, the
quantized kernels. `grid` has the levels. `heuristics` (GPTQ and coordinate
descent) and `qubo` look for the best candidate, and `layer` runs them.
"""
