"""The QUBOs of a model for the gradient of given data."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import _memory
from keras_qpsbgd import ops
from keras_qpsbgd import recording
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers.gradient_scale import GradientScale
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

    The QUBOs are those that one training step with `QPSBGD` would solve if all
    samples were one batch: bit for bit with `run_eagerly=True`, and up to the
    rounding of differently optimized graphs otherwise. No variable of the
    model, its metrics or its optimizer changes, and no random number of its
    layers is used up.

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
            added up. `None` uses one batch, which also works for graphs.
            Defaults to `None`.
        optimizer: A `QPSBGD` (optional), whose gradient scale is used. A
            `LossScaleOptimizer` may wrap it. `None` uses the optimizer of the
            model. Defaults to `None`.

    Returns:
        A dictionary from the name of each layer to its `Qubo`. Frozen layers
        and layers without a gradient are left out. Layers with more than 256
        inputs have `normalized_rows`, one for each row of the data.

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
    """Computes the QUBOs of a model, repeatedly, with one traced function.

    Args:
        model: See `layer_qubos`.
        optimizer: See `layer_qubos`.

    Attributes:
        optimizer: The `QPSBGD`.
        marks: Dictionary from the name of each layer to its `BinaryKernel`.
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
        self._scale = GradientScale(
            self.optimizer.gradient_scale, self.optimizer.kappa
        )
        self._parts = _parts_function(
            model, optimizer, list(self.marks.values()), weakref.ref(self)
        )

    def qubos(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
    ) -> dict[str, Qubo]:
        """Computes the QUBOs. See `layer_qubos`."""
        sizes, batches = [], []
        with _unchanged(self._model, self.marks.values()):
            for data in _batches(x, y, sample_weight, batch_size):
                sizes.append(int(tf.nest.flatten(data[0])[0].shape[0]))
                batches.append(self._parts(*data))
        if not batches:
            raise ValueError(
                "`x` must contain at least one sample. Received: no data"
            )
        weights = _weights(self._model, sizes)
        qubos = {}
        for name in batches[0]:
            wide = self.marks[name].num_variables > recording.WIDE
            parts = [
                _weighted(part, weight)
                for batch, weight in zip(batches, weights)
                for part in batch[name]
            ]
            problem, statistics = _total(parts, wide)
            factor = self._scale.factor(problem, statistics, 1.0)
            qubos[name] = _qubo(ops.scale_problem(problem, factor), wide)
        return qubos


def find_qpsbgd(optimizer: Any) -> QPSBGD:
    """Returns the `QPSBGD`, which mixed precision wraps in another one."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, QPSBGD):
        raise ValueError(
            "`optimizer` must be a `QPSBGD`. If the model is compiled with "
            "another optimizer, or not compiled, pass one. Received: "
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
        mark = recording.mark_of(variable)
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


def _parts_function(model, optimizer, marks, owner):
    """Returns `_parts` as a function of the data, traced like `fit`.

    Args:
        owner: Weak reference to the object that frees what was traced.
    """

    def parts(x, y, sample_weight):
        found = _parts(model, optimizer, marks, x, y, sample_weight)
        _memory.free_with(owner())
        return found

    strategy = model.distribute_strategy
    function = parts
    if strategy.num_replicas_in_sync > 1:
        # Variables with copies can only be differentiated in a replica. All
        # replicas get the same data, and the first one answers.
        def function(x, y, sample_weight):
            found = strategy.run(parts, (x, y, sample_weight))
            return tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                found,
            )

    if model.run_eagerly:
        return function
    return tf.function(function, reduce_retracing=True)


def _parts(model, optimizer, marks, x, y, sample_weight):
    """Returns the problem and statistics of each call, by layer."""
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
        mark.name: [
            _part(ops.scale_call(call, unscale), mark)
            for call in _calls(gradient, mark)
        ]
        for gradient, mark in zip(gradients, marks)
        if gradient is not None
    }


@tf.autograph.experimental.do_not_convert
def _calls(gradient, mark):
    try:
        return recording.calls_of(gradient, mark)
    except recording.UnknownOrigin as error:
        raise ValueError(
            f"The QUBO of the layer `{mark.name}` is unknown, because its "
            f"gradient {error.reason}. {error.advice} Received: a model that "
            "`QPSBGD` cannot train"
        ) from error


def _part(call, mark):
    rows = ops.normalize(
        call.rows, call.row_gradients, call.kept, batch=call.batch
    )
    wide = mark.num_variables > recording.WIDE
    build = ops.rows_problem if wide else ops.gram_problem
    problem = build(rows.normalized_rows, rows.row_gradients)
    return problem, ops.statistics(rows)


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


def _weighted(part, weight):
    if weight == 1.0:
        return part
    problem, statistics = part
    largest = statistics.max_gradient * weight
    return (
        ops.scale_problem(problem, weight),
        statistics._replace(max_gradient=largest),
    )


def _total(parts, wide):
    """Adds up the problems and statistics of calls and batches."""
    if len(parts) == 1:
        return parts[0]
    problems, statistics = zip(*parts)
    total = ops.Statistics(
        tf.reduce_max([part.max_gradient for part in statistics]),
        *(tf.add_n([part[i] for part in statistics]) for i in range(1, 4)),
    )
    if wide:
        rows = tf.concat([p.normalized_rows for p in problems], axis=0)
        gradients = tf.concat([p.row_gradients for p in problems], axis=0)
        return ops.rows_problem(rows, gradients), total
    sums = (tf.add_n([p[i] for p in problems]) for i in range(3))
    return ops.Problem(*sums), total


def _qubo(problem, wide):
    if not wide:
        return Qubo(
            problem.couplings.numpy(),
            problem.fields.numpy(),
            problem.offset.numpy(),
        )
    return Qubo(
        None,
        problem.fields.numpy(),
        problem.offset.numpy(),
        problem.normalized_rows.numpy(),
        problem.row_gradients.numpy(),
    )


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


@contextlib.contextmanager
def _unchanged(model, marks):
    """Restores all variables, and what eager passes leave on kernels."""
    variables = list(_keras.variables_with_random_states(model))
    for metric in model.metrics:
        variables += metric.variables
    before = [tf.identity(tf.convert_to_tensor(v)) for v in variables]
    latest = [(mark.latest, list(mark.latest)) for mark in marks]
    try:
        yield
    finally:
        for variable, value in zip(variables, before):
            variable.assign(value)
        for passes, earlier in latest:
            passes.clear()
            passes.extend(earlier)
