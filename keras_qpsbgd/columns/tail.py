"""The loss of a network as a function of the product of one layer."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd.layers.binary_dense import BinaryDense

# Elementwise activations.
ELEMENTWISE = (
    "elu", "exponential", "gelu", "hard_sigmoid", "hard_tanh", "leaky_relu",
    "linear", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus",
    "softsign", "swish", "tanh",
)  # fmt: skip


class Tail:
    r"""The loss as a function of \(R = XW\), where \(X\) are a layer's inputs.

    The inputs of a layer do not depend on its columns. A new column changes
    only one column of \(R\), so neither the preceding layers nor the whole
    product is computed again.

    Dropout and other layers that depend on `training` behave as in inference.
    Regularization penalties are left out.

    Call `begin` before the other methods.

    Args:
        model: A compiled Sequential or functional `keras.Model` with one input
            and one output.
        layer: A `BinaryDense` of the model.
        wiring: The `Wiring` of the model.
        last: Layer (optional). The last layer that `Tail` computes itself. The
            model computes those after it. Defaults to `layer`.
    """

    def __init__(self, model, layer, wiring, last=None):
        self.layer = layer
        self._before = wiring.before(layer)
        self._after = wiring.after(last or layer, of=layer)
        self._model = model
        self._loss_in_graph = in_graph(self._loss)
        self._derivatives_in_graph = in_graph(self._derivatives)
        self._loss_with_in_graph = in_graph(self._loss_with)

    def begin(self, samples):
        """Computes the product of the layer for a batch.

        Args:
            samples: Tuple of arrays: the inputs, the labels and the weights of
                the samples. The weights may be `None`.

        Returns:
            A tuple `(rows, weights, loss)`. `rows` are the inputs of the layer,
            of shape `(B, n)`, `weights` are its weights, +1 or -1, and `loss`
            is a float.
        """
        x, *rest = samples
        self._labels = [
            None if part is None else tf.convert_to_tensor(part)
            for part in rest
        ]
        rows = np.asarray(self._before(x, training=False), "float32")
        # In Fortran order, because single columns are read often.
        rows = np.asfortranarray(rows)
        weights = self.layer.binary_kernel.numpy().astype("float32")
        self._product = np.asfortranarray(rows @ weights)
        loss = self._loss_in_graph(self._start(), *self._labels)
        return rows, weights, float(loss)

    def product(self, column):
        """Returns one column of the product, of shape `(B,)`."""
        return self._product[:, column]

    def derivatives(self, column):
        """Returns derivatives with respect to one column of the product.

        Args:
            column: Integer.

        Returns:
            A tuple `(slopes, curvature)`. `slopes` are the first derivatives of
            the loss, an array of shape `(B,)`. `curvature` is the mean of its
            second derivatives, a float.
        """
        slopes, curvature = self._derivatives_in_graph(
            self._state, *self._at(column), *self._labels
        )
        return slopes.numpy(), float(curvature)

    def losses(self, column, products):
        """Returns the losses for new values of one column of the product.

        Args:
            column: Integer.
            products: Array of shape `(B, k)`.

        Returns:
            Array of shape `(k,)`.
        """
        place = self._at(column)
        return np.array(
            [
                self._loss_with_in_graph(
                    self._state, *place, product, *self._labels
                )
                for product in np.ascontiguousarray(products.T)
            ]
        )

    def change(self, column, product):
        """Sets one column of the product, an array of shape `(B,)`."""
        self._product[:, column] = product
        self._state = tf.convert_to_tensor(self._product)

    def _at(self, column):
        # Tensors, because the functions may run eagerly.
        old = tf.convert_to_tensor(self._product[:, column])
        return tf.constant(column, tf.int32), old

    def _start(self):
        """Sets and returns the state from which the loss is computed."""
        self._state = tf.convert_to_tensor(self._product)
        return self._state

    def _outputs(self, state):
        """Returns the outputs of the network."""
        return self._after(self.layer.outputs_of(state), training=False)

    def _changed(self, state, column, old, new):
        """Returns the state with the column `new` in place of `old`."""
        place = tf.one_hot(column, state.shape[1])
        return state + (new - old)[:, None] * place

    def _loss(self, state, y, sample_weight):
        loss = self._model.compute_loss(
            x=None,
            y=y,
            y_pred=self._outputs(state),
            sample_weight=sample_weight,
        )
        penalties = self._model.losses
        return loss - tf.add_n(penalties) if penalties else loss

    def _derivatives(self, state, column, old, *labels):
        with tf.autodiff.ForwardAccumulator(old, tf.ones_like(old)) as forward:
            with tf.GradientTape() as tape:
                tape.watch(old)
                fixed = tf.stop_gradient(old)
                changed = self._changed(state, column, fixed, old)
                loss = self._loss(changed, *labels)
            gradient = tape.gradient(loss, old)
        # The gradient of a linear loss does not depend on the product.
        second = forward.jvp(
            gradient, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return gradient, tf.reduce_mean(second)

    def _loss_with(self, state, column, old, new, *labels):
        return self._loss(self._changed(state, column, old, new), *labels)


def in_graph(function):
    """Compiles a function of tensors."""
    # The number of samples may change.
    return tf.function(function, reduce_retracing=True, autograph=False)


class NarrowTail(Tail):
    r"""The loss as a function of the product \(S\) of the next dense layer.

    If a layer computes its outputs \(h\) elementwise from its product, a new
    column \(j\) changes \(S = h W\) by the outer product of \(\Delta h_j\) and
    a row of \(W\). With 64-300-10 and 5000 samples, a sweep takes a quarter of
    the CPU time of `Tail`.

    Args:
        model: A compiled Sequential or functional `keras.Model`.
        layer: A `BinaryDense` of the model.
        wiring: The `Wiring` of the model.
        following: The next layer, a `Dense` or `BinaryDense`.
    """

    def __init__(self, model, layer, wiring, following):
        self._following = following
        super().__init__(model, layer, wiring, last=following)
        self._changed_in_graph = in_graph(self._changed)

    def change(self, column, product):
        self._state = self._changed_in_graph(
            self._state, *self._at(column), product
        )
        self._product[:, column] = product

    def _start(self):
        hidden = self.layer.outputs_of(self._product)
        self._state = tf.matmul(hidden, self._weights())
        return self._state

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
        change = self.layer.outputs_of(new, column)
        change -= self.layer.outputs_of(old, column)
        return state + change[:, None] * tf.gather(self._weights(), column)


def tail_of(model, layer, wiring):
    """Returns a `NarrowTail` if it is valid and faster, otherwise a `Tail`."""
    following = wiring.consumer(wiring.output(layer))
    is_dense = type(following) is keras.layers.Dense or (
        type(following) is BinaryDense
        and following.bits == 1
        and not following.has_real_kernel
    )
    if (
        is_dense
        and following.compute_dtype == "float32"
        and following.units <= layer.units  # a wider one would not be faster
        and _is_elementwise(layer.activation)
    ):
        return NarrowTail(model, layer, wiring, following)
    return Tail(model, layer, wiring)


def _is_elementwise(activation):
    if activation is None:
        return True
    for name in ELEMENTWISE:
        try:
            if activation is keras.activations.get(name):
                return True
        except ValueError:
            continue  # missing in this version of Keras
    return False
