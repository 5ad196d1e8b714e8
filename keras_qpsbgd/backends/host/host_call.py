"""Calls a host backend from inside a TensorFlow graph."""

import concurrent.futures
import dataclasses
import threading
import time
from typing import Any
from typing import Optional

import numpy as np
import tensorflow as tf

from keras_qpsbgd._messages import reason
from keras_qpsbgd.backends.calls import Stopped
from keras_qpsbgd.backends.errors import BudgetExceeded
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.qubo import Qubo


@dataclasses.dataclass
class _Answer:
    """The answer of a backend for one layer.

    Attributes:
        states: float32 array (n, m), zero if no backend found states.
        message: Bytes. Empty unless all backends failed.
        count: Dictionary of arguments of `SolverReport.count`. `None` if the
            layer was skipped.
        solution: `Solution` of the backend that found the states, or `None`.
        info: Dictionary. `info` of the solution, and what went wrong.
    """

    states: np.ndarray
    message: bytes = b""
    count: Optional[dict[str, Any]] = None
    solution: Any = None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


class HostCall:
    """Solves the problems of all layers on the host.

    TensorFlow replaces an exception in a host callback with its own error.
    Therefore the callback does not raise. It passes the exception to `on_error`
    and returns a message.

    Args:
        backend: `Backend`. If it has a method `solve_layers`, it receives all
            layers at once. Otherwise the layers are solved one after the other,
            or in parallel if the backend has an executor.
        fallback: `Backend` (optional). Solves the layers on which `backend`
            failed.
        report: `SolverReport` to which the solves are added.
        on_error: Weak reference to a function that receives each exception, the
            name of the layer and a message.
        progress: `HostProgress` to update.
        stop_at_failure: Boolean. If True, the remaining layers are skipped, and
            not billed, after one has failed.
        recorder: Weak reference to the object that records the solutions (see
            `QPSBGD.recorder`), or `None`.
    """

    def __init__(
        self,
        backend,
        fallback,
        report,
        on_error,
        progress,
        stop_at_failure,
        recorder=None,
    ):
        self.backend = backend
        self.fallback = fallback
        self.report = report
        self.on_error = on_error
        self.progress = progress
        self.stop_at_failure = stop_at_failure
        self.recorder = recorder

    def __call__(self, problems, seeds, names, step):
        """Solves one problem per layer.

        Args:
            problems: List of `ops.Problem`.
            seeds: List of int32 tensors of shape (2,).
            names: Names of the layers, for messages and the report.
            step: Scalar int tensor. Number of the update, for the recorder.

        Returns:
            A tuple `(states, messages)` with one entry per layer. The message
            is empty on success. On failure the states are zero, so that no
            weight moves.
        """
        arrays, unpack = pack_problems(problems)
        # Without a recorder, nothing more is passed to the host.
        recorded = []
        if self.recorder is not None:
            recorded = [step, *(p.informative for p in problems)]

        def callback(seeds, *arrays):
            recorded_values = arrays[: len(recorded)]
            qubos = unpack(iter(arrays[len(recorded) :]))
            seeds = [_fold_seed(seed) for seed in seeds]
            with self.progress.step(len(names)):
                answers = self._solve_all(qubos, seeds, names)
            messages = [answer.message for answer in answers]
            if any(messages):
                # `fit` may end here without calling its callbacks.
                self.progress.watch(None)
            for name, answer in zip(names, answers):
                if answer.count is not None:
                    self.report.count(name, **answer.count)
            if recorded:
                ended = any(messages) and self.stop_at_failure
                self._record(names, qubos, answers, ended, *recorded_values)
            if self.stop_at_failure and any(messages):
                # Layers that share a call have the same error.
                first = next(filter(None, messages))
                messages = [first] + [b""] * (len(messages) - 1)
            states = [answer.states for answer in answers]
            return [*states, np.array(messages)]

        *states, messages = tf.numpy_function(
            callback,
            [tf.stack(seeds), *recorded, *arrays],
            [tf.float32] * len(problems) + [tf.string],
        )
        for state, problem in zip(states, problems):
            state.set_shape(problem.fields.shape)
        messages.set_shape((len(problems),))
        return states, messages

    def _solve_all(self, qubos, seeds, names):
        tasks = list(zip(qubos, seeds, names))
        if hasattr(self.backend, "solve_layers"):
            return self._solve_together(tasks)
        return self._solve_apart(tasks)

    def _solve_together(self, tasks):
        """Passes all layers to the backend, which may share calls."""
        start = time.perf_counter()
        qubos, seeds, names = zip(*tasks)
        # With a fallback, a failure of the backend does not end the step.
        stop_at_failure = self.stop_at_failure and self.fallback is None
        with self.progress.layer(names[0], len(tasks)):
            try:
                found = self.backend.solve_layers(qubos, seeds, stop_at_failure)
            except Exception as error:  # solvers may raise anything
                found = [error] * len(tasks)
        seconds = (time.perf_counter() - start) / len(tasks)
        stop = threading.Event()
        return [
            self._finish(*task, stop, result, seconds, is_shared=index > 0)
            for index, (task, result) in enumerate(zip(tasks, found))
        ]

    def _solve_apart(self, tasks):
        stop = threading.Event()

        def solve(task):
            qubo, seed, name = task
            with self.progress.layer(name):
                if stop.is_set():
                    return _Answer(_zero_states(qubo))
                start = time.perf_counter()
                try:
                    found = self.backend.solve(qubo, seed)
                except Exception as error:  # solvers may raise anything
                    found = error
                seconds = time.perf_counter() - start
                return self._finish(qubo, seed, name, stop, found, seconds)

        if self.backend.executor is None or len(tasks) == 1:
            return [solve(task) for task in tasks]
        # These threads only wait for the workers of the executor.
        with concurrent.futures.ThreadPoolExecutor(len(tasks)) as threads:
            return list(threads.map(solve, tasks))

    def _finish(self, qubo, seed, name, stop, found, seconds, is_shared=False):
        """Applies the policy `on_failure` to the result for one layer.

        Args:
            qubo: `Qubo` of the layer.
            seed: Integer.
            name: String. Name of the layer.
            stop: `threading.Event` to set if training cannot go on.
            found: `Solution` or exception.
            seconds: Float. Time that the backend took.
            is_shared: Boolean. Whether an earlier layer counts the call, if
                the backend does not count its calls itself.
        """
        start = time.perf_counter()
        info = getattr(found, "info", None) or {}
        if is_shared and "calls" not in info:
            info = {**info, "shared_calls": 1}
        solution, message, extra = None, "", {}
        failed = fell_back = False
        if not isinstance(found, Exception):
            solution = found
        elif not isinstance(found, Stopped):
            failed = True
            message = _message(name, self.backend, found)
            # Only the type, because a message may contain anything.
            extra["error"] = type(found).__name__
            self._report_error(found, name, message)
        elif not info.get("calls"):  # nothing was sent for this layer
            return _Answer(_zero_states(qubo))
        if failed and self.fallback is not None and not stop.is_set():
            try:
                solution = self.fallback.solve(qubo, seed)
                message, fell_back = "", True
                extra["fallback"] = self.fallback.name
            except Exception as error:
                message = "; ".join(
                    [reason(message), _message(name, self.fallback, error)]
                )
                self._report_error(error, name, message)
        if message and self.stop_at_failure:
            stop.set()
        count = {
            "seconds": seconds + time.perf_counter() - start,
            "info": info,
            "failed": failed,
            "fell_back": fell_back,
            "energies": None if solution is None else solution.energies,
        }
        return _Answer(
            _zero_states(qubo)
            if solution is None
            else solution.states.astype(np.float32),
            # An error message may contain text that UTF-8 cannot encode.
            message.encode(errors="backslashreplace"),
            count,
            solution,
            {**(info if solution is None else solution.info), **extra},
        )

    def _record(self, names, qubos, answers, ended, step, *applied):
        """Records a step, or only why it ended."""
        recorder = self.recorder()
        if recorder is None:
            return
        step = int(step)
        errors = {answer.info.get("error") for answer in answers}
        if BudgetExceeded.__name__ in errors:
            recorder.budget_spent(step)
        if ended:
            return
        for name, qubo, answer, mask in zip(names, qubos, answers, applied):
            if recorder.wants(step, name):
                solution = answer.solution
                recorder.record(
                    step,
                    name,
                    qubo,
                    np.where(mask, answer.states, 0),
                    None if solution is None else solution.samples,
                    None if solution is None else solution.sample_energies,
                    answer.info,
                )

    def _report_error(self, error, name, message):
        on_error = self.on_error()
        if on_error is not None:
            on_error(error, name, message)


def _zero_states(qubo):
    """Returns states that do not move any weight."""
    return np.zeros(qubo.fields.shape, np.float32)


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


def pack_problems(problems):
    """Lists the tensors from which the host builds the QUBOs of all layers.

    A problem without couplings becomes a QUBO whose couplings are zero.

    Args:
        problems: List of `ops.Problem`.

    Returns:
        A tuple `(tensors, unpack)`. The function `unpack` turns an iterator
        over the values of the tensors into a list of `Qubo`.
    """
    names = [_field_names(problem) for problem in problems]
    tensors = [
        getattr(problem, name)
        for problem, layer in zip(problems, names)
        for name in layer
    ]

    def unpack(arrays):
        qubos = []
        for layer in names:
            values = {name: next(arrays) for name in layer}
            start = values.pop("start", None)
            if "couplings" not in values:
                size = len(values["fields"])
                values["couplings"] = np.zeros((size, size), np.float32)
            qubo = Qubo(**values)
            qubo.start = None if start is None else start.astype(np.int8)
            qubos.append(qubo)
        return qubos

    return tensors, unpack


def _field_names(problem):
    names = ("couplings", "fields", "start")
    return [name for name in names if getattr(problem, name) is not None]
