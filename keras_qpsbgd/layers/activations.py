"""Activation functions."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.qubo import ops

__all__ = ["binary"]


@_keras.register_activation
def binary(x: Any) -> Any:
    r"""Sign activation with a clipped straight-through gradient.

    The output is the sign, where the sign of zero is +1. The backward pass uses
    the gradient of `hard_tanh`:

    $$y = \begin{cases} +1 & x \ge 0 \\ -1 & \text{otherwise} \end{cases} ,
      \qquad \frac{\partial y}{\partial x} = \begin{cases} 1 & |x| \le 1 \\
      0 & \text{otherwise} \end{cases}$$

    After this activation, both the inputs and the weights of a binary layer are
    binary. Its product is an integer, and `keras_qpsbgd.inference.Predictor`
    computes it from single bits. The rows of its QUBO contain only +1 and -1.

    Keras layers also accept `activation="binary"`. The sign of NaN is -1.

    Args:
        x: Tensor. The input.

    Returns:
        Tensor with the shape and dtype of `x`.

    Example:
        ```python
        import keras_qpsbgd as kq

        print(kq.activations.binary([-0.5, 0.0, 2.0]))  # -1, 1, 1
        layer = kq.layers.BinaryDense(8, activation="binary")
        ```

    Reference:
        - [Hubara et al., 2016](https://arxiv.org/abs/1602.02830)
    """
    return _straight_through(tf.convert_to_tensor(x))


@tf.custom_gradient
def _straight_through(x):
    def gradient(upstream):
        return tf.where(tf.abs(x) <= 1, upstream, tf.zeros_like(upstream))

    return ops.sign(x), gradient
