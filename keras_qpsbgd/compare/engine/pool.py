"""Where runs are made: in this process, or in several with one thread each.

The processes are those of `loky`, which need no `if __name__ == "__main__"` and
take functions that were defined in a notebook.
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
    """Makes the runs of one item after the other in this process."""

    def make(self, items, report):
        """Makes the missing runs of items.

        Args:
            items: list of `Item`.
            report: function, called after each run; see `worker.make_runs`.
        """
        sources = {}
        for item in items:
            worker.make_runs(item, report, sources)


class Processes:
    """Makes the runs of several items at once.

    Use it as a context manager. An error, or Ctrl-C, kills the processes: a run
    may take an hour, and resumes later.

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
        """Makes the missing runs of items; see `InProcess.make`."""
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
    """A context manager of something with `make`.

    Args:
        processes: 1 is this process; `None` is one on each core.
        num_items: number of items to make; more processes would be idle.
    """
    if processes == 1:
        return contextlib.nullcontext(InProcess())
    return Processes(min(processes or threads.cores(), num_items))


def _pickled(items):
    """Once for all processes: data may be large."""
    import cloudpickle

    try:
        return cloudpickle.dumps(items)
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise ValueError(
            "`processes` must be 1 if `build_model`, or an object that it "
            "uses, cannot be sent to another process. Create such objects "
            f"inside of `build_model`. Received: {error}"
        ) from error


# In the processes

_queue = None
_loaded: dict = {}
_sources: dict = {}


def _start(queue, parent):
    """Prepares a process.

    Args:
        queue: where it tells what it has done.
        parent: number of the process that started it.
    """
    global _queue
    _queue = queue
    # Ctrl-C reaches all processes; the parent ends this one, without a word.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(
        target=_end_with_parent, args=(parent,), daemon=True
    ).start()


def _end_with_parent(number):
    # An orphan would wait for work for ever, or write beside a new command.
    if os.name == "posix":
        while os.getppid() == number:
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
