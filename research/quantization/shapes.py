"""The sizes of the two networks that `train_on_gpu.py` trains.

This module needs neither TensorFlow nor JAX.
"""

import pathlib

FOLDER = pathlib.Path(__file__).parents[2] / "results/quantize/networks"
TEXT = FOLDER / "text.xz"

# The convolutional network: channels of the 3 x 3 convolutions, and those that
# max pooling follows.
CHANNELS = (32, 64, 64, 128, 128, 128)
POOLED = (0, 2, 4)

# The transformer.
BLOCKS, WIDTH, HEADS, CONTEXT = 3, 128, 4, 128

EPSILON = 1e-3  # of all normalizations, the default of Keras
