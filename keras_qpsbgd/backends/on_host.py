"""Calls a host backend from inside a TensorFlow graph."""

import concurrent.futures
import time

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.errors import SolverError
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
            exception.
        progress: the `HostProgress` that is told what is being solved.
    """

    def __init__(self, backend, fallback, report, on_error, progress):
        self.backend = backend
        self.fallback = fallback
        self.report = report
        self.on_error = on_error
        self.progress = progress

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
        if self.backend.executor is None or len(tasks) == 1:
            return [self._solve(*task) for task in tasks]
        # These threads only wait for the executor's workers.
        with concurrent.futures.ThreadPoolExecutor(len(tasks)) as threads:
            return list(threads.map(lambda task: self._solve(*task), tasks))

    def _solve(self, qubo, seed, name):
        with self.progress.layer(name):
            return self._solve_layer(qubo, seed, name)

    def _solve_layer(self, qubo, seed, name):
        start = time.perf_counter()
        states, message, info = None, "", {}
        failed = fell_back = False
        try:
            solution = self.backend.solve(qubo, seed)
            states, info = solution.states, solution.info
        except Exception as error:  # solvers may raise anything
            failed = True
            info = getattr(error, "info", {})
            self._tell(error)
            message = _message(name, self.backend, error)
        if failed and self.fallback is not None:
            try:
                states = self.fallback.solve(qubo, seed).states
                message, fell_back = "", True
            except Exception as error:
                self._tell(error)
                message += "; " + _message(name, self.fallback, error)
        if states is None:
            states = np.zeros(qubo.fields.shape)
        count = {
            "seconds": time.perf_counter() - start,
            "info": info,
            "failed": failed,
            "fell_back": fell_back,
        }
        return states.astype(np.float32), message.encode(), count

    def _tell(self, error):
        self.progress.clear()  # a warning may be written
        on_error = self.on_error()
        if on_error is not None:
            on_error(error)


def _field_names(problem):
    if problem.couplings is None:
        return ("normalized_rows", "row_gradients", "fields", "offset")
    return ("couplings", "fields", "offset")


def _message(name, backend, error):
    kind = "" if isinstance(error, SolverError) else f"{type(error).__name__}: "
    return (
        f"SolverError: the backend `{backend.name}` failed on layer "
        f"`{name}`: {kind}{error}"
    )


def _fold(seed):
    """One non-negative int from the two of a TensorFlow seed."""
    first, second = (int(part) for part in seed)
    return (first * 1_000_003 + second) % (2**31 - 1)
