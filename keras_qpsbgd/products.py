"""Matrix products that do not depend on the precision of a GPU.

On recent GPUs, TensorFlow rounds the factors of a float32 product to 11
significant bits (TensorFloat-32). There are two ways to get the same results
as elsewhere. `product` splits the factors into parts of 11 bits, so that
nothing is lost. QUBOs are built with it. `rounded` rounds the factors on all
devices, so that TensorFloat-32 does not change them, and `matmul` multiplies
them. Searches use these two, because they need many products and no accurate
ones.
"""

import tensorflow as tf

# Number of significant bits of a factor of a TensorFloat-32 product.
BITS = 11


def on_gpu():
    """Returns whether training steps run on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


def rounds_factors():
    """Returns whether float32 products round their factors."""
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    return on_gpu() and enabled()


def product(a, b, transpose_a=False, transpose_b=False):
    """Returns the product of two matrices, or of two stacks of matrices.

    The result is as accurate as float32 products are on a CPU.
    """
    if a.dtype == tf.float32 and rounds_factors():
        # Without the product of the two low parts, which is below rounding.
        (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
        a = tf.concat([a_high, a_high, a_low], -2 if transpose_a else -1)
        b = tf.concat([b_high, b_low, b_high], -1 if transpose_b else -2)
    return matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def matmul(a, b, transpose_a=False, transpose_b=False):
    """Returns the product of factors with at most 11 significant bits."""
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def rounded(x):
    """Rounds float32 numbers to 11 significant bits."""
    bits = tf.bitcast(x, tf.int32)
    dropped = 24 - BITS
    # Adds half a unit of the last bit that is kept, and truncates.
    bits = tf.bitwise.bitwise_and(bits + 2 ** (dropped - 1), -(2**dropped))
    return tf.bitcast(bits, tf.float32)


def _split(x):
    """Returns a part with 11 significant bits, and the rest."""
    high = rounded(x)
    return high, x - high
