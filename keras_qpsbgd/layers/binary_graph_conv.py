"""A graph convolution with weights of +1 and -1."""

import numbers
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd.layers import adjacency
from keras_qpsbgd.layers.binary_dense import BinaryDense
from keras_qpsbgd.layers.binary_layer import BinaryLayer

keras = _keras.keras

# Arguments that are objects, and what turns them into a config.
SERIALIZED = {
    "activation": keras.activations,
    "kernel_initializer": keras.initializers,
    "bias_initializer": keras.initializers,
    "kernel_regularizer": keras.regularizers,
    "bias_regularizer": keras.regularizers,
    "activity_regularizer": keras.regularizers,
    "kernel_constraint": keras.constraints,
    "bias_constraint": keras.constraints,
}


@_keras.register
class BinaryGraphConv(BinaryLayer):
    r"""Spektral's `GCNConv` with a kernel of \(\mathrm{sign}(\Omega)\).

    $$Y = \mathrm{activation}\left(\frac{A X \, \mathrm{sign}(\Omega)}{\sqrt n}
      + b\right)$$

    To the QUBO it is a dense layer on the rows of \(A X\), one per node. Only
    nodes with a gradient enter it: a node outside the batch (sample weight 0),
    or masked, changes neither couplings nor fields.

    It needs no Spektral, and takes its place in Spektral models: inputs
    `[x, a]` in single, disjoint, mixed and batch mode, `a` dense or a
    `tf.SparseTensor`, a third input (edges, graph numbers) is ignored, node
    masks are applied before the activation, `LayerPreprocess(BinaryGraphConv)`
    and `dataset.apply(BinaryGraphConv.transform)` normalise the adjacency.

    Args:
        channels: number of outputs per node; this and the other arguments and
            their defaults are those of `GCNConv`.
        output_scale: `"fan_in"` (default) divides by the square root of the
            number of node features n; `None` does not.
        training_weights: `"binary"` (default) or `"latent"`, for `ProxQuant`;
            see `BinaryLayer`.
        check_adjacency: whether training looks at the entries of `a`, raises
            if they are not finite and warns once if they are not normalised.
            Of a dense `a` it looks at about 64 rows. XLA cannot call Python,
            so a compiled model is not checked.

    Raises:
        ValueError: if `x` and `a` do not fit, or (in training) `a` is not
            finite. What shows only when a `tf.function` runs, as in `fit`,
            ends in TensorFlow's `InvalidArgumentError`.

    Example:

    >>> a = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], "float32")
    >>> a = keras_qpsbgd.layers.BinaryGraphConv.preprocess(a)
    >>> layer = keras_qpsbgd.layers.BinaryGraphConv(2)
    >>> layer([tf.ones((3, 4)), a]).shape
    TensorShape([3, 2])

    Reference:
        Kipf and Welling, "Semi-Supervised Classification with Graph
        Convolutional Networks", ICLR 2017, https://arxiv.org/abs/1609.02907
    """

    def __init__(
        self,
        channels: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        output_scale: str | None = "fan_in",
        check_adjacency: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            output_scale=output_scale,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        if not isinstance(channels, numbers.Integral) or channels < 1:
            raise ValueError(
                "`channels` must be a positive integer. "
                f"Received: channels={channels}"
            )
        self.channels = int(channels)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.check_adjacency = check_adjacency
        self.supports_masking = True
        self._check = adjacency.NormalizationCheck(self.name)
        self._known_dense = False

    @staticmethod
    def preprocess(a: Any) -> Any:
        r"""The filter of `GCNConv`, \(D^{-1/2} (A + I) D^{-1/2}\).

        Args:
            a: numpy array of shape (nodes, nodes) or (graphs, nodes, nodes),
                or a SciPy sparse matrix.

        Returns:
            The same for the filter. A SciPy matrix can be given to `fit` or to
            a loader as it is; to call a layer take its `.toarray()`, or
            Spektral's `sp_matrix_to_sp_tensor`.
        """
        return adjacency.gcn_filter(a)

    @staticmethod
    def transform(graph: Any) -> Any:
        """A Spektral transform: `preprocess` for the adjacency of `graph`."""
        if graph.a is not None:
            graph.a = adjacency.gcn_filter(graph.a)
        return graph

    def build(self, input_shape: Any) -> None:
        x_shape = _x_and_a(input_shape, self.name)[0]
        if x_shape[-1] is None:
            raise ValueError(
                f"The number of node features of `{self.name}` must be known. "
                f"Received: x of shape {tuple(x_shape)}"
            )
        self.kernel = self.add_weight(
            name="kernel",
            shape=(x_shape[-1], self.channels),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.channels,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.mark_binary(self.kernel)
        self.built = True

    # To the QUBO, and from here on, a dense layer on the rows of A x.
    binary_call = BinaryDense.binary_call
    rows = BinaryDense.rows

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None
    ) -> Any:
        x, a = _x_and_a(inputs, self.name)
        x, a = self._tensor("x", x), self._tensor("a", a)
        if isinstance(x, tf.SparseTensor):
            x = ops.to_dense(x)
        self._look_at(x, a)
        if self.check_adjacency and _is_training(training):
            self._check(a)
        assertions = adjacency.shape_assertions(x, a, self.name)
        with tf.control_dependencies(assertions):
            rows = adjacency.propagate(a, tf.identity(x))
        outputs = self.binary_product(rows, training)
        if self.use_bias:
            outputs += tf.cast(self.bias, outputs.dtype)
        mask = _node_mask(mask)
        if mask is not None:
            if len(mask.shape) < len(outputs.shape):
                mask = mask[..., None]
            outputs *= tf.cast(mask, outputs.dtype)
        return self.activation(outputs)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return _node_mask(mask)

    def compute_output_spec(self, inputs: Any, **kwargs: Any) -> Any:
        # Keras 3 asks this, and does not call the layer, for symbolic inputs.
        self._look_at(*_x_and_a(inputs, self.name))
        return super().compute_output_spec(inputs, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        x_shape = _x_and_a(input_shape, self.name)[0]
        return (*x_shape[:-1], self.channels)

    @property
    def supports_jit(self) -> bool:
        # XLA knows no sparse tensors, and Keras asks before the layer of a
        # subclassed model has seen its adjacency.
        return self._known_dense

    @supports_jit.setter
    def supports_jit(self, value):
        del value  # Keras sets it in the constructor of every layer

    def _look_at(self, x, a):
        shape = adjacency.static_shape(a)
        adjacency.check_shapes(x.shape, shape, self.name)
        sparse = isinstance(a, tf.SparseTensor) or getattr(a, "sparse", False)
        self._known_dense = not sparse

    def _tensor(self, name, value):
        if hasattr(value, "tocsr"):
            raise ValueError(
                f"`{name}` of `{self.name}` must be a tensor or a "
                "`tf.SparseTensor`; Spektral's loaders make one of a SciPy "
                f"matrix. Received: {name} of type {type(value).__name__}"
            )
        return tf.cast(value, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "channels": self.channels,
            "use_bias": self.use_bias,
            "check_adjacency": self.check_adjacency,
            **{
                name: module.serialize(getattr(self, name))
                for name, module in SERIALIZED.items()
            },
        }


def _x_and_a(inputs, name):
    pair = isinstance(inputs, (list, tuple)) and len(inputs) in (2, 3)
    # The shape of one tensor is a tuple, too.
    if not pair or inputs[0] is None or isinstance(inputs[0], int):
        raise ValueError(
            f"`{name}` must be called with `[x, a]`: node features and "
            f"adjacency matrix. Received: inputs={inputs}"
        )
    return inputs[:2]


def _is_training(training):
    # `None` is a loop that calls `model(x)`, or the export of a model, which
    # must not hold a way back to Python.
    if training is None:
        return tf.executing_eagerly()
    return not tf.is_tensor(training) and bool(training)


def _node_mask(mask):
    # Keras 3 gives a list, one mask per input, and None for none.
    return mask[0] if isinstance(mask, (list, tuple)) else mask
