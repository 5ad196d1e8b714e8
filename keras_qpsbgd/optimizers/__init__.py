"""Keras optimizers for binary networks.

`QPSBGD`, and those that it is compared with. All of them update binary kernels
by a rule of their own and leave every other variable to `real_optimizer`.

BinaryConnect needs no optimizer of its own: it is any Keras optimizer on binary
layers whose kernels are clipped.

>>> clip = keras_qpsbgd.constraints.WeightClip(1.0)
>>> layer = keras_qpsbgd.layers.BinaryDense(1, kernel_constraint=clip)
>>> model = keras.Sequential([layer])
>>> model.compile("adam", "mse")
"""

from keras_qpsbgd.optimizers.bop import Bop
from keras_qpsbgd.optimizers.prox_quant import ProxQuant
from keras_qpsbgd.optimizers.qpsbgd import QPSBGD
from keras_qpsbgd.optimizers.sign_sgd import SignSGD

__all__ = ["QPSBGD", "Bop", "ProxQuant", "SignSGD"]
