r"""Statistics of the rows that a binary layer multiplies by its kernel.

The optimizer builds the QUBO of a layer from two things: the gradient of the
kernel, which Keras computes, and the couplings, which are statistics of the
rows \(X\) (\(B \times n\)). The layer computes the statistics in a training
pass, if an optimizer asked for them:

1. A layer marks its kernel with a `BinaryKernel`.
2. `QPSBGD.build` creates the variables of the statistics and connects an
   `Observer` to the mark. With any other optimizer there is no observer, and
   the layer computes nothing extra.
3. In a training pass, the layer passes its rows to the observer.

There is one observer for each rule of `QPSBGD`:

- `MovingCovariance`: \(C \leftarrow d C + (1 - d) X^T X / \mathrm{tr} X^T X\)
- `BatchCouplings`: \(Q \leftarrow Q + \sum_b z_b z_b^T\) with
  \(z_b = x_b / \lVert x_b \rVert^2\)

Layers with many inputs have several blocks of couplings (see `qubo.blocks`).
"""

import collections
import contextlib
import math
import weakref
from typing import Optional

import tensorflow as tf

from keras_qpsbgd.qubo import blocks
from keras_qpsbgd.qubo import ops

# More rows barely change a moving average.
MAX_ROWS = 1024
# Inputs with a larger root mean square are considered unscaled. For pixels from
# 0 to 255, it is about 70 to 140.
MAX_INPUT = 30.0
# Attribute of a binary kernel.
_MARK = "_keras_qpsbgd_mark"


class BinaryKernel:
    """Marks a variable as a binary kernel and describes its layer.

    Args:
        kernel: Keras variable. This object is stored as an attribute of it.
        num_variables: Integer. The number n of inputs of each output.
        num_columns: Integer. The number m of outputs.
        name: String. The name of the layer, for messages.
        training_weights: `"binary"` or `"latent"`. The weights that the layer
            multiplies by during training.
        bits: Integer. The number of bits of a weight. Defaults to `1`.

    Attributes:
        missed: Boolean. Whether the last training pass, or the last one that
            was traced, had no observer.
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
        self.missed = False
        self._observer = lambda: None
        setattr(kernel, _MARK, self)

    @property
    def observer(self):
        """The observer of the rows, or `None`.

        The mark does not keep the observer alive. Once the optimizer is gone,
        the layer no longer computes statistics.
        """
        return self._observer()

    @observer.setter
    def observer(self, observer):
        is_none = observer is None
        self._observer = (lambda: None) if is_none else weakref.ref(observer)

    def begin_pass(self):
        """Returns the observer of a training pass, or `None`."""
        observer = self.observer
        self.missed = observer is None
        return observer


def mark_of(variable):
    """Returns the `BinaryKernel` of a variable, or `None` if not binary."""
    return getattr(variable, _MARK, None)


def names_of(marks):
    """Returns a unique name for each binary kernel of a model.

    This is the name of its layer. If several layers have the same name, their
    paths are used, such as `encoder/dense`. If several have the same path, a
    number is added, such as `dense#2`.

    Args:
        marks: List of `BinaryKernel`.

    Returns:
        A dictionary that maps each `BinaryKernel` to its name.
    """
    names = {mark: mark.name for mark in marks}
    for mark in _repeated(names):
        # Variables of Keras 3 have a path. In legacy Keras, the name is the
        # path.
        path = getattr(mark.kernel, "path", mark.kernel.name)
        names[mark] = path.rpartition("/")[0] or mark.name
    numbers = collections.Counter()
    for mark in _repeated(names):
        name = names[mark]
        numbers[name] += 1
        names[mark] = f"{name}#{numbers[name]}"
    return names


def _repeated(names):
    """Returns the keys whose values are not unique."""
    counts = collections.Counter(names.values())
    return [mark for mark, name in names.items() if counts[name] > 1]


@contextlib.contextmanager
def observing(observers):
    """Connects other observers, and restores the previous ones on exit.

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


class Observer:
    """Receives the rows of a binary kernel.

    A subclass defines `add`, or sets `changes_gradient` and defines `gradient`.

    Attributes:
        max_rows: Integer. The number of rows that the observer needs, or `None`
            for all rows.
        changes_gradient: Boolean. Whether the backward pass calls `gradient`.
            Otherwise, the forward pass calls `add`.
    """

    max_rows: Optional[int] = None
    changes_gradient = False

    def add(self, rows):
        """Adds the rows of a training pass.

        Args:
            rows: Tensor of shape `(B, n)`.
        """
        raise NotImplementedError

    def gradient(self, rows, row_gradients, kept):
        """Adds the rows of a backward pass, and returns a gradient `(n, m)`.

        Args:
            rows: Tensor of shape `(B, n)`.
            row_gradients: Tensor of shape `(B, m)`. The gradient V of the loss
                with respect to the product.
            kept: See `normalized`.
        """
        raise NotImplementedError


class MovingCovariance(Observer):
    r"""Moving average of the second moments of the rows.

    $$C \leftarrow d \, C + (1 - d) \frac{X^T X}{\mathrm{tr} X^T X}$$

    If any row of a batch is not finite, the batch does not change the average.
    The average starts at zero. Its scale does not matter, so it needs no bias
    correction.

    Args:
        variable: Variable of shape `(blocks, width, width)`. With several
            replicas, it must average what they assign.
        decay: Float. The decay d.
        watches_size: Boolean. Whether to store the root mean square of the last
            rows. Defaults to `False`.
    """

    max_rows = MAX_ROWS

    def __init__(self, variable, decay, watches_size=False):
        self._variable = variable
        self._decay = decay
        self._mean_square = None
        if watches_size:
            # Only for a warning, so it is not part of the saved state.
            self._mean_square = tf.Variable(
                0.0,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    @property
    def input_size(self):
        """The root mean square of the last rows, or `None`."""
        if self._mean_square is None:
            return None
        return math.sqrt(float(tf.convert_to_tensor(self._mean_square)))

    def add(self, rows):
        rows = tf.stop_gradient(tf.cast(rows, tf.float32))
        square = tf.reduce_sum(tf.square(rows))
        if self._mean_square is not None:
            count = tf.cast(tf.size(rows), tf.float32)
            self._mean_square.assign(tf.math.divide_no_nan(square, count))
        is_valid = tf.math.is_finite(square) & (square > 0)
        size = tf.where(is_valid, (1.0 - self._decay) / square, 0.0)
        # Also zero where a row is not finite.
        rows = tf.math.multiply_no_nan(rows, tf.sqrt(size))
        products = blocks.second_moments(rows, self._variable.shape)
        decay = tf.where(is_valid, self._decay, 1.0)
        average = tf.convert_to_tensor(self._variable)
        self._variable.assign(decay * average + products)


def warning_of_size(name, size):
    """Returns a warning if the inputs of the first layer are not scaled.

    Only the first one is checked. The inputs of later layers may be large for
    other reasons, such as the integers of a layer with `output_scale=None`.

    Args:
        name: String. The name of the first binary layer.
        size: Float. The root mean square of its inputs.

    Returns:
        A string, or `None` if the size is not too large or is not finite.
    """
    if not MAX_INPUT < size < math.inf:
        return None
    return (
        f"The inputs of the layer `{name}` have a root mean square of "
        f"{size:,.0f}. Scale the inputs of the network to about -1 to 1, for "
        "example with `x / 127.5 - 1` if they are pixels from 0 to 255. "
        "Without a batch normalization after the layer, activations such as "
        "`hard_tanh` saturate otherwise, and the network barely learns."
    )


class BatchCouplings(Observer):
    r"""Couplings of the paper, from all backward passes since the last update.

    $$Q = \sum_b z_b z_b^T , \qquad z_b = x_b / \lVert x_b \rVert^2$$

    The sum contains only rows with a gradient. The backward pass of the layer
    returns \(Z^T V\) as the gradient of the kernel, where \(V\) is the gradient
    of the loss with respect to the product.

    Args:
        total: Variable of shape `(blocks, width, width)`. With several
            replicas, it must sum what they assign.
    """

    changes_gradient = True

    def __init__(self, total):
        self.total = total

    def clear(self):
        """Resets the sum to zero."""
        self.total.assign(tf.zeros(self.total.shape))

    def gradient(self, rows, row_gradients, kept):
        z, v = normalized(rows, row_gradients, kept)
        products = blocks.second_moments(z, self.total.shape)
        # Loss scaling skips an update whose gradient overflows, without
        # telling this optimizer.
        is_used = ops.is_finite([v])
        total = self.total
        if not isinstance(total, tf.Variable):
            # `assign_add` of Keras also sums the old values of the replicas.
            total = total.value
        added = total.assign_add(tf.where(is_used, products, 0.0))
        with tf.control_dependencies([] if added is None else [added]):
            return tf.matmul(z, v, transpose_a=True)


def normalized(rows, row_gradients, kept=None):
    r"""Returns the rows \(z_b = x_b / \lVert x_b \rVert^2\) and \(V\).

    Rows that are not kept and all-zero rows are zero, so they do not contribute
    to couplings and fields. Rows whose norm overflows are NaN, because zeros
    would silently drop them.

    Args:
        rows: Tensor of shape (B, n).
        row_gradients: Tensor of shape (B, m).
        kept: Boolean tensor of shape (B, 1) (optional). The rows that are part
            of the problem. Defaults to the rows with a gradient in any column.
            The others, for example masked samples or nodes outside the batch,
            carry no information about the update.

    Returns:
        Tuple of float32 tensors of shape (B, n) and (B, m).
    """
    rows = tf.cast(rows, tf.float32)
    if kept is None:
        kept = tf.reduce_any(row_gradients != 0, axis=-1, keepdims=True)
    squares = tf.reduce_sum(tf.square(rows), axis=-1, keepdims=True)
    weights = tf.math.divide_no_nan(tf.cast(kept, tf.float32), squares)
    weights = tf.where(tf.math.is_inf(squares), math.nan, weights)
    return rows * weights, tf.cast(row_gradients, tf.float32)


def observed(observer, kernel, product, rows_of):
    """Returns a product whose gradient for the kernel is the observer's.

    Args:
        observer: `Observer` that changes the gradient.
        kernel: Tensor. The value of the kernel.
        product: Tensor. Must not depend on `kernel` in any other way.
        rows_of: Function of the gradient of the product. Returns the arguments
            of `Observer.gradient`.
    """

    @tf.custom_gradient
    def identity(kernel, product):
        @tf.autograph.experimental.do_not_convert
        def backward(upstream):
            found = observer.gradient(*rows_of(upstream))
            found = tf.cast(tf.reshape(found, kernel.shape), kernel.dtype)
            return found, upstream

        return tf.identity(product), backward

    return identity(kernel, product)
