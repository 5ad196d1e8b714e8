r"""The rounded weights of a binary layer.

Weights of \(b\) bits are \(W = q / L\) with the levels

$$q = \mathrm{clip}\left(2 \left\lfloor \frac{\Omega L}{2} \right\rfloor
  + 1, \; -L, \; L\right) , \qquad L = 2^b - 1 .$$

With one bit, they are the signs of the latent kernel \(\Omega\).
"""

import tensorflow as tf

from keras_qpsbgd.bits import max_level
from keras_qpsbgd.qubo import ops


def levels(x, bits):
    """Returns the odd integers from `-L` to `L` that are nearest to `L * x`.

    With one bit, this is the sign. With more bits, a NaN stays a NaN.
    """
    if bits == 1:
        return ops.sign(x)
    limit = max_level(bits)
    nearest = 2 * tf.floor(x * (limit / 2)) + 1
    clipped = tf.clip_by_value(nearest, -limit, limit)
    return tf.where(tf.math.is_nan(x), x, clipped)


def binarize(kernel, bits=1):
    """Returns the weights `levels / L`, with the gradient of the identity."""

    @tf.custom_gradient
    def straight_through(kernel):
        weights = levels(kernel, bits)
        if bits > 1:
            # In compiled code, a division would differ in the last digit.
            weights *= 1 / max_level(bits)
        return weights, lambda upstream: upstream

    return straight_through(kernel)
