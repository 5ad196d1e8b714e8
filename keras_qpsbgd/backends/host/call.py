"""Calls a host backend from inside a TensorFlow graph."""

import concurrent.futures
import threading
import time

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.host.parallel import Stopped
from keras_qpsbgd.backends.host.parallel import stop_on
from keras_qpsbgd.qubo import Qubo


class HostCall:
    """Solves the problems of all layers on the host.

    TensorFlow replaces an exception in a host callback with its own error.
    Therefore the callback does not raise. It passes the exception to `on_error`
    and returns a message.

    Args:
        backend: `Backend`. With an executor, the layers are solved in parallel,
            otherwise one after the other.
        fallback: `Backend` (optional). Solves the layers on which `backend`
            failed.
        report: `SolverReport` to which the solves are added.
        on_error: Weak reference to a function that receives each exception, the
            name of the layer and a message.
        progress: `HostProgress` to update.
        stop_at_failure: Boolean. If True, the remaining layers are skipped, and
            not paid for, after one has failed.
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
        """Solves one problem per layer.

        Args:
            problems: List of `ops.Problem`.
            seeds: List of int32 tensors of shape (2,).
            names: Names of the layers, for messages and the report.

        Returns:
            A tuple `(states, messages)` with one entry per layer. The message
            is empty on success. On failure the states are zero, so that no
            weight moves.
        """
        fields = [_field_names(problem) for problem in problems]

        def callback(seeds, *arrays):
            arrays = iter(arrays)
            qubos = []
            for layer in fields:
                values = {field: next(arrays) for field in layer}
                qubos.append(Qubo(values.pop("couplings", None), **values))
            seeds = [_fold_seed(seed) for seed in seeds]
            with self.progress.step(len(names)):
                answers = self._solve_all(qubos, seeds, names)
            states, messages, counts = zip(*answers)
            if any(messages):
                # `fit` may end here without calling its callbacks.
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
            with self.progress.layer(task[-1]), stop_on(stop):
                return self._solve_layer(*task, stop)

        if self.backend.executor is None or len(tasks) == 1:
            return [solve(task) for task in tasks]
        # These threads only wait for the workers of the executor.
        with concurrent.futures.ThreadPoolExecutor(len(tasks)) as threads:
            return list(threads.map(solve, tasks))

    def _solve_layer(self, qubo, seed, name, stop):
        if stop.is_set():
            return _zero_states(qubo), b"", None
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
                self._report_error(error, name, message)
        if failed and self.fallback is not None:
            try:
                states = self.fallback.solve(qubo, seed).states
                message, fell_back = "", True
            except Exception as error:
                message += "; " + _message(name, self.fallback, error)
                self._report_error(error, name, message)
        if message and self.stop_at_failure:
            stop.set()
        if states is None:
            states = _zero_states(qubo)
        count = {
            "seconds": time.perf_counter() - start,
            "info": info,
            "failed": failed,
            "fell_back": fell_back,
        }
        # An error message may contain text that UTF-8 cannot encode.
        message = message.encode(errors="backslashreplace")
        return states.astype(np.float32), message, count

    def _report_error(self, error, name, message):
        self.progress.clear()  # `on_error` may print a warning
        on_error = self.on_error()
        if on_error is not None:
            on_error(error, name, message)


def _zero_states(qubo):
    """Returns states that do not move any weight."""
    return np.zeros(qubo.fields.shape, np.float32)


def _field_names(problem):
    if problem.couplings is None:
        return ("normalized_rows", "row_gradients", "fields", "offset")
    return ("couplings", "fields", "offset")


def _message(name, backend, error):
    kind = "" if type(error) is SolverError else f"{type(error).__name__}: "
    try:
        text = str(error)
    except Exception:  # `__str__` of a custom exception may raise anything
        text = "(no message)"
    return (
        f"SolverError: the backend `{backend.name}` failed on layer "
        f"`{name}`: {kind}{text}"
    )


def _fold_seed(seed):
    """Combines the two integers of a TensorFlow seed into one, at least 0."""
    first, second = (int(part) for part in seed)
    return (first * 1_000_003 + second) % (2**31 - 1)
