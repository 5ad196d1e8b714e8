"""The network that a user builds: its forms, and its first weights."""

import contextlib
import math
import random
import warnings

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import layers
from keras_qpsbgd.compare.task import marked_kernels

ROWS = 2  # on which a model is called to build it


class Source:
    """Data as tensors, and the network: what a process needs.

    Args:
        data: a `Data`.
        build_model: function without arguments; returns a model.
        seeds: all seeds of the runs. Their first weights are drawn at once:
            `set_random_seed` makes TensorFlow prepare all graphs anew.
    """

    def __init__(self, data, build_model, seeds):
        self.splits = data.tensors()
        self._is_graph = data.is_graph
        self._build_model = build_model
        self._first_weights = {seed: self._drawn(seed) for seed in seeds}

    def model(self, weights):
        """A built model.

        Args:
            weights: `"binary"`, `"latent"` or `"real"`, see `Method`.
        """
        model, _ = self.model_and_outputs()
        for layer in _keras.all_layers(model):
            if not isinstance(layer, layers.BinaryLayer):
                continue
            if weights == "real":
                layer.use_real_kernel()
            else:
                layer.training_weights = weights
        return model

    def model_and_outputs(self):
        """A new model, and what it returns for some training rows."""
        with _keras.random_states_kept():
            model = self._build_model()
            if not isinstance(model, keras.Model):
                raise ValueError(
                    "`build_model` must return a Keras model. "
                    f"Received: {type(model).__name__}"
                )
            # It may not be built yet, and its weights be made only here.
            try:
                outputs = model(self._some_inputs(), training=False)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    "`build_model` must return a model that can be called with "
                    f"the `x` of `train`. Received: {error}"
                ) from error
            return model, outputs

    def _some_inputs(self):
        inputs = self.splits["train"].inputs
        if self._is_graph:
            return list(inputs)
        parts = [part[:ROWS] for part in inputs]
        return parts if len(parts) > 1 else parts[0]

    def first_weights(self, seed):
        """What weights and random states start from."""
        return self._first_weights[seed]

    def _drawn(self, seed):
        with random_seed(seed):
            model, _ = self.model_and_outputs()
        variables = _keras.variables_with_random_states(model)
        return [variable.numpy() for variable in variables]


@contextlib.contextmanager
def random_seed(seed):
    """Within it, everything random comes from a seed.

    Python's and NumPy's own generators are as before afterwards.
    """
    before = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def look_at(data, build_model, num_classes):
    """Looks at the network before anything is trained.

    Args:
        data: a `Data`.
        build_model: function without arguments; returns a model.
        num_classes: how many there are in the data; `None` if targets are no
            classes.

    Returns:
        A model with the first weights of seed 0, and its outputs for some rows.

    Raises:
        ValueError: it is no network that can be compared.
    """
    source = Source(data.head(ROWS), build_model, ())
    found = []
    for seed in (0, 1):
        with random_seed(seed):
            found.append(source.model_and_outputs())
    (model, outputs), (other, _) = found
    if model is other:
        raise ValueError(
            "`build_model` must make a new model in every call. Received: the "
            f"same model `{model.name}` twice"
        )
    _check_kernels(model, other)
    _check_outputs(outputs, num_classes)
    return model, outputs


def _check_kernels(model, other):
    kernels, others = marked_kernels(model), marked_kernels(other)
    if not kernels:
        raise ValueError(
            "`build_model` must return a model with a layer of "
            "`keras_qpsbgd.layers` that is not frozen, such as `BinaryDense`. "
            f"Received: {[layer.name for layer in _keras.all_layers(model)]}"
        )
    shapes = [[tuple(w.shape) for w in m.weights] for m in (model, other)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "`build_model` must return the same network in every call. "
            f"Received: weights of shapes {shapes[0]}, then {shapes[1]}"
        )
    pairs = zip(kernels, others)
    if all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs):
        warnings.warn(
            "All seeds start from the same binary kernels: use initializers "
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
    most = 2 if shape[-1] == 1 else shape[-1]
    if len(shape) != 2 or num_classes > most:
        raise ValueError(
            "`build_model` must return a model with one logit for each class, "
            "or with one output for two classes; for other targets pass "
            f"`loss`. Received: outputs of shape {shape} for {num_classes} "
            "classes"
        )


def has_other_variables(model):
    """Whether there is something to train beside the binary kernels."""
    return len(model.trainable_variables) > len(marked_kernels(model))


def latent_scale(model):
    r"""How large latent weights are, by the widths of the binary layers.

    Glorot's initializer draws from \(\pm \sqrt{6 / (n + m)}\) for a layer of n
    inputs and m outputs; the geometric mean over the layers is returned.
    """
    logarithms = []
    for kernel in marked_kernels(model):
        shape = tuple(kernel.shape)
        outputs = shape[-1]
        inputs = shape[-2] if len(shape) > 1 else shape[-1]
        width = (inputs + outputs) * math.prod(shape[:-2])
        logarithms.append(0.5 * math.log(6.0 / width))
    return math.exp(sum(logarithms) / len(logarithms))
