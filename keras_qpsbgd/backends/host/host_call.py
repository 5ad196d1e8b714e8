"""Calls a host backend from inside a TensorFlow graph."""

import concurrent.futures
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
from keras_qpsbgd.backends.errors import info_of
from keras_qpsbgd.qubo import Qubo


class _Layer:
    """The problem of one layer, and the results of the backends.

    Attributes:
        states: float32 array (n, m), zero if no backend found states.
        message: String. Empty unless all backends failed.
        count: Dictionary of arguments of `SolverReport.count`. `None` if the
            layer was skipped.
        solution: `Solution` of the backend that found the states, or `None`.
        info: Dictionary. `info` of the solution, and what went wrong.
    """

    def __init__(self, name, qubo, seed):
        self.name = name
        self.qubo = qubo
        first, second = (int(part) for part in seed)
        self.seed = (first * 1_000_003 + second) % (2**31 - 1)
        self.states = np.zeros(qubo.fields.shape, np.float32)
        self.message = ""
        self.count: Optional[dict[str, Any]] = None
        self.solution: Any = None
        self.info: dict[str, Any] = {}


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
        stop_at_failure: Boolean. If True, the remaining layers are skipped
            after one has failed, so that they are not billed.
        recorder: Weak reference to the object that records the solutions, see
            `QPSBGD.recorder` (optional). Defaults to `None`, which records
            nothing.
    """

    def __init__(
        self,
        backend,
        fallback,
        report,
        on_error,
        stop_at_failure,
        recorder=None,
    ):
        self.backend = backend
        self.fallback = fallback
        self.report = report
        self.on_error = on_error
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
            layers = [_Layer(*values) for values in zip(names, qubos, seeds)]
            start = time.perf_counter()
            if hasattr(self.backend, "solve_layers"):
                self._solve_together(layers)
            else:
                self._solve_apart(layers)
            self.report.count_step(time.perf_counter() - start)
            for layer in layers:
                if layer.count is not None:
                    self.report.count(layer.name, **layer.count)
            messages = [layer.message for layer in layers]
            ended = any(messages) and self.stop_at_failure
            if recorded:
                self._record(layers, ended, *recorded_values)
            if ended:
                # Layers that share a call have the same error.
                first = next(filter(None, messages))
                messages = [first] + [""] * (len(messages) - 1)
            # An error message may contain text that UTF-8 cannot encode.
            messages = [m.encode(errors="backslashreplace") for m in messages]
            return [*(layer.states for layer in layers), np.array(messages)]

        *states, messages = tf.numpy_function(
            callback,
            [tf.stack(seeds), *recorded, *arrays],
            [tf.float32] * len(problems) + [tf.string],
        )
        for state, problem in zip(states, problems):
            state.set_shape(problem.fields.shape)
        messages.set_shape((len(problems),))
        return states, messages

    def _solve_together(self, layers):
        """Passes all layers to the backend, which may share calls."""
        start = time.perf_counter()
        # With a fallback, a failure of the backend does not end the step.
        stop_at_failure = self.stop_at_failure and self.fallback is None
        try:
            found = self.backend.solve_layers(
                [layer.qubo for layer in layers],
                [layer.seed for layer in layers],
                stop_at_failure,
            )
        except Exception as error:  # solvers may raise anything
            found = [error] * len(layers)
        seconds = (time.perf_counter() - start) / len(layers)
        stop = threading.Event()
        for index, (layer, result) in enumerate(zip(layers, found)):
            info = dict(info_of(result))
            # If the backend does not count calls, the first layer counts one.
            if index and "calls" not in info:
                info["shared_calls"] = 1
            self._finish(layer, result, info, seconds, stop)

    def _solve_apart(self, layers):
        """Solves one layer after the other, or all in parallel."""
        stop = threading.Event()

        def solve(layer):
            if stop.is_set():
                return
            start = time.perf_counter()
            try:
                found = self.backend.solve(layer.qubo, layer.seed)
            except Exception as error:  # solvers may raise anything
                found = error
            seconds = time.perf_counter() - start
            self._finish(layer, found, info_of(found), seconds, stop)

        if self.backend.executor is None or len(layers) == 1:
            for layer in layers:
                solve(layer)
            return
        # These threads only wait for the workers of the executor.
        with concurrent.futures.ThreadPoolExecutor(len(layers)) as threads:
            list(threads.map(solve, layers))

    def _finish(self, layer, found, info, seconds, stop):
        """Applies the policy `on_failure` to the result for one layer.

        Args:
            layer: `_Layer`, which receives the result.
            found: `Solution` or exception.
            info: Dictionary. The `info` of `found`.
            seconds: Float. Time that the backend took.
            stop: `threading.Event` to set if training cannot go on.
        """
        start = time.perf_counter()
        extra = {}
        failed = isinstance(found, Exception) and not isinstance(found, Stopped)
        if isinstance(found, Stopped) and not info.get("calls"):
            return  # nothing was sent for this layer
        if not isinstance(found, Exception):
            layer.solution = found
        if failed:
            # Only the type, because a message may contain anything.
            extra["error"] = type(found).__name__
            layer.message = _message(layer.name, self.backend, found)
            self._report_error(found, layer)
        if failed and self.fallback is not None and not stop.is_set():
            try:
                layer.solution = self.fallback.solve(layer.qubo, layer.seed)
                layer.message = ""
                extra["fallback"] = self.fallback.name
            except Exception as error:
                message = _message(layer.name, self.fallback, error)
                layer.message = f"{reason(layer.message)}; {message}"
                self._report_error(error, layer)
        if layer.message and self.stop_at_failure:
            stop.set()
        solution = layer.solution
        layer.count = {
            "seconds": seconds + time.perf_counter() - start,
            "info": info,
            "failed": failed,
            "fell_back": "fallback" in extra,
            "energies": None if solution is None else solution.energies,
        }
        if solution is not None:
            layer.states = solution.states.astype(np.float32)
        layer.info = {**(info if solution is None else solution.info), **extra}

    def _record(self, layers, ended, step, *applied):
        """Records a step, or only a spent budget if the step has failed."""
        recorder = self.recorder()
        if recorder is None:
            return
        step = int(step)
        errors = {layer.info.get("error") for layer in layers}
        if BudgetExceeded.__name__ in errors:
            recorder.budget_spent(step)
        if ended:
            return
        for layer, mask in zip(layers, applied):
            if recorder.wants(step, layer.name):
                solution = layer.solution
                recorder.record(
                    step,
                    layer.name,
                    layer.qubo,
                    np.where(mask, layer.states, 0),
                    None if solution is None else solution.samples,
                    None if solution is None else solution.sample_energies,
                    layer.info,
                )

    def _report_error(self, error, layer):
        on_error = self.on_error()
        if on_error is not None:
            on_error(error, layer.name, layer.message)


def _message(name, backend, error):
    kind = "" if type(error) is SolverError else f"{type(error).__name__}: "
    return (
        f"SolverError: the backend `{backend.name}` failed on layer "
        f"`{name}`: {kind}{error}"
    )


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
