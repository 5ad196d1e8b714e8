"""A graph convolution with weights of one to four bits."""

import numbers
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import adjacency
from keras_qpsbgd.layers.binary_dense import BinaryDense
from keras_qpsbgd.layers.binary_layer import BinaryLayer
from keras_qpsbgd.layers.rows import to_dense


@_keras.register
class BinaryGraphConv(BinaryLayer, _keras.keras.layers.Dense):
    r"""Graph convolution with binary weights, or weights of up to four bits.

    The layer is Spektral's `GCNConv`, computed with the sign of its kernel
    \(\Omega\):

    $$Y = \mathrm{activation}\left(\frac{A X \, \mathrm{sign}(\Omega)}{\sqrt n}
      + b\right)$$

    With `bits > 1`, it computes with the weights described in `BinaryLayer`
    instead of the sign.

    For the QUBO, it is a dense layer on the rows of \(A X\), one per node.

    The layer does not require Spektral, but it can replace `GCNConv` in a
    Spektral model:

    - The inputs are `[x, a]` in single, disjoint, mixed or batch mode. `a` is a
      dense tensor or a `tf.SparseTensor`. A third input (edges or graph
      indices) is ignored.
    - Node masks are applied before the activation.
    - `LayerPreprocess(BinaryGraphConv)` and
      `dataset.apply(BinaryGraphConv.transform)` normalize the adjacency matrix.

    The arguments up to `bias_constraint` are those of `GCNConv`, with the same
    defaults.

    Args:
        channels: Positive integer. The number of outputs per node.
        activation: Activation function (optional). Defaults to `None`, which
            applies no activation.
        use_bias: Boolean. Whether to add a bias. Defaults to `True`.
        kernel_initializer: Initializer of the latent kernel. Defaults to
            `"glorot_uniform"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the latent kernel (optional).
            Defaults to `None`.
        bias_regularizer: Regularizer of the bias (optional). Defaults to
            `None`.
        activity_regularizer: Regularizer of the output (optional). Defaults to
            `None`.
        kernel_constraint: Constraint of the latent kernel (optional), for
            example `keras_qpsbgd.constraints.WeightClip`. Defaults to `None`.
        bias_constraint: Constraint of the bias (optional). Defaults to `None`.
        output_scale: `"fan_in"`, `"channel"` or `None`. `"fan_in"` divides the
            product by the square root of the number of node features \(n\).
            `"channel"` multiplies it by the trainable weight `scale` of shape
            `(channels,)`, which starts at \(1 / \sqrt n\). `None` does not
            scale it. Defaults to `"fan_in"`.
        check_adjacency: Boolean. Whether to check the entries of `a` in
            training. The check raises if they are not finite and warns once if
            they are not normalized. It reads about 64 rows of a dense `a`.
            Models that are compiled with XLA are not checked, because XLA
            cannot call Python. Defaults to `True`.
        bits: Integer from 1 to 4. The number of bits of a weight; see
            `BinaryLayer`. Defaults to `1`.
        training_weights: `"binary"` or `"latent"`. The weights that the layer
            multiplies by in training. `ProxQuant` requires `"latent"`; see
            `BinaryLayer`. Defaults to `"binary"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Raises:
        ValueError: If an argument is invalid, if the shapes of `x` and `a` do
            not match, or (in training) if `a` is not finite. If the error
            occurs while a `tf.function` runs, as in `fit`, TensorFlow raises an
            `InvalidArgumentError` instead.

    Example:
        ```python
        import numpy as np

        import keras_qpsbgd as kq

        a = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], "float32")
        a = kq.layers.BinaryGraphConv.preprocess(a)
        layer = kq.layers.BinaryGraphConv(2)
        print(layer([np.ones((3, 4)), a]).shape)  # (3, 2)
        ```

    Reference:
        - [Kipf and Welling, 2017](https://arxiv.org/abs/1609.02907)
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
        bits: int = 1,
        **kwargs: Any,
    ) -> None:
        if not isinstance(channels, numbers.Integral) or channels < 1:
            raise ValueError(
                "`channels` must be a positive integer. "
                f"Received: channels={channels}"
            )
        super().__init__(
            int(channels),
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            bits=bits,
            output_scale=output_scale,
            **kwargs,
        )
        self._reject_adapters()
        self.input_spec = None  # `Dense` has one input
        self.channels = self.units
        self.check_adjacency = check_adjacency
        self._check = adjacency.NormalizationCheck(self.name)
        self._known_dense = False

    @staticmethod
    def preprocess(a: Any) -> Any:
        r"""Normalizes an adjacency matrix to \(D^{-1/2} (A + I) D^{-1/2}\).

        This is the filter of `GCNConv`. You can pass the SciPy matrix that it
        returns to `fit` or to a loader. To call a layer, convert the matrix
        with `.toarray()` or with Spektral's `sp_matrix_to_sp_tensor`.

        Args:
            a: NumPy array of shape `(nodes, nodes)` or `(graphs, nodes,
                nodes)`, or a SciPy sparse matrix.

        Returns:
            A NumPy array or, if `a` is sparse, a SciPy CSR matrix.

        Raises:
            ValueError: If `a` has another type or is not square.
        """
        return adjacency.gcn_filter(a)

    @staticmethod
    def transform(graph: Any) -> Any:
        """Normalizes the adjacency matrix of a Spektral graph.

        This is a Spektral transform that applies `preprocess`.

        Args:
            graph: A `spektral.data.Graph`. Its attribute `a` is replaced.

        Returns:
            The same graph.

        Example:
            ```python
            dataset.apply(kq.layers.BinaryGraphConv.transform)
            ```
        """
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
        super().build(x_shape)
        self.input_spec = None
        self.mark_binary(self.kernel)

    # After the product of `a` and `x`, the layer is a dense layer on its rows.
    binary_call = BinaryDense.binary_call
    rows = BinaryDense.rows

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None
    ) -> Any:
        x, a = _x_and_a(inputs, self.name)
        x, a = self._tensor("x", x), self._tensor("a", a)
        if isinstance(x, tf.SparseTensor):
            x = to_dense(x)
        self._check_inputs(x, a)
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
        # For symbolic inputs, Keras 3 calls this instead of the layer.
        self._check_inputs(*_x_and_a(inputs, self.name))
        return super().compute_output_spec(inputs, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        x_shape = _x_and_a(input_shape, self.name)[0]
        return (*x_shape[:-1], self.channels)

    @property
    def supports_jit(self) -> bool:
        # XLA does not support sparse tensors. In a subclassed model, Keras
        # reads this property before the layer receives its adjacency matrix.
        return self._known_dense

    @supports_jit.setter
    def supports_jit(self, value):
        del value  # Keras sets it in the constructor of every layer

    def _check_inputs(self, x, a):
        """Checks the shapes and notes whether `a` is dense."""
        shape = adjacency.static_shape(a)
        adjacency.check_shapes(x.shape, shape, self.name)
        sparse = isinstance(a, tf.SparseTensor) or getattr(a, "sparse", False)
        self._known_dense = not sparse

    def _tensor(self, name, value):
        if hasattr(value, "tocsr"):
            raise ValueError(
                f"`{name}` of `{self.name}` must be a tensor or a "
                "`tf.SparseTensor`. The loaders of Spektral convert SciPy "
                f"matrices. Received: {name} of type {type(value).__name__}"
            )
        return tf.cast(value, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["channels"] = config.pop("units")
        config["check_adjacency"] = self.check_adjacency
        return config


def _x_and_a(inputs, name):
    pair = isinstance(inputs, (list, tuple)) and len(inputs) in (2, 3)
    # `inputs` may be the shape of one tensor, which is also a tuple.
    if not pair or inputs[0] is None or isinstance(inputs[0], int):
        raise ValueError(
            f"`{name}` must be called with `[x, a]`, the node features and the "
            f"adjacency matrix. Received: inputs={inputs}"
        )
    return inputs[:2]


def _is_training(training):
    # `training` is `None` in a custom loop that calls `model(x)` and in the
    # export of a model. An exported model must not call Python.
    if training is None:
        return tf.executing_eagerly()
    return not tf.is_tensor(training) and bool(training)


def _node_mask(mask):
    # Keras 3 passes a list with one mask or `None` per input.
    return mask[0] if isinstance(mask, (list, tuple)) else mask
