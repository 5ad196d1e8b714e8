"""Quantizes the kernel of one layer, in NumPy.

`statistics` describes the output error of a layer, `grid` its levels, and
`candidate` a quantized kernel. `gptq`, `descent` and `qubo` (with `encoding`)
look for the best one, and `layer` runs them.
"""
