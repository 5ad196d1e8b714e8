"""Keras optimizers for binary networks."""

from keras_qpsbgd.optimizers.qpsbgd import QPSBGD

__all__ = ["QPSBGD"]
