"""Computes the QUBOs of a model for the gradient of given data."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers import memory
from keras_qpsbgd.qubo import Qubo

# Reductions of Keras losses, by how the losses of batches add up.
_MEANS = {"mean", "sum_over_batch_size", "auto"}
_SUMS = {"sum"}


def layer_qubos(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
) -> dict[str, Qubo]:
    """Computes the QUBO of each binary layer for the gradient of all data.

    The QUBOs follow the rule of the optimizer, and their gradient and couplings
    come only from the given data. They are those of the first step of `QPSBGD`
    if all samples were one batch. The variables of the model, its metrics and
    its optimizer do not change, and neither do the random states of its layers.

    Like a training step, the forward pass runs with `training=True`: batch
    normalization uses the statistics of the batch, and dropout is active. In
    legacy Keras, dropout without its own generator advances the global random
    state.

    Args:
        model: A built Keras model with binary layers, compiled with a loss.
        x: Inputs as in `fit`: an array, a tensor, or a list or dictionary of
            them. Or a `tf.data.Dataset` of batches `(x, y)` or
            `(x, y, sample_weight)`.
        y: Targets as in `fit` (optional). Must be `None` for a dataset.
            Defaults to `None`.
        sample_weight: Array of sample weights (optional). Must be `None` for a
            dataset. Defaults to `None`.
        batch_size: Integer (optional). The number of samples per forward and
            backward pass, to limit the memory. The gradients of the batches are
            added up. Defaults to `None`, which uses one batch and also works
            for graphs.
        optimizer: A `QPSBGD` (optional), whose `rule` and `kappa` are used. A
            `LossScaleOptimizer` may wrap it. Defaults to `None`, which uses the
            optimizer of the model.

    Returns:
        A dictionary that maps the name of each layer to its `Qubo`. Frozen
        layers and layers without a gradient are left out. As in training, the
        couplings of wide layers are block-diagonal.

    Raises:
        ValueError: If the model is not built or not compiled, if the optimizer
            is not a `QPSBGD`, or if the loss of several batches is neither a
            sum nor a mean over samples.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential(
            [keras.Input((4,)), kq.layers.BinaryDense(1, name="binary")]
        )
        model.compile(kq.QPSBGD(0.02), "mse")
        qubos = kq.analysis.layer_qubos(model, x, y)
        print(qubos["binary"].to_bqm())
        ```
    """
    gradient = FullGradient(model, optimizer)
    return gradient.qubos(x, y, sample_weight, batch_size)


class FullGradient:
    """Computes the QUBOs of a model, any number of times, with one trace.

    Args:
        model: See `layer_qubos`.
        optimizer: See `layer_qubos`.

    Attributes:
        optimizer: The `QPSBGD`.
        marks: Dictionary that maps the name of each layer to its
            `BinaryKernel`.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None = None,
    ) -> None:
        optimizer = optimizer or getattr(model, "optimizer", None)
        self.optimizer = find_qpsbgd(optimizer)
        self.marks = _marks(model)
        self._model = model
        with tf.init_scope(), model.distribute_strategy.scope():
            self._observers = {
                name: self._observer(mark) for name, mark in self.marks.items()
            }
        self._gradients = _gradients_function(
            model, optimizer, list(self.marks.values()), weakref.ref(self)
        )

    def _observer(self, mark):
        rule = self.optimizer.update_rule
        # All replicas see the same data.
        total = tf.Variable(
            tf.zeros(rule.couplings_shape(mark.num_variables)),
            trainable=False,
            aggregation=tf.VariableAggregation.MEAN,
        )
        return rule.row_sums(total)

    def qubos(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
    ) -> dict[str, Qubo]:
        """Computes the QUBOs. See `layer_qubos`."""
        for observer in self._observers.values():
            observer.clear()
        sizes, batches = [], []
        observers = {
            mark: self._observers[name] for name, mark in self.marks.items()
        }
        with _keras.unchanged(self._model), statistics.observing(observers):
            for data in _batches(x, y, sample_weight, batch_size):
                sizes.append(int(tf.nest.flatten(data[0])[0].shape[0]))
                batches.append(self._gradients(*data))
        if not batches:
            raise ValueError(
                "`x` must contain at least one sample. Received: no data"
            )
        weights = _weights(self._model, sizes)
        qubos = {}
        for name in batches[0]:
            gradient = tf.add_n(
                [
                    weight * batch[name]
                    for batch, weight in zip(batches, weights)
                ]
            )
            problems = self.optimizer.update_rule.first_problems(
                gradient, tf.convert_to_tensor(self._observers[name].total)
            )
            qubos[name] = _qubo(problems, gradient.shape[0])
        return qubos


def find_qpsbgd(optimizer: Any) -> QPSBGD:
    """Returns the `QPSBGD`, also if mixed precision has wrapped it."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, QPSBGD):
        raise ValueError(
            "`optimizer` must be a `QPSBGD`. Pass one if the model is compiled "
            "with another optimizer or not compiled. Received: "
            f"optimizer={optimizer!r}"
        )
    return inner


def _marks(model):
    """Returns the binary kernels of a model by the name of their layer."""
    if not model.built:
        raise ValueError(
            "`model` must be built. Call it on data, or give it an input "
            f"shape. Received: the model `{model.name}` without variables"
        )
    found: dict[str, Any] = {}
    for variable in model.trainable_variables:
        mark = statistics.mark_of(variable)
        if mark is None:
            continue
        if mark.name in found:
            raise ValueError(
                "The binary layers of `model` must have different names. "
                f"Received: two layers named {mark.name!r}"
            )
        found[mark.name] = mark
    if not found:
        raise ValueError(
            "`model` must have trainable binary layers. Received: "
            f"the model `{model.name}` with none"
        )
    return found


def _gradients_function(model, optimizer, marks, owner):
    """Returns `_gradients` as a function of the data, traced like `fit`.

    Args:
        owner: Weak reference to the object that frees what was traced.
    """

    def gradients(x, y, sample_weight):
        found = _gradients(model, optimizer, marks, x, y, sample_weight)
        memory.free_with(owner())
        return found

    strategy = model.distribute_strategy
    function = gradients
    if strategy.num_replicas_in_sync > 1:
        # Mirrored variables can only be differentiated in a replica. All
        # replicas get the same data, and the result of the first one is used.
        def function(x, y, sample_weight):
            found = strategy.run(gradients, (x, y, sample_weight))
            return tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                found,
            )

    if model.run_eagerly:
        return function
    return tf.function(function, reduce_retracing=True)


def _gradients(model, optimizer, marks, x, y, sample_weight):
    """Returns the gradient of each kernel as a matrix, by layer."""
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        loss = model.compute_loss(
            x=x, y=y, y_pred=outputs, sample_weight=sample_weight
        )
        loss = _keras.scale_loss(optimizer, loss)
    gradients = tape.gradient(loss, [mark.kernel for mark in marks])
    # Keras divides a loss by the number of replicas if a strategy is active.
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    unscale = replicas / _keras.scale_loss(optimizer, tf.constant(1.0))
    return {
        mark.name: unscale
        * tf.reshape(
            tf.cast(gradient, tf.float32),
            (mark.num_variables, mark.num_columns),
        )
        for gradient, mark in zip(gradients, marks)
        if gradient is not None
    }


def _weights(model, sizes):
    """Returns the factor of the gradient of each batch in the full gradient."""
    if len(sizes) == 1:
        return [1.0]
    losses = tf.nest.flatten(model.loss)
    reductions = {getattr(loss, "reduction", "mean") for loss in losses}
    if reductions <= _SUMS:
        return [1.0] * len(sizes)
    if reductions <= _MEANS:
        return [size / sum(sizes) for size in sizes]
    raise ValueError(
        "`batch_size` must be None for a loss that is neither a sum nor a mean "
        f"over samples. Received: losses with reduction {sorted(reductions)}"
    )


def _qubo(problems, n):
    """Joins the blocks of a layer with n inputs into one `Qubo`."""
    count = len(problems)
    size = sum(problem.fields.shape[0] for problem in problems)
    couplings = np.zeros((size, size), np.float32)
    fields = np.zeros((size, problems[0].fields.shape[1]), np.float32)
    for block, problem in enumerate(problems):
        couplings[block::count, block::count] = problem.couplings.numpy()
        fields[block::count] = problem.fields.numpy()
    return Qubo(couplings[:n, :n], fields[:n])


def _batches(x, y, sample_weight, batch_size):
    """Yields tuples `(x, y, sample_weight)` of tensors."""
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "`y` and `sample_weight` must be None if `x` is a dataset. "
                f"Received: y={type(y)}, sample_weight={type(sample_weight)}"
            )
        for data in x:
            yield keras.utils.unpack_x_y_sample_weight(data)
        return
    data = tf.nest.map_structure(_tensor, (x, y, sample_weight))
    if batch_size is None:
        yield data
        return
    size = tf.nest.flatten(data[0])[0].shape[0]
    for start in range(0, size, batch_size):
        yield tf.nest.map_structure(
            lambda part, start=start: (
                None if part is None else part[start : start + batch_size]
            ),
            data,
        )


def _tensor(value):
    """Converts data to a tensor. As in `fit`, float64 becomes float32."""
    if value is None or tf.is_tensor(value):
        return value
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(keras.backend.floatx())
    return tf.convert_to_tensor(array)
