"""Builds the user's network, checks it and draws its initial weights."""

import contextlib
import math
import random
import warnings

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd._messages import reason
from research.engine.methods import default_grids
from research.engine.task import marked_kernels
from research.engine.task import use_weights

ROWS = 2  # number of rows for the call that builds a model


class Source:
    """The data as tensors and the network, loaded once in each process.

    Args:
        data: a `Data`.
        build_model: function without arguments that returns a model.
        seeds: the seeds of all runs. Their initial weights are drawn up front,
            because TensorFlow rebuilds all graphs after `set_random_seed`.
    """

    def __init__(self, data, build_model, seeds):
        self.splits = data.tensors()
        self._is_graph = data.is_graph
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
        with _keras.random_states_as_variables():
            model = self._build_model()
            if not isinstance(model, keras.Model):
                raise ValueError(
                    "`build_model` must return a Keras model. "
                    f"Received: {type(model).__name__}"
                )
            # A model that is not built yet creates its weights in this call.
            try:
                outputs = model(self._some_inputs(), training=False)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    "`build_model` must return a model that accepts the `x` of "
                    f"`train`. Received: {reason(error)}"
                ) from error
            return model, outputs

    def _some_inputs(self):
        inputs = self.splits["train"].inputs
        if self._is_graph:
            return list(inputs)
        parts = [part[:ROWS] for part in inputs]
        return parts if len(parts) > 1 else parts[0]

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


def build_and_check(data, build_model, num_classes):
    """Builds the network and checks it before anything is trained.

    Args:
        data: a `Data`.
        build_model: function without arguments that returns a model.
        num_classes: number of classes in the data, or `None` if the targets are
            not classes.

    Returns:
        A model with the initial weights of seed 0, and its outputs for some
        rows.

    Raises:
        ValueError: If the network is not supported.
    """
    source = Source(data, build_model, ())
    found = []
    for seed in (0, 1):
        with random_seed(seed):
            found.append(source.model_and_outputs())
    (model, outputs), (other, _) = found
    if model is other:
        raise ValueError(
            "`build_model` must return a new model in every call. Received: "
            f"the same model `{model.name}` twice"
        )
    _check_kernels(model, other)
    _check_outputs(outputs, num_classes)
    if num_classes is not None:
        _check_logits(model, outputs)
    return model, outputs


def _check_kernels(model, other):
    kernels, others = marked_kernels(model), marked_kernels(other)
    if not kernels:
        raise ValueError(
            "`build_model` must return a model with at least one trainable "
            "layer of `keras_qpsbgd.layers`, such as `BinaryDense`. Received: "
            f"a model with the layers "
            f"{[layer.name for layer in _keras.all_layers(model)]}"
        )
    pairs = zip(kernels, others)
    if all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs):
        warnings.warn(
            "All seeds start from the same binary kernels. Use initializers "
            "without a fixed `seed` in `build_model`.",
            stacklevel=4,
        )


def _check_outputs(outputs, num_classes):
    shape = getattr(outputs, "shape", None)
    if shape is None:
        raise ValueError(
            "`build_model` must return a model with one output. "
            f"Received: {type(outputs).__name__}"
        )
    if num_classes is None:
        return
    shape = tuple(shape)
    max_classes = 2 if shape[-1] == 1 else shape[-1]
    if len(shape) != 2 or num_classes > max_classes:
        raise ValueError(
            "`build_model` must return a model with one logit for each class, "
            "or with a single output for two classes. For other targets, pass "
            f"a `loss`. Received: outputs of shape {shape} for {num_classes} "
            "classes"
        )


def _check_logits(model, outputs):
    """Raises a `ValueError` if the outputs are probabilities."""
    outputs = np.asarray(outputs, dtype=float)
    if (outputs < 0.0).any() or (outputs > 1.0).any():
        return
    layer = model
    while isinstance(layer, keras.Model):
        layer = layer.layers[-1]
    # `Softmax` is a layer without an `activation`.
    activation = getattr(layer, "activation", None) or layer
    name = getattr(activation, "__name__", type(activation).__name__).lower()
    is_last = name.startswith(("softmax", "sigmoid"))
    have_sum = outputs.shape[-1] > 1
    have_sum = have_sum and np.allclose(outputs.sum(-1), 1.0, atol=1e-3)
    if is_last or have_sum:
        raise ValueError(
            "`build_model` must return a model whose outputs are logits if "
            "`loss` is not given. Remove the softmax or sigmoid activation "
            "from its last layer, or pass a `loss` for probabilities, such as "
            "`loss='sparse_categorical_crossentropy'` or "
            "`loss='binary_crossentropy'`. Received: outputs between 0 and 1, "
            f"with the last layer `{layer.name}` ({name})"
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
