"""Calls a solver, with retries and optionally through an executor.

The columns of a layer are divided into parts, with one call of `Backend.sample`
per part. Calls run one after the other in this thread, or in parallel through
an executor. A call that raises a `TransientError` is repeated.
"""

import collections.abc
import concurrent.futures
import functools
import multiprocessing
import pickle
import threading
import time

import numpy as np

from keras_qpsbgd.backends.errors import BudgetExceeded
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import TransientError
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.errors import in_short
from keras_qpsbgd.backends.errors import info_of
from keras_qpsbgd.backends.solution import merge_column_info

FIRST_WAIT = 1.0  # seconds before the first retry; doubles with each retry

_worker = threading.local()


class Stopped(SolverError):
    """The error of a layer that was not solved because another one failed."""

    def __init__(self, message="Another layer has failed"):
        super().__init__(message)


def sample(backend, qubo, seed):
    """Samples all columns of `qubo`.

    Returns:
        A tuple `(samples, info)`, as from `Backend.sample`.
    """
    m = qubo.num_columns
    width, shared = backend._plan_calls(qubo)
    # Copies, because `sample` may modify them.
    parts = [
        qubo.columns(start, min(start + width, m)).copy()
        for start in range(0, m, width)
    ]
    calls = [Call(backend, _sample, part, seed, shared) for part in parts]
    answers = []
    try:
        for call in calls:
            call.start()
        for call, part in zip(calls, parts):
            samples, info = _check_answer(backend, call.answer())
            answers.append((_check_samples(backend, part, samples), info))
    except BaseException as error:
        for call in calls:
            call.cancel()
        _attach_info(error, _merge_call_info(calls, answers))
        raise
    samples = join_columns([samples for samples, _ in answers])
    return samples, _merge_call_info(calls, answers)


def _sample(backend, qubo, seed, shared):
    return backend.sample(qubo, seed, **shared)


def _attach_info(error, info):
    """Sets the `info` of an exception."""
    error_info = info_of(error)
    if "qpu_access_time" in error_info:  # an invalid answer is billed, too
        answered = info.get("qpu_access_time", 0.0)
        info["qpu_access_time"] = answered + error_info["qpu_access_time"]
    error.info = info


def _merge_call_info(calls, answers):
    """Merges the `info` of all answers and counts calls and retries."""
    info = merge_column_info([info for _, info in answers])
    num_attempts = sum(call.num_attempts for call in calls)
    # A backend may make several calls in one `sample` and count them itself.
    num_failed = num_attempts - len(answers)
    info["calls"] = info.get("calls", len(answers)) + num_failed
    info["retries"] = sum(call.retries for call in calls)
    return info


class Call:
    """A call of a solver, in this thread or in a worker of the executor.

    Args:
        backend: A `Backend`.
        function: Function that makes the call. Its first argument is the
            backend, or the worker's copy of it.
        *arguments: Further arguments of the function. They must be picklable.

    Attributes:
        num_attempts: Integer. Number of times that the call was made.
        retries: Integer. Number of times that it was repeated.
    """

    num_attempts = 0
    retries = 0

    def __init__(self, backend, function, *arguments):
        self.backend = backend
        self._function = function
        self._arguments = arguments
        self._future = None

    def start(self):
        """Sends the call to the executor, if the backend has one."""
        if self.backend.executor is None:
            return
        pickled = pickle.dumps(self.backend)
        try:
            self._future = self.backend.executor.submit(
                _run_in_worker, pickled, self._function, self._arguments
            )
        except RuntimeError as error:  # broken or shut down
            raise _executor_error(error) from error

    def answer(self):
        """Returns the answer; repeats the call on a `TransientError`."""
        while True:
            try:
                return self._attempt()
            except TransientError:
                if self.retries == self.backend.retries:
                    raise
            time.sleep(FIRST_WAIT * 2**self.retries)
            self.retries += 1
            self.start()

    def cancel(self):
        """Cancels a call that was started and is no longer needed."""
        future, self._future = self._future, None
        if future is not None and not future.cancel():
            self.num_attempts += 1

    def _attempt(self):
        future, self._future = self._future, None
        self.num_attempts += 1
        if future is None:
            try:
                return self._function(self.backend, *self._arguments)
            except BudgetExceeded:
                self.num_attempts -= 1  # no call was made
                raise
        try:
            return _wait(future, self.backend.timeout_seconds)
        finally:
            future.cancel()  # after a timeout; no effect if it is done


def _wait(future, timeout):
    """Returns the answer of a worker, or raises an error of this package."""
    try:
        return future.result(timeout)
    except (TimeoutError, concurrent.futures.TimeoutError) as error:
        raise TransientError(
            f"An executor worker did not answer within {timeout:g} s "
            "(`timeout_seconds`)"
        ) from error
    except concurrent.futures.BrokenExecutor as error:
        raise _executor_error(error) from error


def _executor_error(error):
    return SolverError(
        f"The executor's workers died or it was shut down: {error}. A script "
        "that starts a process pool needs an `if __name__ == '__main__':` "
        "guard around its code"
    )


def _run_in_worker(pickled, function, arguments):
    """Makes a call in a worker, which keeps backends and their handles open."""
    if not hasattr(_worker, "load_backend"):
        # Per thread, because threads must not share solver handles.
        _worker.load_backend = functools.lru_cache(maxsize=8)(pickle.loads)
    return function(_worker.load_backend(pickled), *arguments)


def check_executor(executor):
    """Raises if `executor` is not an executor, or if it forks processes.

    TensorFlow's threads and a solver's handles do not survive a fork.
    """
    if executor is None:
        return
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "`executor` must be a `concurrent.futures.Executor`. Received: "
            f"executor={executor!r}"
        )
    if isinstance(executor, concurrent.futures.ProcessPoolExecutor):
        # There is no public attribute for the start method.
        if executor._mp_context.get_start_method() == "fork":
            raise ValueError(
                "`executor` must not fork processes. Use "
                "`keras_qpsbgd.backends.process_pool(max_workers)`, which "
                "spawns them. Received: a ProcessPoolExecutor that forks"
            )


def process_pool(
    max_workers: int | None = None,
) -> concurrent.futures.ProcessPoolExecutor:
    """Creates a pool of spawned processes to pass as `executor`.

    A script that creates a pool needs an `if __name__ == "__main__":` guard,
    because each process imports the script.

    Args:
        max_workers: Integer (optional). Number of processes. `None` uses the
            number of CPUs. Defaults to `None`.

    Returns:
        A `concurrent.futures.ProcessPoolExecutor`.

    Raises:
        ValueError: If `max_workers` is not a positive integer.

    Example:
        ```python
        with kq.backends.process_pool(4) as pool:
            backend = kq.backends.get("gurobi", executor=pool)
            model.compile(kq.QPSBGD(backend=backend), "mse")
            model.fit(x, y)
        ```
    """
    check_number("max_workers", max_workers, 1, optional=True, whole=True)
    return concurrent.futures.ProcessPoolExecutor(
        max_workers, mp_context=multiprocessing.get_context("spawn")
    )


def _check_answer(backend, answer):
    """Returns `(samples, info)` or raises if `answer` is anything else."""
    if isinstance(answer, (tuple, list)) and len(answer) == 2:
        samples, info = answer
        if info is None:
            return samples, {}
        if isinstance(info, collections.abc.Mapping):
            return samples, dict(info)
    raise SolverError(
        f"`sample` of the backend `{backend.name}` must return a tuple "
        "`(samples, info)` of an array of shape (reads, n, m) and a "
        f"dictionary. Received: {in_short(answer)}"
    )


def _check_samples(backend, qubo, samples):
    """Returns the samples as int8 or raises if they are invalid."""
    n, m = qubo.num_variables, qubo.num_columns
    try:
        samples = np.asarray(samples)
    except ValueError as error:  # lists of different lengths
        raise SolverError(
            f"The backend `{backend.name}` must return samples of shape "
            f"(reads, {n}, {m}). Received: {in_short(samples)}"
        ) from error
    if samples.ndim != 3 or samples.shape[1:] != (n, m) or not len(samples):
        raise SolverError(
            f"The backend `{backend.name}` must return samples of shape "
            f"(reads, {n}, {m}). Received: shape {samples.shape}"
        )
    valid = (samples == 1) | (samples == -1)
    if not valid.all():
        raise SolverError(
            f"The backend `{backend.name}` must return states of +1 and -1. "
            f"Received: {in_short(samples[~valid][:5].tolist())}"
        )
    return samples.astype(np.int8)


def join_columns(parts):
    """Concatenates the samples (reads, n, m) of parts of the columns.

    If the parts have different numbers of reads, repeats the last read of the
    shorter ones.
    """
    if len(parts) == 1:
        return parts[0]
    reads = max(len(part) for part in parts)
    padded = [
        np.concatenate([part, np.repeat(part[-1:], reads - len(part), axis=0)])
        for part in parts
    ]
    return np.concatenate(padded, axis=-1)
