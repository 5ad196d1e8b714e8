"""The loss of a network as a function of the product of one layer."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.layers.binary_dense import BinaryDense

keras = _keras.keras


class Tail:
    r"""The loss as a function of \(R = XW\), where \(X\) are a layer's inputs.

    While the columns of a layer change, its inputs stay the same. A new column
    only changes one column of \(R\), so the layers before are not computed
    again, and neither is the product of the layer.

    Dropout and other layers that depend on `training` behave as in inference.
    Penalties of regularizers are left out.

    Args:
        model: A compiled Sequential or functional `keras.Model` with one input
            and one output.
        layer: A `BinaryDense` of the model.
        x: Array. The inputs of the network.
        y: Array. The labels.
    """

    def __init__(self, model, layer, x, y):
        self.layer = layer
        self._x = tf.convert_to_tensor(x)
        self._y = tf.convert_to_tensor(y)
        self._before = _sub_model(model, layer, before=True)
        self._rest = _sub_model(model, layer, before=False)
        self._model = model
        self.loss = tf.function(self._loss)
        self.derivatives = tf.function(self._derivatives)
        # The number of candidates varies.
        self.losses_with = tf.function(self._losses_with, reduce_retracing=True)

    def rows(self):
        """Returns the inputs of the layer, with the current weights."""
        return np.asarray(self._before(self._x, training=False), "float32")

    def _loss(self, product):
        """Returns the loss of the network, a scalar."""
        outputs = self._rest(self.layer.outputs_of(product), training=False)
        loss = self._model.compute_loss(
            x=None, y=self._y, y_pred=outputs, sample_weight=None
        )
        penalties = self._model.losses
        return loss - tf.add_n(penalties) if penalties else loss

    def _derivatives(self, product, column):
        """Returns the derivatives of the loss with respect to one column.

        Args:
            product: Tensor of shape `(B, m)`.
            column: Scalar int tensor.

        Returns:
            Tensor of shape `(B,)` with the first derivatives, and a scalar with
            the mean of the second derivatives.
        """
        tangent = tf.one_hot(column, product.shape[1])
        tangent = tf.broadcast_to(tangent, tf.shape(product))
        with tf.autodiff.ForwardAccumulator(product, tangent) as forward:
            with tf.GradientTape() as tape:
                tape.watch(product)
                loss = self._loss(product)
            gradient = tape.gradient(loss, product)
        # The gradient of a loss that is linear does not depend on the product.
        second = forward.jvp(
            gradient, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return gradient[:, column], tf.reduce_mean(second[:, column])

    def _losses_with(self, product, column, candidates):
        """Returns the losses with other values of one column.

        Args:
            product: Tensor of shape `(B, m)`.
            column: Scalar int tensor.
            candidates: Tensor of shape `(B, k)`.

        Returns:
            Tensor of shape `(k,)`.
        """
        place = tf.one_hot(column, product.shape[1])
        others = product * (1.0 - place)
        return tf.map_fn(
            lambda one: self._loss(others + one[:, None] * place),
            tf.transpose(candidates),
        )


def binary_layers(model):
    """Returns the trainable `BinaryDense` layers of a model, in order.

    Raises:
        ValueError: If the model is not Sequential or functional with one input
            and one output, is not compiled, or has no such layer.
    """
    inputs = getattr(model, "inputs", None) if model.built else None
    if (
        not inputs
        or len(inputs) != 1
        or len(model.outputs) != 1
        or not hasattr(model, "compute_loss")
    ):
        raise ValueError(
            "`model` must be a built Sequential or functional model with one "
            "input and one output. Add a `keras.Input` to a Sequential model. "
            f"Received: model={model.name}"
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


def _sub_model(model, layer, before):
    """Returns the part of a model before or after a layer, as a function."""
    begin, end = model.inputs[0], layer.input
    if not before:
        begin, end = layer.output, model.outputs[0]
    if begin is end:
        return lambda tensor, training=False: tensor
    try:
        return keras.Model(begin, end)
    except ValueError as error:
        raise ValueError(
            "The outputs of `model` must depend on its inputs only through "
            f"the layer `{layer.name}`, and it must be called once. "
            f"Received: model={model.name}"
        ) from error
