"""Trains the columns of binary kernels one after the other."""

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.columns.tail import Tail
from keras_qpsbgd.columns.tail import binary_layers
from keras_qpsbgd.qubo import Qubo

DAMPINGS = (1.0, 4.0, 16.0)


@dataclasses.dataclass
class ColumnHistory:
    """What `fit_columns` did.

    Attributes:
        loss: List of floats. The loss on the batch before training and after
            each sweep.
        changed: List of integers. Number of columns that changed in each sweep.
        solves: Integer. Number of QUBOs that were solved.
        calls: Integer. Number of calls of the solver. A call of an annealer
            has one QUBO for each damping.
        qpu_seconds: Float. QPU time that the calls reported. Zero for solvers
            without a QPU.
        seconds: Float. Time that the training took.
    """

    loss: list[float]
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
    derivatives. It computes the loss of the network with each solution, and
    keeps the best one if it lowers the loss. Otherwise the column stays as it
    is, so the loss never rises. After a change, the next column sees the new
    gradient.

    Each visit of a column makes one call of the solver, with a QUBO for each
    damping. Columns do not share calls, because each of them needs the result
    of the one before.

    All samples are used at once. Use many more samples than weights, because
    the function minimizes the loss on these samples and nothing else. Only
    kernels of `BinaryDense` layers change, and they contain +1 and -1
    afterwards. Dropout and batch normalization behave as in inference, and
    penalties of regularizers are not part of the loss.

    Args:
        model: A built and compiled Sequential or functional `keras.Model` with
            one input and one output.
        x: Array. The inputs of all samples.
        y: Array. Their labels.
        sweeps: Integer. Number of times that each column is visited. Ends
            earlier if a sweep changes nothing. Defaults to `3`.
        dampings: Positive float or list of them, the values of \(\lambda\).
            `1.0` is enough for a single layer. Defaults to `(1.0, 4.0, 16.0)`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. The solver, as in `QPSBGD`. Defaults to
            `"native"`.
        max_reads: Integer. Number of reads per damping of which the loss is
            computed, those with the lowest energies. For annealers, which
            return many. Defaults to `1`.
        seed: Integer. The order of the columns and the seed of the backend.
            Defaults to `0`.
        on_sweep: Function (optional) of the number of the sweep and the loss.
            Called after each sweep. Training ends if it returns `True`.
            Defaults to `None`.
        verbose: Integer. `1` shows a progress bar and `0` shows nothing.
            Defaults to `1`.

    Returns:
        A `ColumnHistory`.

    Raises:
        ValueError: If an argument is invalid.
        BackendUnavailable: If the backend cannot solve a layer.
        SolverError: If the solver fails, and `BudgetExceeded` if its budget is
            spent. The columns found so far are kept.

    Example:
        ```python
        model.compile(loss="sparse_categorical_crossentropy")
        history = kq.fit_columns(model, x, y, sweeps=2, dampings=1.0)
        print(history.loss)
        ```
    """
    check_number("sweeps", sweeps, at_least=1, whole=True)
    check_number("max_reads", max_reads, at_least=1, whole=True)
    if isinstance(dampings, (int, float)):
        dampings = [dampings]
    dampings = list(dampings)
    if not dampings:
        raise ValueError(
            "`dampings` must contain at least one number. Received: dampings=[]"
        )
    for damping in dampings:
        check_number("dampings", damping, above=0)
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
    backend = backends.get(backend)
    layers = binary_layers(model)
    for layer in layers:
        backend.check(layer.kernel.shape[0], len(dampings))
    start = time.perf_counter()
    bar = None
    if verbose:
        columns = sum(layer.kernel.shape[1] for layer in layers)
        bar = keras.utils.Progbar(sweeps * columns, unit_name="column")
    history = ColumnHistory([])
    search = _ColumnSearch(backend, dampings, max_reads, seed, bar, history)
    tails = [Tail(model, layer, x, y) for layer in layers]
    for sweep in range(1, sweeps + 1):
        changed = sum(search.sweep(tail) for tail in tails)
        history.changed.append(changed)
        history.loss.append(search.loss)
        is_done = on_sweep is not None and on_sweep(sweep, search.loss) is True
        if is_done or not changed:
            break
    history.seconds = time.perf_counter() - start
    if bar is not None:
        bar.update(bar.target)
    return history


class _ColumnSearch:
    """Visits the columns of layers.

    Args:
        backend: A `Backend`.
        dampings: List of floats.
        max_reads: Integer.
        seed: Integer.
        bar: `keras.utils.Progbar`, or `None`.
        history: The `ColumnHistory`, in which solves are counted.
    """

    def __init__(self, backend, dampings, max_reads, seed, bar, history):
        self._backend = backend
        self._dampings = np.array(dampings)
        self._max_reads = max_reads
        self._random = np.random.default_rng(seed)
        self._bar = bar
        self._history = history
        self.loss = None

    def sweep(self, tail):
        """Visits all columns of a layer, and returns how many changed."""
        kernel = tf.convert_to_tensor(tail.layer.kernel).numpy()
        weights = np.where(kernel >= 0, 1.0, -1.0).astype(np.float32)
        rows = tail.rows()
        product = rows @ weights
        gram = rows.T @ rows
        self.loss = float(tail.loss(product))
        if not self._history.loss:
            self._history.loss.append(self.loss)
        changed = 0
        try:
            for column in self._random.permutation(weights.shape[1]):
                found = self._visit(tail, rows, product, gram, weights, column)
                if found is not None:
                    weights[:, column], product[:, column] = found
                    changed += 1
                if self._bar is not None:
                    self._bar.add(1, [("loss", self.loss)])
        finally:
            # Also after an error, so that nothing is lost.
            if changed:
                tail.layer.kernel.assign(weights)
        return changed

    def _visit(self, tail, rows, product, gram, weights, column):
        """Returns a better column and its product, or `None`."""
        before = weights[:, column]
        index = tf.constant(column, tf.int32)
        slopes, curvature = tail.derivatives(product, index)
        slopes, curvature = slopes.numpy(), float(curvature)
        if not np.isfinite(slopes).all() or not slopes.any():
            return None
        candidates = self._candidates(
            rows.T @ slopes, gram, max(curvature, 0.0), before
        )
        if not len(candidates):
            return None
        products = rows @ candidates.T
        losses = tail.losses_with(product, index, products).numpy()
        losses = np.where(np.isfinite(losses), losses, np.inf)
        best = int(losses.argmin())
        if not losses[best] < self.loss:
            return None
        self.loss = float(losses[best])
        return candidates[best], products[:, best]

    def _candidates(self, gradient, gram, curvature, before):
        """Returns different columns to try, of shape `(k, n)`."""
        # Divided by the damping, all dampings share their couplings.
        couplings = gram * (curvature / 2.0)
        fields = gradient[:, None] / self._dampings
        fields -= 2.0 * (couplings @ before)[:, None]
        qubo = Qubo(couplings, fields.astype(np.float32))
        start = np.repeat(before[:, None], len(self._dampings), axis=1)
        qubo.start = start.astype(np.int8)
        seed = int(self._random.integers(2**31))
        solution = self._backend.solve(qubo, seed)
        self._history.solves += len(self._dampings)
        self._history.calls += solution.info.get("calls", 1)
        microseconds = solution.info.get("qpu_access_time", 0.0)
        self._history.qpu_seconds += 1e-6 * microseconds
        found = [solution.states.T]
        if solution.samples is not None and self._max_reads > 1:
            order = np.argsort(solution.sample_energies, axis=0, kind="stable")
            for column, reads in enumerate(order[: self._max_reads].T):
                found.append(solution.samples[reads, :, column])
        found = np.unique(np.concatenate(found), axis=0)
        found = found[(found != before).any(axis=1)]
        return found.astype(np.float32)
