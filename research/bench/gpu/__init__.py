"""Training steps on a GPU machine that has JAX but no TensorFlow.

TensorFlow lowers whole training steps to programs of XLA, on a machine without
a GPU. JAX compiles and times them on the GPU machine. `docs/guides/gpu.md`
lists the commands and the results.

- `export.py` writes the steps, with `lowering.py`. They need TensorFlow.
- `runner.py` times them. It needs JAX and NumPy. `programs.py` compiles and
  executes programs.

A folder of steps contains, for each network and optimizer, the program
`NETWORK/OPTIMIZER.xz` and its arrays, `NETWORK/OPTIMIZER.npz`.
`research.cifar10` uses the same programs for whole trainings.
"""
