"""Trains the columns of binary kernels one after the other."""

import dataclasses
import numbers
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.columns.tail import tail_of
from keras_qpsbgd.columns.visitor import ColumnVisitor
from keras_qpsbgd.columns.wiring import Wiring
from keras_qpsbgd.columns.wiring import binary_layers

DAMPINGS = (1.0, 4.0, 16.0)
# Training ends after this many sweeps without a change.
UNCHANGED = 3


@dataclasses.dataclass
class ColumnHistory:
    """The history of one call of `fit_columns`.

    Attributes:
        loss: List of floats. The loss before training and after each sweep. If
            `batch_size` is given, each value is computed on the samples of its
            sweep.
        before: List of floats. The loss before each sweep, on the samples of
            that sweep.
        changed: List of integers. Number of columns that changed in each sweep.
        solves: Integer. Number of QUBOs that were solved.
        calls: Integer. Number of solver calls. A call to an annealer contains
            one QUBO per damping.
        qpu_seconds: Float. QPU time in seconds, as reported by the solver. Zero
            for solvers without a QPU.
        seconds: Float. Training time in seconds.
    """

    loss: list[float] = dataclasses.field(default_factory=list)
    before: list[float] = dataclasses.field(default_factory=list)
    changed: list[int] = dataclasses.field(default_factory=list)
    solves: int = 0
    calls: int = 0
    qpu_seconds: float = 0.0
    seconds: float = 0.0


def fit_columns(
    model: Any,
    x: Any,
    y: Any,
    *,
    sweeps: int = 3,
    dampings: float | Sequence[float] = DAMPINGS,
    backend: BackendLike = "native",
    batch_size: int | None = None,
    sample_weight: Any = None,
    max_reads: int = 1,
    seed: int = 0,
    on_sweep: Callable[[int, float], Any] | None = None,
    verbose: int = 1,
) -> ColumnHistory:
    r"""Trains binary layers column by column, on one large batch.

    For each column \(w\) of each `BinaryDense` layer, this function solves

    $$\min_{w' \in \{-1,+1\}^n} g^T (w' - w)
      + \frac{\lambda c}{2} (w' - w)^T X^T X (w' - w)$$

    for several dampings \(\lambda\), where \(X\) are the inputs of the layer,
    \(g\) is the gradient of the loss and \(c\) the mean of its second
    derivatives. It computes the loss of the network with each solution and
    keeps the best one if it lowers the loss. Otherwise the column does not
    change, so the loss never rises. After a change, the next column uses the
    new gradient.

    If all solutions are equal to the current column, the next visit multiplies
    the dampings of this column by 0.7. If there are other solutions but none
    lowers the loss, the next visit divides them by 0.7.

    Each visit to a column calls the solver once, with one QUBO per damping. If
    the layer is too wide for the chip of an annealer, it takes several calls.
    Columns cannot share a call, because each one depends on the result of the
    previous one.

    Each sweep uses all samples at once, or `batch_size` of them. Use many more
    samples than a column has weights, because a sweep only minimizes the loss
    on these samples. Only the kernels of `BinaryDense` layers change. A kernel
    that has changed contains only +1 and -1. Dropout and batch normalization
    behave as in inference, and regularization penalties are not part of the
    loss.

    Args:
        model: A built and compiled Sequential or functional `keras.Model` with
            one input and one output.
        x: Array. The inputs of all samples.
        y: Array. The labels of all samples.
        sweeps: Integer. Number of visits to each column. Training ends early if
            three sweeps in a row change nothing. Defaults to `3`.
        dampings: Positive float or list of positive floats. The values of
            \(\lambda\). `1.0` suits single layers and small networks, and
            larger values suit wide layers. On an annealer, all values share
            one call. With other solvers, three values need three times as many
            solves as one. Defaults to `(1.0, 4.0, 16.0)`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. The solver, as in `QPSBGD`. Defaults to
            `"native"`.
        batch_size: Integer (optional). Number of samples per sweep. Each sweep
            draws new samples. Within a sweep, the loss on its samples never
            rises, but the next sweep may start with a higher loss on its own
            samples. Defaults to `None`, which uses all samples.
        sample_weight: Array (optional). The weights of the samples in the loss.
            Defaults to `None`.
        max_reads: Integer. Number of reads per damping for which the loss is
            computed. The reads with the lowest energies are used. Useful for
            annealers, which return many reads. Defaults to `1`.
        seed: Integer. Seed for the order of the columns, the samples of each
            sweep, and the backend. Defaults to `0`.
        on_sweep: Function (optional). Called after each sweep with the number
            of the sweep and the loss. Training ends if it returns `True`.
            Defaults to `None`.
        verbose: Integer. `1` shows a progress bar and `0` shows nothing.
            Defaults to `1`.

    Returns:
        A `ColumnHistory`.

    Raises:
        ValueError: If an argument is invalid.
        BackendUnavailable: If the backend cannot solve a layer.
        SolverError: If the solver fails. Its subclass `BudgetExceeded` is
            raised if the budget is spent. The model keeps the columns found so
            far, and `error.info["history"]` is the `ColumnHistory` up to that
            point.

    Example:
        ```python
        model.compile(loss="sparse_categorical_crossentropy")
        history = kq.fit_columns(model, x, y, sweeps=2, dampings=1.0)
        print(history.loss)
        ```
    """
    check_number("sweeps", sweeps, at_least=1, whole=True)
    check_number("max_reads", max_reads, at_least=1, whole=True)
    check_number("seed", seed, at_least=0, whole=True)
    dampings = _checked_dampings(dampings)
    samples = _checked_samples(x, y, sample_weight)
    if batch_size is not None:
        check_number("batch_size", batch_size, at_least=1, whole=True)
    backend = backends.get(backend)
    layers = binary_layers(model)
    for layer in layers:
        backend.check(*layer.kernel.shape)
    start = time.perf_counter()
    bar = None
    if verbose:
        columns = sum(layer.kernel.shape[1] for layer in layers)
        bar = keras.utils.Progbar(
            sweeps * columns, stateful_metrics=["loss"], unit_name="column"
        )
    history = ColumnHistory()
    visitor = ColumnVisitor(backend, dampings, max_reads, seed, bar, history)
    wiring = Wiring(model)
    tails = [tail_of(model, layer, wiring) for layer in layers]
    random = np.random.default_rng([seed, 1])
    for sweep in range(1, sweeps + 1):
        batch = _batch(samples, batch_size, random)
        try:
            counts = [visitor.sweep(tail, batch) for tail in tails]
        except BaseException as error:
            visitor.end_bar()
            history.seconds = time.perf_counter() - start
            if isinstance(error, SolverError):
                error.info = {**error.info, "history": history}
            raise
        history.changed.append(sum(changed for _, changed in counts))
        history.before.append(counts[0][0])
        history.loss += (
            [visitor.loss] if sweep > 1 else [counts[0][0], visitor.loss]
        )
        if on_sweep is not None and on_sweep(sweep, visitor.loss) is True:
            break
        if sweep >= UNCHANGED and not any(history.changed[-UNCHANGED:]):
            break
    visitor.end_bar()
    history.seconds = time.perf_counter() - start
    return history


def _checked_dampings(dampings):
    """Returns a list of positive numbers."""
    values = [dampings] if isinstance(dampings, numbers.Real) else dampings
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = []
    values = list(values)
    if not values or not all(
        isinstance(value, numbers.Real)
        and not isinstance(value, bool)
        and 0 < value < float("inf")
        for value in values
    ):
        raise ValueError(
            "`dampings` must be a positive number or a non-empty list of "
            f"positive numbers. Received: dampings={dampings!r}"
        )
    return values


def _checked_samples(x, y, sample_weight):
    """Returns a tuple of inputs, labels and weights."""
    if not hasattr(x, "shape") or not hasattr(y, "shape"):
        raise ValueError(
            "`x` and `y` must be arrays. Received: "
            f"{type(x).__name__} and {type(y).__name__}"
        )
    if len(x) != len(y):
        raise ValueError(
            "`x` and `y` must have the same number of samples. "
            f"Received: {len(x)} and {len(y)}"
        )
    if sample_weight is None:
        return x, y, None
    sample_weight = np.asarray(sample_weight, "float32")
    if sample_weight.shape != (len(x),):
        raise ValueError(
            f"`sample_weight` must have shape {(len(x),)}. "
            f"Received: sample_weight.shape={sample_weight.shape}"
        )
    return x, y, sample_weight


def _batch(samples, batch_size, random):
    """Returns some of the samples, or all of them."""
    count = len(samples[0])
    if batch_size is None or batch_size >= count:
        return samples
    chosen = np.sort(random.choice(count, batch_size, replace=False))
    return tuple(
        None if part is None else np.asarray(part)[chosen] for part in samples
    )
