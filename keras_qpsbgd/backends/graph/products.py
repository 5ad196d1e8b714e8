"""Matrix products that do not depend on the precision of a GPU.

On recent GPUs, TensorFlow rounds the factors of a float32 product to 11
significant bits (TensorFloat-32). `rounded` rounds them beforehand, so that
TensorFloat-32 does not change them. Searches need many products but not
accurate ones.
"""

import tensorflow as tf

# Number of significant bits of a factor of a TensorFloat-32 product.
BITS = 11


def on_gpu():
    """Returns whether training steps run on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


def rounded(x):
    """Rounds float32 numbers to 11 significant bits."""
    bits = tf.bitcast(x, tf.int32)
    dropped = 24 - BITS
    # Adds half a unit of the last bit that is kept, and truncates.
    bits = tf.bitwise.bitwise_and(bits + 2 ** (dropped - 1), -(2**dropped))
    return tf.bitcast(bits, tf.float32)
