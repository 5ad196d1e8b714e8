"""Train networks of +1 and -1 weights by quantum annealing, from Keras code.

See the README for a first example, `keras_qpsbgd.QPSBGD` for the optimizer.
"""

import importlib.metadata

from keras_qpsbgd import backends
from keras_qpsbgd import callbacks
from keras_qpsbgd import constraints
from keras_qpsbgd import datasets
from keras_qpsbgd import layers
from keras_qpsbgd import optimizers
from keras_qpsbgd import spektral
from keras_qpsbgd.compare import compare
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.projection import binary_map
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.recording import with_rows

try:
    __version__ = importlib.metadata.version("keras_qpsbgd")
except importlib.metadata.PackageNotFoundError:  # a checkout on the path
    __version__ = "0"

__all__ = [
    "QPSBGD",
    "Qubo",
    "backends",
    "binary_map",
    "callbacks",
    "compare",
    "constraints",
    "datasets",
    "layers",
    "optimizers",
    "spektral",
    "with_rows",
]
