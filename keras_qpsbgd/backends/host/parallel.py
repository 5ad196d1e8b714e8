"""From the columns of a layer to calls of a solver.

The columns are cut into parts, each part is one call of `Backend.sample`. Calls
run here, one after the other, or through an executor, all at once. A call that
fails in a way that can pass is repeated.
"""

import collections.abc
import concurrent.futures
import contextlib
import functools
import multiprocessing
import pickle
import threading
import time

import numpy as np

from keras_qpsbgd.backends.errors import NOT_RUN
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import TransientError
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.errors import in_short
from keras_qpsbgd.backends.host import infos
from keras_qpsbgd.backends.host import progress

FIRST_WAIT = 1.0  # seconds before the first retry; doubled for each further
LOOK = 0.2  # seconds between two looks at whether to stop

_worker = threading.local()
_here = threading.local()


class Stopped(SolverError):
    """The call is not needed any more: another layer has failed."""


@contextlib.contextmanager
def stopping(event):
    """Goes around calls in this thread that end once `event` is set."""
    _here.stop = event
    try:
        yield
    finally:
        _here.stop = None


def _check_stop():
    stop = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped("Another layer has failed")


def sample(backend, qubo, seed):
    """Samples all columns of `qubo`.

    Returns:
        `(samples, info)` as `Backend.sample` does.
    """
    n, m = qubo.num_variables, qubo.num_columns
    width = max(1, backend.columns_per_call(n, m))
    shared = backend.prepare(qubo)
    kind = _Here if backend.executor is None else _Elsewhere
    # Copies: a backend may change what it is given.
    calls = [
        kind(
            backend,
            qubo.columns(start, min(start + width, m)).copy(),
            seed,
            shared,
        )
        for start in range(0, m, width)
    ]
    answers = []
    try:
        for call in calls:
            call.begin()
        for number, call in enumerate(calls):
            progress.columns(number * width, m)
            answers.append(call.answer())
    except BaseException as error:
        for call in calls:
            call.cancel()
        _tell(error, _told(calls, answers))
        raise
    return _join([samples for samples, _ in answers]), _told(calls, answers)


def _tell(error, info):
    """Leaves with the error what is known of the calls."""
    known = getattr(error, "info", None) or {}
    if "qpu_access_time" in known:  # an answer that was paid for, and useless
        before = info.get("qpu_access_time", 0.0)
        info["qpu_access_time"] = before + known["qpu_access_time"]
    try:
        error.info = info
    except AttributeError:
        pass  # an exception that takes no attributes


def _told(calls, answers):
    """What all answers and all failures say together."""
    info = infos.over_columns([info for _, info in answers])
    made = sum(call.made for call in calls)
    # A backend may make several calls in one `sample`, and count them.
    info["calls"] = info.get("calls", len(answers)) + made - len(answers)
    info["retries"] = sum(call.retries for call in calls)
    return info


class _Here:
    """A call in this thread."""

    reserved = None
    made = 0
    retries = 0

    def __init__(self, backend, qubo, seed, shared):
        self.backend = backend
        self.qubo = qubo
        self.seed = seed
        self.shared = shared

    def answer(self):
        """Samples and info; what can pass is repeated."""
        while True:
            _check_stop()
            try:
                samples, info = self.result()
                return _checked(self.backend, self.qubo, samples), info
            except TransientError:
                if self.retries == self.backend.retries:
                    raise
            time.sleep(FIRST_WAIT * 2**self.retries)
            _check_stop()
            self.retries += 1
            self.begin()

    def begin(self):
        pass

    def result(self):
        self.reserved = self._reserve()
        return self._settled(self._run)

    def cancel(self):
        pass

    def _reserve(self):
        return self.backend.reserve(
            self.qubo.num_variables, self.qubo.num_columns
        )

    def _run(self):
        return self.backend.sample(self.qubo, self.seed, **self.shared)

    def _settled(self, run):
        self.made += 1
        try:
            samples, info = _pair(self.backend, run())
        except BaseException as error:
            self.backend.settle(self.reserved, getattr(error, "info", None))
            raise
        self.backend.settle(self.reserved, info)
        return samples, info


class _Elsewhere(_Here):
    """A call by a worker of the backend's executor.

    Whatever the worker does, budget and retries are kept here.
    """

    future = None

    def begin(self):
        pickled = pickle.dumps(self.backend)
        self.reserved = self._reserve()
        try:
            self.future = self.backend.executor.submit(
                _in_worker, pickled, self.qubo, self.seed, self.shared
            )
        except BaseException as error:
            self.backend.settle(self.reserved, NOT_RUN)
            if isinstance(error, RuntimeError):  # broken, or shut down
                raise _lost(error) from error
            raise

    def result(self):
        future, self.future = self.future, None
        try:
            return self._settled(lambda: self._wait(future))
        finally:
            future.cancel()  # after a time-out; does nothing if it is done

    def cancel(self):
        future, self.future = self.future, None
        if future is None:
            return
        if future.cancel():
            self.backend.settle(self.reserved, NOT_RUN)
        else:
            self.made += 1
            self.backend.settle(self.reserved, None)

    def _wait(self, future):
        timeout = self.backend.timeout_seconds
        try:
            return _patient_result(future, timeout)
        except (TimeoutError, concurrent.futures.TimeoutError) as error:
            raise TransientError(
                f"A worker of the executor gave no answer in {timeout:g} s "
                "(`timeout_seconds`)"
            ) from error
        except concurrent.futures.BrokenExecutor as error:
            raise _lost(error) from error
        except concurrent.futures.CancelledError as error:
            raise SolverError("The executor cancelled the call") from error


def _patient_result(future, timeout):
    """`future.result(timeout)`, which ends early when the step has failed."""
    deadline = time.monotonic() + timeout
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            return future.result(min(left, LOOK))
        except (TimeoutError, concurrent.futures.TimeoutError):
            if future.done() or left <= LOOK:
                raise
        _check_stop()


def _lost(error):
    return SolverError(
        f"The executor's workers died, or it was shut down: {error}. Scripts "
        "that start a process pool need an `if __name__ == '__main__':` around "
        "what they do"
    )


def _in_worker(pickled, qubo, seed, shared):
    """Runs in the worker, which keeps its backends and their handles."""
    if not hasattr(_worker, "backend"):
        # Per thread: solver handles are not shared between threads.
        _worker.backend = functools.lru_cache(maxsize=8)(pickle.loads)
    return _worker.backend(pickled).sample(qubo, seed, **shared)


def check_executor(executor):
    """Refuses what is no executor, and forked processes.

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
        # There is no public way to ask.
        if executor._mp_context.get_start_method() == "fork":
            raise ValueError(
                "`executor` must not fork its processes. Use "
                "`keras_qpsbgd.backends.process_pool(max_workers)`, which "
                "spawns them. Received: a ProcessPoolExecutor that forks"
            )


def process_pool(
    max_workers: int | None = None,
) -> concurrent.futures.ProcessPoolExecutor:
    """A pool of spawned processes, to be used as `executor`.

    The script that makes one needs an `if __name__ == "__main__":`, as each
    process imports it.

    Args:
        max_workers: number of processes; `None` is that of the CPUs.
    """
    check_number("max_workers", max_workers, 1, optional=True, whole=True)
    return concurrent.futures.ProcessPoolExecutor(
        max_workers, mp_context=multiprocessing.get_context("spawn")
    )


def _pair(backend, answer):
    """`(samples, info)`, if that is what `sample` returned."""
    if isinstance(answer, (tuple, list)) and len(answer) == 2:
        samples, info = answer
        if info is None:
            return samples, {}
        if isinstance(info, collections.abc.Mapping):
            return samples, dict(info)
    raise SolverError(
        f"`sample` of the backend `{backend.name}` must return `(samples, "
        "info)`: samples of shape (reads, n, m) and a dictionary. Received: "
        f"{in_short(answer)}"
    )


def _checked(backend, qubo, samples):
    """The samples as int8, if they are samples."""
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


def _join(parts):
    """Samples (reads, n, m) from those of parts of the columns.

    Where parts have different numbers of reads the last is repeated.
    """
    if len(parts) == 1:
        return parts[0]
    reads = max(len(part) for part in parts)
    padded = [
        np.concatenate([part, np.repeat(part[-1:], reads - len(part), axis=0)])
        for part in parts
    ]
    return np.concatenate(padded, axis=-1)
