"""Calls a host backend from inside a TensorFlow graph."""

import concurrent.futures
import threading
import time

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.host.parallel import Stopped
from keras_qpsbgd.backends.host.parallel import stopping
from keras_qpsbgd.qubo import Qubo


class HostCall:
    """Solves the problems of all layers on the host.

    TensorFlow turns an exception in a host callback into an error of its own,
    so the callback returns a message instead and keeps the exception.

    Args:
        backend: a `Backend`. With an executor the layers are solved in
            parallel, otherwise one after the other.
        fallback: the `Backend` that solves what `backend` failed to, or `None`.
        report: the `SolverReport` in which solves are counted.
        on_error: weak reference to a function that is called with each
            exception, the name of the layer and a message.
        progress: the `HostProgress` that is told what is being solved.
        stop_at_failure: whether the remaining layers are left out, and not
            paid for, once one has failed.
    """

    def __init__(
        self, backend, fallback, report, on_error, progress, stop_at_failure
    ):
        self.backend = backend
        self.fallback = fallback
        self.report = report
        self.on_error = on_error
        self.progress = progress
        self.stop_at_failure = stop_at_failure

    def __call__(self, problems, seeds, names):
        """States of all layers and a message for each, empty if it went well.

        On failure the states are zero, so that nothing moves.

        Args:
            problems: list of `ops.Problem`.
            seeds: list of int32 tensors of shape (2,).
            names: names of the layers, for messages and the report.
        """
        fields = [_field_names(problem) for problem in problems]

        def callback(seeds, *arrays):
            arrays = iter(arrays)
            qubos = []
            for layer in fields:
                given = {field: next(arrays) for field in layer}
                qubos.append(Qubo(given.pop("couplings", None), **given))
            seeds = [_fold(seed) for seed in seeds]
            with self.progress.step(len(names)):
                answers = self._solve_all(qubos, seeds, names)
            states, messages, counts = zip(*answers)
            if any(messages):
                # `fit` may end here, without a word to its callbacks.
                self.progress.watch(None)
            for name, count in zip(names, counts):
                if count is not None:
                    self.report.count(name, **count)
            return [*states, np.array(messages)]

        arrays = [
            getattr(problem, field)
            for problem, layer in zip(problems, fields)
            for field in layer
        ]
        *states, messages = tf.numpy_function(
            callback,
            [tf.stack(seeds), *arrays],
            [tf.float32] * len(problems) + [tf.string],
        )
        for state, problem in zip(states, problems):
            state.set_shape(problem.fields.shape)
        messages.set_shape((len(problems),))
        return states, messages

    def _solve_all(self, qubos, seeds, names):
        tasks = list(zip(qubos, seeds, names))
        stop = threading.Event()

        def solve(task):
            with self.progress.layer(task[-1]), stopping(stop):
                return self._solve_layer(*task, stop)

        if self.backend.executor is None or len(tasks) == 1:
            return [solve(task) for task in tasks]
        # These threads only wait for the executor's workers.
        with concurrent.futures.ThreadPoolExecutor(len(tasks)) as threads:
            return list(threads.map(solve, tasks))

    def _solve_layer(self, qubo, seed, name, stop):
        if stop.is_set():
            return _nothing(qubo), b"", None
        start = time.perf_counter()
        states, message, info = None, "", {}
        failed = fell_back = False
        try:
            solution = self.backend.solve(qubo, seed)
            states, info = solution.states, solution.info
        except Exception as error:  # solvers may raise anything
            info = getattr(error, "info", {})
            failed = not isinstance(error, Stopped)
            if failed:
                message = _message(name, self.backend, error)
                self._tell(error, name, message)
        if failed and self.fallback is not None:
            try:
                states = self.fallback.solve(qubo, seed).states
                message, fell_back = "", True
            except Exception as error:
                message += "; " + _message(name, self.fallback, error)
                self._tell(error, name, message)
        if message and self.stop_at_failure:
            stop.set()
        if states is None:
            states = _nothing(qubo)
        count = {
            "seconds": time.perf_counter() - start,
            "info": info,
            "failed": failed,
            "fell_back": fell_back,
        }
        # The text of an error may hold what UTF-8 cannot.
        message = message.encode(errors="backslashreplace")
        return states.astype(np.float32), message, count

    def _tell(self, error, name, message):
        self.progress.clear()  # a warning may be written
        on_error = self.on_error()
        if on_error is not None:
            on_error(error, name, message)


def _nothing(qubo):
    """States that move nothing."""
    return np.zeros(qubo.fields.shape, np.float32)


def _field_names(problem):
    if problem.couplings is None:
        return ("normalized_rows", "row_gradients", "fields", "offset")
    return ("couplings", "fields", "offset")


def _message(name, backend, error):
    kind = "" if type(error) is SolverError else f"{type(error).__name__}: "
    try:
        text = str(error)
    except Exception:  # a solver's own type may fail in any way
        text = "(no message)"
    return (
        f"SolverError: the backend `{backend.name}` failed on layer "
        f"`{name}`: {kind}{text}"
    )


def _fold(seed):
    """One non-negative int from the two of a TensorFlow seed."""
    first, second = (int(part) for part in seed)
    return (first * 1_000_003 + second) % (2**31 - 1)
