"""The data and the network of `python -m research compare`."""

import contextlib
import math
import random

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _keras
from research.engine.methods import default_grids
from research.engine.task import marked_kernels
from research.engine.task import use_weights

ROWS = 2  # number of rows for the call that builds a model


class Source:
    """The splits and the network, created once in each process.

    Args:
        splits: dict of `Split`.
        build_model: function without arguments that returns a model.
        seeds: the seeds of all runs. Their initial weights are drawn up front,
            because TensorFlow rebuilds all graphs after `set_random_seed`.
    """

    def __init__(self, splits, build_model, seeds):
        self.splits = splits
        self._build_model = build_model
        self._first_weights = {seed: self._drawn(seed) for seed in seeds}

    def model(self, weights):
        """Returns a new, built model.

        Args:
            weights: `"binary"`, `"latent"` or `"real"`, see `Method`.
        """
        model, _ = self.model_and_outputs()
        return use_weights(model, weights)

    def model_and_outputs(self):
        """Returns a new model and its outputs for some training rows."""
        inputs = [part[:ROWS] for part in self.splits["train"].inputs]
        with _keras.random_states_as_variables():
            model = self._build_model()
            # A model that is not built yet creates its weights in this call.
            outputs = model(
                inputs if len(inputs) > 1 else inputs[0], training=False
            )
        return model, outputs

    def first_weights(self, seed):
        """Returns the initial values of weights and random states."""
        return self._first_weights[seed]

    def _drawn(self, seed):
        with random_seed(seed):
            model, _ = self.model_and_outputs()
        variables = _keras.variables_with_random_states(model)
        return [variable.numpy() for variable in variables]


@contextlib.contextmanager
def random_seed(seed):
    """Context manager that sets the seed of all random generators.

    The states of Python's and NumPy's generators are restored at the end.
    """
    before = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def check(model, outputs, classes):
    """Raises a `ValueError` if a network cannot be compared.

    Args:
        model: a built model.
        outputs: its outputs for some rows.
        classes: number of classes, or `None` for other targets.
    """
    if not marked_kernels(model):
        raise ValueError(
            "`build_model` must return a model with trainable layers of "
            "`keras_qpsbgd.layers`. Received: a model with the layers "
            f"{[layer.name for layer in _keras.all_layers(model)]}"
        )
    if classes is None:
        return
    outputs = np.asarray(outputs, float)
    most = 2 if outputs.shape[-1] == 1 else outputs.shape[-1]
    if outputs.ndim != 2 or classes > most:
        raise ValueError(
            "`build_model` must return a model with one logit per class, or "
            f"one logit for two classes. Received: outputs of shape "
            f"{outputs.shape} for {classes} classes"
        )
    sums = outputs.sum(axis=-1)
    if outputs.shape[-1] > 1 and outputs.min() >= 0:
        if np.allclose(sums, 1.0, atol=1e-3):
            raise ValueError(
                "`build_model` must return a model of logits. Remove the "
                "softmax of its last layer, or define a `loss`. Received: "
                f"outputs with sums {sums}"
            )


def default_grids_of(model, steps):
    """Returns the default grids of all methods for a network.

    Args:
        model: a built model.
        steps: number of steps of a run.
    """
    kernels = marked_kernels(model)
    has_other_variables = len(model.trainable_variables) > len(kernels)
    return default_grids(
        latent_scale(model), len(kernels), steps, has_other_variables
    )


def latent_scale(model):
    r"""Returns the size of the latent weights, from the binary layers' widths.

    Glorot's initializer draws from \(\pm \sqrt{6 / (n + m)}\) for a layer with
    n inputs and m outputs. The result is the geometric mean over the layers.
    """
    logarithms = []
    for kernel in marked_kernels(model):
        shape = tuple(kernel.shape)
        outputs = shape[-1]
        inputs = shape[-2] if len(shape) > 1 else shape[-1]
        width = (inputs + outputs) * math.prod(shape[:-2])
        logarithms.append(0.5 * math.log(6.0 / width))
    return math.exp(sum(logarithms) / len(logarithms))
