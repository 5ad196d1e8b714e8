"""Compares methods for training a binary network on your own data.

`compare` is available as `keras_qpsbgd.compare`. The modules behind it
(methods, plan, training, records, tables) also run the experiments of the
paper.
"""

from research.engine.function import compare
from research.engine.result import Comparison

__all__ = ["Comparison", "compare"]
