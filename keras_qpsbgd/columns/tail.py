"""The loss of a network as a function of the product of one layer."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.layers.binary_dense import BinaryDense


class Tail:
    r"""The loss as a function of \(R = XW\), where \(X\) are a layer's inputs.

    While the columns of a layer change, its inputs stay the same. A new column
    only changes one column of \(R\), so the layers before are not computed
    again, and neither is the product of the layer.

    Dropout and other layers that depend on `training` behave as in inference.
    Penalties of regularizers are left out.

    Call `begin` before the other methods.

    Args:
        model: A compiled Sequential or functional `keras.Model` with one input
            and one output.
        layer: A `BinaryDense` of the model.
        wiring: The `Wiring` of the model.
    """

    def __init__(self, model, layer, wiring):
        self.layer = layer
        self._before = wiring.before(layer)
        self._after = self._rest(wiring)
        self._model = model
        self._loss_in_graph = in_graph(self._loss)
        self._derivatives_in_graph = in_graph(self._derivatives)
        self._loss_with_in_graph = in_graph(self._loss_with)

    def begin(self, samples):
        """Computes the product of the layer for a batch.

        Args:
            samples: Tuple of inputs, labels and weights of samples, as arrays.
                The weights may be `None`.

        Returns:
            The inputs of the layer as an array of shape `(B, n)`, its weights
            of +1 and -1, and the loss.
        """
        x, *rest = samples
        self._labels = [
            None if part is None else tf.convert_to_tensor(part)
            for part in rest
        ]
        rows = np.asarray(self._before(x, training=False), "float32")
        # Column by column in memory, because single columns are read often.
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
            Array of shape `(B,)` with the first derivatives of the loss, and a
            float, the mean of its second derivatives.
        """
        slopes, curvature = self._derivatives_in_graph(
            self._state, *self._at(column), *self._labels
        )
        return slopes.numpy(), float(curvature)

    def losses(self, column, products):
        """Returns the losses with other values of one column of the product.

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
        return tf.constant(column, tf.int32), self._product[:, column]

    def _start(self):
        """Sets and returns what the loss is a function of."""
        self._state = tf.convert_to_tensor(self._product)
        return self._state

    def _rest(self, wiring):
        """Returns the layers after this one, as a function."""
        return wiring.after(self.layer, of=self.layer)

    def _outputs(self, state):
        """Returns the outputs of the network."""
        return self._after(self.layer.outputs_of(state), training=False)

    def _changed(self, state, column, old, new):
        """Returns the state with a column `new` in place of `old`."""
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
        # The gradient of a loss that is linear does not depend on the product.
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


def binary_layers(model):
    """Returns the trainable `BinaryDense` layers of a model, in order.

    Raises:
        ValueError: If the model is not Sequential or functional with one input
            and one output, is not compiled, or has no such layer.
    """
    is_built = getattr(model, "built", False)
    inputs = getattr(model, "inputs", None) if is_built else None
    if (
        not inputs
        or len(inputs) != 1
        or len(model.outputs) != 1
        or not hasattr(model, "compute_loss")
    ):
        raise ValueError(
            "`model` must be a built Sequential or functional model with one "
            "input and one output. Add a `keras.Input` to a Sequential model. "
            f"Received: model={getattr(model, 'name', model)!r}"
        )
    if not _keras.is_compiled(model):
        raise ValueError(
            "`model` must be compiled with a loss. Call `model.compile` first. "
            f"Received: model={model.name}"
        )
    return dense_layers(model)


def dense_layers(model):
    """Returns the same layers, also of a model that is not compiled.

    Raises:
        ValueError: If the model has no such layer.
    """
    layers = [
        layer
        for layer in model.layers
        if isinstance(layer, BinaryDense) and layer.trainable
    ]
    if not layers:
        raise ValueError(
            "`model` must have a trainable `BinaryDense` layer. "
            f"Received: model={model.name}"
        )
    for layer in layers:
        if layer.bits != 1 or len(layer.input.shape) != 2:
            raise ValueError(
                "`fit_columns` requires layers with `bits=1` and inputs of "
                f"shape (batch, features). Received: layer `{layer.name}` with "
                f"bits={layer.bits} and inputs of rank "
                f"{len(layer.input.shape)}"
            )
    return layers
