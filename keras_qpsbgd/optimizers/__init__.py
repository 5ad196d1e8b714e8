"""Keras optimizers for binary networks.

The module contains `QPSBGD` and the optimizers that it is compared with. Each
of them updates binary kernels with its own rule and all other variables with
`real_optimizer`.

BinaryConnect does not need a special optimizer. It is any Keras optimizer with
binary layers whose kernels are clipped.

Example:
    ```python
    from tensorflow import keras

    import keras_qpsbgd as kq

    clip = kq.constraints.WeightClip(1.0)
    model = keras.Sequential([kq.layers.BinaryDense(1, kernel_constraint=clip)])
    model.compile("adam", "mse")
    ```
"""

from keras_qpsbgd.optimizers.baselines import Bop
from keras_qpsbgd.optimizers.baselines import ProxQuant
from keras_qpsbgd.optimizers.baselines import SignSGD
from keras_qpsbgd.optimizers.qpsbgd import QPSBGD

__all__ = ["QPSBGD", "Bop", "ProxQuant", "SignSGD"]
