"""Trainings of a binary convolutional network on CIFAR-10, on a GPU.

The machine with the GPU needs JAX and NumPy, but not TensorFlow. TensorFlow
lowers the whole training step of Keras to a program of XLA on another machine,
and JAX compiles and runs it. There are three steps:

1. Pack the images into a small file.

       python -m research.cifar10.pack DATA

2. Write the programs of the optimizers to a folder for each network. This needs
   TensorFlow and the library.

       python -m research.cifar10.export PROGRAMS/relu-64 \\
           adam sgd signum bop averaged --dtype mixed_bfloat16
       python -m research.cifar10.export PROGRAMS/binary-64 ... \\
           --activation binary --dtype mixed_bfloat16

3. Copy both folders and this repository to the machine with the GPU, and train
   there. Every run appends a line to `OUTPUT/runs.jsonl`.

       python -m research.cifar10.parallel DATA PROGRAMS \\
           research/cifar10/jobs-study.txt OUTPUT

`parallel.py` starts `train.py` in several processes. `train.py` compiles and
runs the programs with `program.py`, prepares images with `batches.py` and finds
in `records.py` which runs are missing. With `--time 160 --output
OUTPUT/times.jsonl`, it measures the time of a step, with nothing else on the
GPU.
`python -m research pages` writes the tables and draws the figures with
`table.py`. The program `averaged` is `QPSBGD()`.

Choose rates and other arguments by the accuracy on the validation images. Runs
that keep validation images evaluate the test images once, at the end.
"""
