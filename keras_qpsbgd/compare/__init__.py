"""Compares ways to train a binary network, on your own data.

`compare` is `keras_qpsbgd.compare`; what it is built from (methods, plan,
training, records, tables) also makes the experiments of the paper.
"""

from keras_qpsbgd.compare.own_data.function import compare
from keras_qpsbgd.compare.own_data.result import Comparison

__all__ = ["Comparison", "compare"]
