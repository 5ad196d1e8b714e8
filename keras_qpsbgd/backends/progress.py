"""Writes a line from time to time while a solver on the host is busy.

`HostCall` reports the layers to a `HostProgress`, and backends report the
columns that are done. Each thread stores which layer it solves, so backends do
not need to know the layer. The thread that reports writes the line. In workers
of an executor no layer is stored, and reports have no effect.
"""

import contextlib
import threading
import time

INTERVAL = 5.0  # minimum number of seconds between two lines

_current = threading.local()


class HostProgress:
    """The steps of an optimizer's host solver, and their total time.

    Attributes:
        finished: Number of steps that the solver has finished.
        seconds: Total wall-clock time of the finished steps.
    """

    def __init__(self):
        self.finished = 0
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._write = None
        self._after = 0.0
        self._written = -INTERVAL

    def watch(self, write, after=0.0):
        """Sets the function that writes a line.

        Args:
            write: Function of a string, or `None` to write nothing.
            after: Float. Seconds of a step before its first line. Defaults to
                `0`.
        """
        with self._lock:
            self._write, self._after = write, after

    @contextlib.contextmanager
    def step(self, num_layers):
        """Context manager around the solves of one training step."""
        self._num_layers, self._num_begun = num_layers, 0
        self._start = time.perf_counter()
        try:
            yield
        except BaseException:
            # After an interrupt, `fit` ends without calling its callbacks.
            self.watch(None)
            raise
        finally:
            self.finished += 1
            self.seconds += time.perf_counter() - self._start

    @contextlib.contextmanager
    def layer(self, name, count=1):
        """Context manager around a solve, for the thread that runs it.

        Args:
            name: String. Name of the layer.
            count: Integer. Number of layers that are solved together. Defaults
                to `1`.
        """
        with self._lock:
            self._num_begun += count
            number = self._num_begun
        text = f"layer {name}"
        if count > 1:
            text = f"{count} layers together"
        elif self._num_layers > 1:
            text += f" ({number} of {self._num_layers})"
        _current.report = lambda part: self._report(f"{text}{part}")
        _current.block = ""
        try:
            yield
        finally:
            _current.report = None

    def _report(self, text):
        with self._lock:
            now = time.perf_counter()
            seconds = now - self._start
            if (
                self._write is not None
                and seconds >= self._after
                and now - self._written >= INTERVAL
            ):
                self._written = now
                self._write(f"Solving for {seconds:.0f} s: {text}")


def set_columns(done, total):
    """Reports how many columns of the current layer are solved."""
    report = getattr(_current, "report", None)
    if report is not None:
        # A retry counts the columns of its call again.
        _current.columns = done, total
        report(f"{_current.block}, {min(done, total)} of {total} columns")


def add_column():
    """Reports that one more column of the current layer is solved."""
    done, total = getattr(_current, "columns", (0, 1))
    set_columns(done + 1, total)


def set_block(index, count, sweep, sweeps):
    """Sets which block of the current layer is being solved, from 0."""
    _current.block = (
        f", sweep {sweep + 1} of {sweeps}, block {index + 1} of {count}"
    )
