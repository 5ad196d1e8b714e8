"""The loss as a function of the product of the next layer, which is narrow."""

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.columns.tail import Tail
from keras_qpsbgd.columns.tail import in_graph
from keras_qpsbgd.layers.binary_dense import BinaryDense

keras = _keras.keras

# Activations that compute each number on its own.
ELEMENTWISE = (
    "elu", "exponential", "gelu", "hard_sigmoid", "hard_tanh", "leaky_relu",
    "linear", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus",
    "softsign", "swish", "tanh",
)  # fmt: skip
# Layers that do nothing in inference.
IDENTITIES = ("Dropout", "GaussianDropout", "GaussianNoise")


class NarrowTail(Tail):
    r"""The loss as a function of the product \(S\) of the next dense layer.

    If the outputs \(h\) of a layer are computed from its product number by
    number, a new column \(j\) changes \(S = h W\) by the outer product of
    \(\Delta h_j\) and a row of \(W\). This is much faster than to compute the
    outputs of a wide layer again. In between, there may be layers that compute
    each feature on its own: activations, batch normalization and dropout.

    Args:
        model: A compiled Sequential or functional `keras.Model`.
        layer: A `BinaryDense` of the model.
        wiring: The `Wiring` of the model.
        between: List of layers between `layer` and `following`.
        following: The next `Dense` or `BinaryDense`.
    """

    def __init__(self, model, layer, wiring, between, following):
        self._between = between
        self._following = following
        self._hidden = wiring.between(
            wiring.output(layer), wiring.input(following), layer
        )
        super().__init__(model, layer, wiring)
        self._changed_in_graph = in_graph(self._changed)

    def change(self, column, product):
        self._state = self._changed_in_graph(
            self._state, *self._at(column), product
        )
        self._product[:, column] = product

    def _start(self):
        hidden = self._hidden(
            self.layer.outputs_of(self._product), training=False
        )
        self._state = tf.matmul(hidden, self._weights())
        return self._state

    def _rest(self, wiring):
        return wiring.after(self._following, of=self.layer)

    def _weights(self):
        if isinstance(self._following, BinaryDense):
            return self._following.binary_kernel
        return tf.convert_to_tensor(self._following.kernel)

    def _outputs(self, state):
        following = self._following
        if isinstance(following, BinaryDense):
            outputs = following.outputs_of(state)
        else:
            if following.use_bias:
                state += tf.convert_to_tensor(following.bias)
            outputs = following.activation(state)
        return self._after(outputs, training=False)

    def _changed(self, state, column, old, new):
        change = self._feature(column, new) - self._feature(column, old)
        return state + change[:, None] * tf.gather(self._weights(), column)

    def _feature(self, column, product):
        """Returns one feature of the inputs of the next layer.

        Args:
            column: Scalar int tensor. Index of the feature.
            product: Tensor of shape `(B,)`. The column of the product.
        """
        feature = self.layer.outputs_of(product, column)
        for layer in self._between:
            if isinstance(layer, keras.layers.BatchNormalization):
                feature = _normalized(layer, feature, column)
            elif isinstance(layer, keras.layers.Activation):
                feature = layer.activation(feature)
        return feature


def tail_of(model, layer, wiring):
    """Returns the fastest `Tail` of a layer."""
    between = []
    tensor = wiring.output(layer)
    is_elementwise = _is_elementwise(layer.activation)
    while is_elementwise:
        following = wiring.consumer(tensor)
        if following is None or following.compute_dtype != "float32":
            break
        if type(following) is keras.layers.Dense or (
            type(following) is BinaryDense
            and following.bits == 1
            and not following.has_real_kernel
        ):
            # A next layer that is wider makes nothing faster.
            if following.units > layer.units:
                break
            return NarrowTail(model, layer, wiring, between, following)
        is_elementwise = _is_per_feature(following)
        between.append(following)
        tensor = wiring.output(following)
    return Tail(model, layer, wiring)


def _is_per_feature(layer):
    if type(layer) is keras.layers.BatchNormalization:
        axis = layer.axis
        return (axis if isinstance(axis, int) else axis[0]) in (-1, 1)
    if type(layer) is keras.layers.Activation:
        return _is_elementwise(layer.activation)
    return type(layer).__name__ in IDENTITIES


def _is_elementwise(activation):
    if activation is None:
        return True
    for name in ELEMENTWISE:
        try:
            if activation is keras.activations.get(name):
                return True
        except ValueError:
            continue  # a name that this version of Keras lacks
    return False


def _normalized(layer, feature, column):
    """Returns a batch-normalized feature, as in inference."""

    def at_column(variable):
        return tf.convert_to_tensor(variable)[column]

    factor = tf.math.rsqrt(at_column(layer.moving_variance) + layer.epsilon)
    feature = (feature - at_column(layer.moving_mean)) * factor
    if layer.scale:
        feature *= at_column(layer.gamma)
    if layer.center:
        feature += at_column(layer.beta)
    return feature
