"""Finds the layers that `fit_columns` trains, and splits the model at them."""

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers.binary_dense import BinaryDense


class Wiring:
    """The symbolic inputs and outputs of the layers of a model.

    Args:
        model: A built Sequential or functional `keras.Model` with one input and
            one output.
    """

    def __init__(self, model):
        self._model = model
        self._begin, self._end = model.inputs[0], model.outputs[0]
        self._tensors = {}
        for layer in model.layers:
            try:
                self._tensors[layer.name] = (layer.input, layer.output)
            except (AttributeError, RuntimeError, ValueError):
                # Layers that are called more than once may have none.
                self._tensors[layer.name] = (None, None)
        if isinstance(model, keras.Sequential) and not self._is_chain():
            self._call_again()

    def before(self, layer):
        """Returns the part of the model before a layer, as a function."""
        return self.between(self._begin, self.input(layer), layer)

    def after(self, layer, of):
        """Returns the part of the model after a layer, as a function.

        Args:
            layer: The layer.
            of: The layer to name in an error message.
        """
        return self.between(self.output(layer), self._end, of)

    def between(self, begin, end, layer):
        """Returns the part between two tensors, as a function.

        Raises:
            ValueError: If `end` depends on tensors other than `begin`. The
                message names `layer`.
        """
        if begin is end:
            return lambda tensor, training=False: tensor
        try:
            return keras.Model(begin, end)
        except ValueError as error:
            raise ValueError(
                "The outputs of `model` must depend on its inputs only through "
                f"the layer `{layer.name}`, which must be called only once. "
                f"Received: model={self._model.name}"
            ) from error

    def input(self, layer):
        """Returns the symbolic input of a layer."""
        return self._tensors[layer.name][0]

    def output(self, layer):
        """Returns the symbolic output of a layer."""
        return self._tensors[layer.name][1]

    def consumer(self, tensor):
        """Returns the only layer with the input `tensor`, or `None`."""
        found = []
        for layer in self._model.layers:
            inputs = self.input(layer)
            if inputs is None:
                return None
            if any(tensor is one for one in tf.nest.flatten(inputs)):
                found.append(layer)
        return found[0] if len(found) == 1 else None

    def _is_chain(self):
        """Returns whether each layer receives the output of the one before."""
        tensor = self._begin
        for layer in self._model.layers:
            if self.input(layer) is not tensor:
                return False
            tensor = self.output(layer)
        return tensor is self._end

    def _call_again(self):
        # Keras 3 calls all layers again in each `model.add`, but `layer.input`
        # is still the input of the first call.
        shape, dtype = self._begin.shape, self._begin.dtype
        tensor = self._begin = keras.Input(tuple(shape)[1:], dtype=dtype)
        for layer in self._model.layers:
            before, tensor = tensor, layer(tensor)
            self._tensors[layer.name] = (before, tensor)
        self._end = tensor


def binary_layers(model):
    """Returns the trainable `BinaryDense` layers of a model, in order.

    Raises:
        ValueError: If the model is not Sequential or functional with one input
            and one output, is not compiled, or has no such layer.
    """
    _keras.check_is_model(model)
    inputs = getattr(model, "inputs", None) if model.built else None
    if not inputs or len(inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "`model` must be a built Sequential or functional model with one "
            "input and one output. Add a `keras.Input` to a Sequential model. "
            f"Received: model={model.name!r}"
        )
    if not _keras.is_compiled(model):
        raise ValueError(
            "`model` must be compiled with a loss. Call `model.compile` first. "
            f"Received: model={model.name}"
        )
    return dense_layers(model)


def dense_layers(model):
    """Returns the trainable `BinaryDense` layers of a model, compiled or not.

    Raises:
        ValueError: If the model has no such layer, or if one of them has
            several bits per weight or inputs that are not of rank 2.
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
