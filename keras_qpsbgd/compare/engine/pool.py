"""Performs runs in this process, or in several with one thread each.

The processes come from `loky`. They do not need an `if __name__ == "__main__"`
guard and accept functions that are defined in a notebook.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import pickle
import signal
import tempfile
import threading
import time

from tensorflow import keras

from keras_qpsbgd.compare import threads
from keras_qpsbgd.compare.engine import worker

POLL_SECONDS = 0.5


class InProcess:
    """Performs the runs in this process, one item after another."""

    def make(self, items, report):
        """Performs the missing runs of items.

        Args:
            items: list of `Item`.
            report: function that is called after each run, see
                `worker.make_runs`.
        """
        sources = {}
        for item in items:
            worker.make_runs(item, report, sources)


class Processes:
    """Performs the runs of several items in parallel.

    Use it as a context manager. An error or Ctrl-C kills the processes, because
    a run may take an hour. It resumes later.

    Args:
        count: number of processes.
    """

    def __init__(self, count):
        self._count = count
        self._executor = None
        self._folder = None

    def __enter__(self):
        import loky
        from loky.backend import get_context

        context = get_context("loky")
        self._queue = context.SimpleQueue()
        self._folder = tempfile.TemporaryDirectory()
        self._executor = loky.ProcessPoolExecutor(
            self._count,
            context=context,
            initializer=_start,
            initargs=(self._queue, os.getpid()),
            env=threads.environment(1),
        )
        return self

    def __exit__(self, kind, error, traceback):
        self._executor.shutdown(kill_workers=kind is not None)
        self._folder.cleanup()

    def make(self, items, report):
        """Performs the missing runs of items, see `InProcess.make`."""
        path = pathlib.Path(self._folder.name, "items")
        path = path.with_suffix(f".{time.monotonic_ns()}")
        path.write_bytes(_pickled(items))
        waiting = {
            self._executor.submit(_work, path, position)
            for position in range(len(items))
        }
        while waiting:
            done, waiting = concurrent.futures.wait(
                waiting, POLL_SECONDS, concurrent.futures.FIRST_COMPLETED
            )
            while not self._queue.empty():
                report(*self._queue.get())
            for future in done:
                future.result()
        path.unlink()


def open_pool(processes, num_items):
    """Returns a context manager for an `InProcess` or a `Processes`.

    Args:
        processes: number of processes. 1 means this process, and `None` means
            one process per core.
        num_items: number of items. More processes would be idle.
    """
    if processes == 1:
        return contextlib.nullcontext(InProcess())
    return Processes(min(processes or threads.cores(), num_items))


def _pickled(items):
    """Pickles the items once for all processes, because data may be large."""
    import cloudpickle

    try:
        return cloudpickle.dumps(items)
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise ValueError(
            "`processes` must be 1 if `build_model` or an object that it uses "
            "cannot be pickled. Create such objects inside `build_model`. "
            f"Received: {error}"
        ) from error


# In the processes

_queue = None
_loaded: dict = {}
_sources: dict = {}


def _start(queue, parent):
    """Prepares a process.

    Args:
        queue: queue to which the process reports its runs.
        parent: id of the process that started this one.
    """
    global _queue
    _queue = queue
    # Ctrl-C reaches all processes. The parent kills this one, so a traceback
    # is not needed here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(
        target=_end_with_parent, args=(parent,), daemon=True
    ).start()


def _end_with_parent(parent):
    # An orphan would wait forever, or write to the files of a new command.
    if os.name == "posix":
        while os.getppid() == parent:
            time.sleep(1.0)
    else:
        multiprocessing.parent_process().join()
    os._exit(1)


def _work(path, position):
    if path not in _loaded:
        _loaded.clear()
        _sources.clear()
        _loaded[path] = pickle.loads(path.read_bytes())
    try:
        worker.make_runs(
            _loaded[path][position],
            lambda *done: _queue.put(done),
            _sources,
        )
    finally:
        keras.backend.clear_session()
