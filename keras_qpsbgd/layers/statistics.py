r"""Statistics of the rows that a binary layer multiplies by its kernel.

The optimizer builds the QUBO of a layer from two things: the gradient of the
kernel, which Keras computes, and the couplings, which are statistics of the
rows \(X\) (\(B \times n\)). The layer computes the statistics in a training
pass, if an optimizer asked for them:

1. A layer marks its kernel with a `BinaryKernel`.
2. `QPSBGD.build` creates the variables of the statistics and connects an
   observer to the mark. With any other optimizer there is no observer, and the
   layer computes nothing extra.
3. In a training pass, the layer passes its rows to the observer.

There is one observer for each rule of `QPSBGD`, and one for analysis:

- `MovingCovariance`: \(C \leftarrow d C + (1 - d) X^T X / \mathrm{tr} X^T X\)
- `BatchCouplings`: \(Q \leftarrow Q + \sum_b z_b z_b^T\) with
  \(z_b = x_b / \lVert x_b \rVert^2\)
- `SecondMoments`: \(S \leftarrow S + X^T X\)

Layers with many inputs have several blocks of couplings. Couplings between
different blocks are left out. Block k of K has the inputs k, k + K, k + 2K and
so on. In a convolution whose number of channels is a multiple of K, all
positions of a channel are then in the same block. Their couplings matter most.
"""

import contextlib
import weakref

import tensorflow as tf

from keras_qpsbgd.qubo import ops

# More rows barely change a moving average.
MAX_ROWS = 1024
# Attribute of a binary kernel.
_MARK = "_keras_qpsbgd_mark"


class BinaryKernel:
    """Marks a variable as a binary kernel and describes its layer.

    Args:
        kernel: Keras variable. Gets this object as an attribute.
        num_variables: Integer. The number n of inputs of each output.
        num_columns: Integer. The number m of outputs.
        name: String. The name of the layer, for messages.
        training_weights: `"binary"` or `"latent"`. The weights that the layer
            multiplies by during training.
        bits: Integer. The number of bits of a weight. Defaults to `1`.

    Attributes:
        missed: `"eager"` or `"graph"` if the last training pass, or the last
            one that was traced, had no observer. `None` if it had one.
    """

    def __init__(
        self, kernel, num_variables, num_columns, name, training_weights, bits=1
    ):
        self.kernel = kernel
        self.num_variables = num_variables
        self.num_columns = num_columns
        self.name = name
        self.training_weights = training_weights
        self.bits = bits
        self.missed = None
        self._observer = None
        setattr(kernel, _MARK, self)

    @property
    def observer(self):
        """The observer of the rows, or `None`.

        The mark does not keep the observer alive. Once the optimizer is gone,
        the layer no longer computes statistics.
        """
        return None if self._observer is None else self._observer()

    @observer.setter
    def observer(self, observer):
        self._observer = None if observer is None else weakref.ref(observer)

    def begin_pass(self):
        """Returns the observer of a training pass, or `None`.

        Sets `missed`, so that the optimizer notices passes without an observer.
        """
        observer = self.observer
        mode = "eager" if tf.executing_eagerly() else "graph"
        self.missed = mode if observer is None else None
        return observer


def mark_of(variable):
    """Returns the `BinaryKernel` of a variable, `None` if it is not binary."""
    return getattr(variable, _MARK, None)


@contextlib.contextmanager
def observing(observers):
    """Connects other observers, and the former ones again when it exits.

    Args:
        observers: Dictionary that maps each `BinaryKernel` to its observer.
    """
    before = {mark: mark.observer for mark in observers}
    try:
        for mark, observer in observers.items():
            mark.observer = observer
        yield
    finally:
        for mark, observer in before.items():
            mark.observer = observer


def block_shape(num_variables, widest):
    """Returns the number and the width of the blocks of a layer.

    Args:
        num_variables: Integer. The number of inputs of the layer.
        widest: Integer. Layers with more inputs are divided into blocks of
            equal width. The last block is padded with inputs that are zero.
    """
    count = -(-num_variables // widest)
    return count, -(-num_variables // count)


class MovingCovariance:
    r"""Moving average of the second moments of the rows.

    $$C \leftarrow d \, C + (1 - d) \frac{X^T X}{\mathrm{tr} X^T X}$$

    Rows that are not finite change nothing. The average starts at zero. Its
    scale does not matter, so it needs no correction at the start.

    Args:
        variable: Variable of shape `(blocks, width, width)`. With several
            replicas, it must average what they assign.
        decay: Float. The decay d.
    """

    changes_gradient = False

    def __init__(self, variable, decay):
        self._variable = variable
        self._decay = decay

    def add(self, rows):
        """Updates the average.

        Args:
            rows: Function that takes the number of rows that is enough, or
                `None` for all rows, and returns a tensor of shape `(B, n)`.
        """
        rows = tf.stop_gradient(tf.cast(rows(MAX_ROWS), tf.float32))
        square = tf.reduce_sum(tf.square(rows))
        is_valid = tf.math.is_finite(square) & (square > 0)
        size = tf.where(is_valid, (1.0 - self._decay) / square, 0.0)
        # Also zero where a row is not finite.
        rows = tf.math.multiply_no_nan(rows, tf.sqrt(size))
        products = second_moments(rows, self._variable.shape)
        decay = tf.where(is_valid, self._decay, 1.0)
        average = tf.convert_to_tensor(self._variable)
        self._variable.assign(decay * average + products)


class _Sum:
    """Base class of observers that sum up until they are cleared.

    Args:
        total: Variable of shape `(blocks, width, width)`. With several
            replicas, it must sum what they assign.
    """

    def __init__(self, total):
        self.total = total

    def clear(self):
        """Starts the next sum."""
        self.total.assign(tf.zeros(self.total.shape))


class SecondMoments(_Sum):
    r"""Sum of the second moments \(X^T X\) of all rows, for analysis."""

    changes_gradient = False

    def add(self, rows):
        """Adds all rows. See `MovingCovariance`."""
        rows = tf.stop_gradient(tf.cast(rows(None), tf.float32))
        self.total.assign_add(second_moments(rows, self.total.shape))


class BatchCouplings(_Sum):
    r"""Couplings of the paper, from all backward passes since the last update.

    $$Q = \sum_b z_b z_b^T , \qquad z_b = x_b / \lVert x_b \rVert^2$$

    The sum contains only rows with a gradient. The backward pass of the layer
    returns \(Z^T V\) as the gradient of the kernel, where \(V\) is the gradient
    of the loss with respect to the product.
    """

    changes_gradient = True

    def gradient(self, call, gradient):
        """Adds the rows of a backward pass, and returns Z'V.

        Args:
            call: `ops.LayerCall`.
            gradient: Tensor. The straight-through gradient of the kernel.
        """
        z, v = ops.normalized(call)
        products = second_moments(z, self.total.shape)
        # Loss scaling skips an update whose gradient overflows, without
        # telling this optimizer.
        is_used = ops.is_finite([v])
        added = self.total.assign_add(tf.where(is_used, products, 0.0))
        with tf.control_dependencies([] if added is None else [added]):
            product = tf.matmul(z, v, transpose_a=True)
        return tf.cast(tf.reshape(product, gradient.shape), gradient.dtype)


def second_moments(rows, shape):
    """Returns X'X, or its diagonal blocks.

    Args:
        rows: Tensor of shape `(B, n)`.
        shape: Triple of integers, `(blocks, width, width)`.

    Returns:
        Tensor of this shape.
    """
    count, width, _ = shape
    if count == 1:
        return tf.matmul(rows, rows, transpose_a=True)[None]
    rows = tf.pad(rows, [(0, 0), (0, count * width - rows.shape[1])])
    rows = tf.transpose(tf.reshape(rows, (-1, width, count)), (2, 0, 1))
    return tf.matmul(rows, rows, transpose_a=True)


def observed_product(observer, kernel, bits, inputs, multiply, make_call):
    """Multiplies by the weights of a kernel, and observes the backward pass.

    Args:
        observer: Object with the method `gradient(call, gradient)`, which
            returns what the backward pass returns as the gradient of the
            kernel.
        kernel: Tensor. The value of the kernel.
        bits: Integer. The number of bits of a weight.
        inputs: Tensor or structure of tensors. The first argument of
            `multiply`.
        multiply: Function of `inputs` and the weights.
        make_call: Function of `inputs`, the weights and the gradient V of the
            product. Returns the `ops.LayerCall`.

    Returns:
        The result of `multiply`.
    """
    flat = tf.nest.flatten(inputs)
    positions = [
        index
        for index, part in enumerate(flat)
        if tf.is_tensor(part) and part.dtype.is_floating
    ]

    @tf.custom_gradient
    def product(kernel, *differentiable):
        parts = list(flat)
        for index, tensor in zip(positions, differentiable):
            parts[index] = tensor
        structure = tf.nest.pack_sequence_as(inputs, parts)
        sources = [kernel, *differentiable]
        with tf.GradientTape(
            persistent=True, watch_accessed_variables=False
        ) as tape:
            tape.watch(sources)
            weights = ops.binarize(kernel, bits)
            result = multiply(structure, weights)

        @tf.autograph.experimental.do_not_convert
        def backward(upstream):
            gradient, *others = tape.gradient(
                result, sources, upstream, tf.UnconnectedGradients.ZERO
            )
            call = make_call(structure, weights, upstream)
            return (observer.gradient(call, gradient), *others)

        return result, backward

    return product(kernel, *(tf.identity(flat[i]) for i in positions))


def current_graphs():
    """Returns the graph that is being traced and those it is nested in.

    Outside of a `tf.function`, this is the list `[None]`.
    """
    if tf.executing_eagerly():
        return [None]
    # Legacy Keras builds functional models in a graph that is not a function.
    graphs = [tf.compat.v1.get_default_graph()]
    while getattr(graphs[-1], "building_function", False):
        outer = graphs[-1].outer_graph
        if not getattr(outer, "building_function", False):
            break
        graphs.append(outer)
    return graphs
