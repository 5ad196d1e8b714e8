"""Solves the QUBOs of single columns and keeps what lowers the loss."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import ops

# The dampings of a column are multiplied by this factor if its QUBOs propose no
# change, and divided by it if no proposed change lowers the loss. Otherwise the
# next visit would solve the same QUBOs again.
DAMPING_FACTOR = 0.7
# Smaller gains are rounding errors of the loss.
ROUNDING = 1e-6


class ColumnVisitor:
    """Visits the columns of layers.

    Args:
        backend: A `Backend`.
        dampings: List of floats.
        max_reads: Integer.
        seed: Integer.
        bar: `keras.utils.Progbar`, or `None`.
        history: The `ColumnHistory` in which solves and calls are counted.
    """

    def __init__(self, backend, dampings, max_reads, seed, bar, history):
        self._backend = backend
        self._dampings = np.array(dampings, "float64")
        self._max_reads = max_reads
        self._random = np.random.default_rng(seed)
        self._bar = bar
        self._history = history
        self._factors = {}
        self._visited = 0
        self.loss = None

    def sweep(self, tail, samples):
        """Visits all columns of a layer.

        Returns:
            A tuple of the loss before the sweep and the number of columns that
            changed.
        """
        rows, weights, before = tail.begin(samples)
        self.loss = before
        gram = rows.T @ rows
        # A backend in the graph needs a `Qubo` only for several reads.
        in_graph = isinstance(self._backend, GraphBackend)
        in_graph = in_graph and self._max_reads == 1
        shared = tf.constant(gram) if in_graph else None
        factors = self._factors.setdefault(
            tail.layer.name, np.ones(weights.shape[1])
        )
        changed = 0
        try:
            for column in self._random.permutation(weights.shape[1]):
                changed += self._visit(
                    tail, rows, gram, shared, weights, factors, column
                )
                self._visited += 1
                if self._bar is not None:
                    self._bar.add(1, [("loss", self.loss)])
        finally:
            # Also after an error, so that nothing is lost.
            if changed:
                tail.layer.kernel.assign(weights)
        return before, changed

    def end_bar(self):
        """Ends the line of the progress bar if the last column has not."""
        if self._bar is not None and 0 < self._visited < self._bar.target:
            self._bar.update(self._visited, finalize=True)

    def _visit(self, tail, rows, gram, shared, weights, factors, column):
        """Visits a column and returns whether it changed."""
        slopes, curvature = tail.derivatives(column)
        if not np.isfinite(slopes).all() or not slopes.any():
            return False
        before = weights[:, column]
        dampings = factors[column] * self._dampings
        fields = _fields(rows.T @ slopes, gram, curvature, before, dampings)
        candidates = self._candidates(gram, shared, fields, before)
        found = self._best(tail, rows, before, column, candidates)
        if found is not None:
            weights[:, column] = found
        elif len(candidates):
            factors[column] /= DAMPING_FACTOR
        else:
            factors[column] *= DAMPING_FACTOR
        return found is not None

    def _best(self, tail, rows, before, column, candidates):
        """Returns the best candidate if it lowers the loss, or `None`.

        In the first case, also updates the loss and the product of `tail`.
        """
        if not len(candidates):
            return None
        products = np.stack(
            [
                tail.product(column) + _difference(rows, before, candidate)
                for candidate in candidates
            ],
            axis=1,
        )
        losses = tail.losses(column, products)
        losses = np.where(np.isfinite(losses), losses, np.inf)
        best = int(losses.argmin())
        if not losses[best] < self.loss - ROUNDING * abs(self.loss):
            return None
        self.loss = float(losses[best])
        tail.change(column, products[:, best])
        return candidates[best]

    def _candidates(self, gram, shared, fields, before):
        """Returns the distinct columns to try, of shape `(k, n)`."""
        seed = int(self._random.integers(2**31))
        start = np.repeat(before[:, None], fields.shape[1], axis=1)
        self._history.solves += fields.shape[1]
        if shared is not None:
            problem = ops.Problem(
                couplings=shared,
                fields=tf.constant(fields),
                start=tf.constant(start),
            )
            seed = tf.constant([seed, 0], tf.int32)
            found = self._backend.solve_in_graph(problem, seed).numpy().T
            self._history.calls += 1
        else:
            qubo = Qubo(gram, fields)
            qubo.start = start.astype(np.int8)
            found = self._reads(self._backend.solve(qubo, seed))
        # Remove duplicates. A dictionary is faster than `np.unique`.
        states = {row.astype(np.int8).tobytes(): row for row in found}
        states.pop(before.astype(np.int8).tobytes(), None)
        return np.array(list(states.values()), np.float32)

    def _reads(self, solution):
        """Counts the calls of a solution and returns its best reads."""
        self._history.calls += solution.info.get("calls", 1)
        microseconds = solution.info.get("qpu_access_time", 0.0)
        self._history.qpu_seconds += 1e-6 * microseconds
        found = [solution.states.T]
        if solution.samples is not None and self._max_reads > 1:
            order = np.argsort(solution.sample_energies, axis=0, kind="stable")
            for column, reads in enumerate(order[: self._max_reads].T):
                found.append(solution.samples[reads, :, column])
        return np.concatenate(found)


def _difference(rows, before, after):
    """Returns the change of the product with `rows`, of shape `(B,)`."""
    # Usually, only a few weights change.
    flips = np.flatnonzero(before != after)
    return rows[:, flips] @ (after - before)[flips]


def _fields(gradient, gram, curvature, before, dampings):
    r"""Returns the fields of the QUBOs of all dampings, of shape `(n, k)`.

    Divided by \(\lambda c / 2\), the QUBOs of all columns and dampings have the
    couplings \(X^T X\).
    """
    # Below this curvature, only the signs of the gradient matter anyway.
    least = (
        1e-6 * np.abs(gradient).max() / max(np.abs(gram).sum(1).max(), 1e-30)
    )
    scale = dampings * max(curvature, least) / 2.0
    fields = gradient[:, None] / scale - 2.0 * (gram @ before)[:, None]
    return fields.astype(np.float32)
