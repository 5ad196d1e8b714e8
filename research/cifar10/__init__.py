"""Trainings of a binary convolutional network on CIFAR-10, on a GPU.

The machine with the GPU needs JAX and NumPy, but not TensorFlow. TensorFlow
lowers the whole training step of Keras to a program of XLA on another machine,
and JAX compiles and runs it. There are three steps:

1. Pack the images into a small file.

       python -m research.cifar10.pack DATA

2. Write the programs of the optimizers to a folder. This needs TensorFlow and
   the library.

       python -m research.cifar10.export PROGRAMS adam sgd signum averaged

3. Copy both folders and this repository to the machine with the GPU, and train
   there. Every run appends a line to the file of the results.

       python -m research.cifar10.train DATA PROGRAMS \\
           adam:12:0.001,0.003:0,1,2 averaged:12:0.001:0,1,2 \\
           --output results.jsonl

   `--time` measures the time of a step instead. `program.py` compiles and
   executes the programs.

Choose rates and other arguments by the accuracy on the validation images. The
test images are evaluated only once, at the end of a run.
"""
