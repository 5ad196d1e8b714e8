"""Rows that are multiplied by the kernel of a layer.

The rows of a convolution are patches of its images. If a layer does not define
`rows`, the rows of the Jacobian of its product are used.
"""

import math

import tensorflow as tf

from keras_qpsbgd.backends.graph import products

# Larger kernels would need too many slices.
MAX_SLICES = 49


def patches(images, kernel_size, strides, dilations, padding):
    """Returns the patch at each output position of a convolution.

    On a GPU, this function slices the images. `tf.image.extract_patches` would
    use a convolution in compiled programs, which is slower and rounds the
    inputs to 11 bits.

    Args:
        images: Tensor of shape `(batch, height, width, channels)`.
        kernel_size: Pair of integers.
        strides: Pair of integers.
        dilations: Pair of integers.
        padding: `"VALID"` or `"SAME"`.

    Returns:
        Tensor whose last axis has the inputs of a patch, in the order of the
        kernel.
    """
    slices = kernel_size[0] * kernel_size[1]
    is_known = None not in images.shape[1:3]
    if not products.on_gpu() or slices > MAX_SLICES or not is_known:
        return tf.image.extract_patches(
            images,
            sizes=(1, *kernel_size, 1),
            strides=(1, *strides, 1),
            rates=(1, *dilations, 1),
            padding=padding,
        )
    return _slices(images, kernel_size, strides, dilations, padding)


def _slices(images, kernel_size, strides, dilations, padding):
    margins, starts = [(0, 0)], []
    axes = zip(images.shape[1:3], kernel_size, strides, dilations)
    for size, kernel, stride, dilation in axes:
        reach = (kernel - 1) * dilation + 1
        if padding == "SAME":
            count = -(-size // stride)
            missing = max((count - 1) * stride + reach - size, 0)
        else:
            count = (size - reach) // stride + 1
            missing = 0
        margins.append((missing // 2, missing - missing // 2))
        length = (count - 1) * stride + 1
        starts.append(
            [
                slice(begin, begin + length, stride)
                for begin in range(0, reach, dilation)
            ]
        )
    images = tf.pad(images, [*margins, (0, 0)])
    return tf.concat(
        [
            images[:, rows, columns]
            for rows in starts[0]
            for columns in starts[1]
        ],
        axis=-1,
    )


def jacobian_rows(multiply, inputs, weights):
    """Returns the Jacobian of the product, one row for each of its entries.

    Args:
        multiply: Function of `inputs` and `weights`. Returns the product.
        inputs: The inputs of the product.
        weights: Tensor. The binary weights.
    """
    with tf.GradientTape() as tape:
        tape.watch(weights)
        product = multiply(inputs, weights)
    jacobian = tape.jacobian(product, weights)
    return tf.reshape(jacobian, (-1, math.prod(weights.shape)))


def jacobian_kept(upstream):
    """Returns a mask of the rows to keep. See `statistics.normalized`.

    As in layers that define `rows`, a row is kept if any entry along the last
    axis has a gradient, even if its own gradient is zero.

    Args:
        upstream: Tensor. The gradient of the product.
    """
    found = tf.reduce_any(upstream != 0, axis=-1, keepdims=True)
    return tf.reshape(tf.broadcast_to(found, tf.shape(upstream)), (-1, 1))


def evenly_spaced(tensor, count):
    """Returns evenly spaced entries of the first axis.

    Returns at least `count` entries, or all if there are fewer, and always
    fewer than `2 * count`.
    """
    size = tf.shape(tensor)[0]
    # Slicing with a stride would be slower.
    chosen = tf.range(0, size, tf.maximum(size // count, 1))
    return tf.gather(tensor, chosen)


def to_dense(sparse):
    """Converts a sparse tensor to a dense one.

    The entries may be in any order, and repeated entries are summed, as in
    sparse products. `tf.sparse.to_dense` raises an error in both cases.
    """
    shape = tf.cast(sparse.dense_shape, sparse.indices.dtype)
    dense = tf.scatter_nd(sparse.indices, sparse.values, shape)
    return tf.ensure_shape(dense, sparse.shape)
