"""Training steps on a GPU machine that has JAX but no TensorFlow.

TensorFlow lowers whole training steps to programs of XLA, on a machine without
a GPU. JAX compiles and times them on the GPU machine. `docs/guides/gpu.md`
lists the commands and the results.

- `export.py` writes the steps. It needs TensorFlow.
- `convert.py` converts them for JAX. It needs JAX.
- `runner.py` times them, with one process of `time_network.py` per network. It
  needs JAX and NumPy, and nothing else of this repository.

A folder of steps contains, for each network and optimizer, a description
`NETWORK/OPTIMIZER.json` and the programs: `.hlo.gz`, written by `export.py`,
and `.step.gz` and `.loop.gz`, written by `convert.py`. Arrays are in `arrays`,
named after a hash of their content, because the optimizers share most of them.
"""
