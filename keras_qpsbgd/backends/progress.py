"""Tracks the progress of a host solver.

`HostCall` reports the layers to a `HostProgress`, and backends report the
columns that are done. A display shows the progress of slow steps. Each thread
stores which layer it solves, so backends do not need to know the layer. In
workers of an executor no layer is stored, and reports have no effect.
"""

import contextlib
import threading
import time

REFRESH = 1.0  # seconds between two updates of the display

_current = threading.local()


class HostProgress:
    """The current step of an optimizer's host solver, and its total time.

    Fast steps do not start a thread each. One thread starts with the first step
    that has a display, updates the display every second, and ends when no new
    step has begun since its last check.

    Attributes:
        begun: Number of steps that were passed to the solver.
        finished: Number of steps that the solver has finished.
        seconds: Total wall-clock time of the finished steps.
    """

    def __init__(self):
        self.begun = 0
        self.finished = 0
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._step = None
        self._display = None
        self._after = 0.0
        self._shown = False
        self._thread_runs = False

    def watch(self, display, after=0.0):
        """Sets the display for steps that take longer than `after` seconds.

        Args:
            display: Object with the methods `show(text)`, which replaces the
                previous text, and `clear()`; or `None`. Several threads call
                the methods, but only one at a time.
            after: Float. Seconds before a step is shown. Defaults to `0`.
        """
        with self._lock:
            self._clear()
            self._display = display
            self._after = after

    def clear(self):
        """Clears the display until its next update, to let others write."""
        with self._lock:
            self._clear()

    @contextlib.contextmanager
    def step(self, num_layers):
        """Context manager around the solves of one training step."""
        step = _Step(num_layers)
        with self._lock:
            self._step = step
            self.begun += 1
            if self._display is not None and not self._thread_runs:
                self._thread_runs = True
                threading.Thread(
                    target=self._update_display, daemon=True
                ).start()
        try:
            yield
        except BaseException:
            # After an interrupt, `fit` ends without calling its callbacks.
            self.watch(None)
            raise
        finally:
            with self._lock:
                self._clear()
                self._step = None
                self.finished += 1
                self.seconds += step.elapsed()

    @contextlib.contextmanager
    def layer(self, name, count=1):
        """Context manager around a solve, for the thread that runs it.

        Args:
            name: String. Name of the layer.
            count: Integer. Number of layers that are solved together. Defaults
                to `1`.
        """
        step, layer = self._step, _Layer(name, count)
        with self._lock:
            step.running.append(layer)
        _current.layer = layer
        try:
            yield
        finally:
            _current.layer = None
            with self._lock:
                step.running.remove(layer)
                step.num_done += count

    def _update_display(self):
        """Shows slow steps; runs in a separate thread."""
        last_begun = None
        while True:
            time.sleep(REFRESH)
            with self._lock:
                step = self._step
                is_idle = step is None and self.begun == last_begun
                if is_idle or self._display is None:
                    self._thread_runs = False
                    return
                last_begun = self.begun
                if step is not None and step.elapsed() >= self._after:
                    self._shown = True
                    self._display.show(str(step))

    def _clear(self):
        if self._shown:
            self._shown = False
            self._display.clear()


class _Step:
    def __init__(self, num_layers):
        self.num_layers = num_layers
        self.num_done = 0
        self.running = []
        self.start = time.perf_counter()

    def elapsed(self):
        return time.perf_counter() - self.start

    def __str__(self):
        parts = []
        if len(self.running) == 1 and self.running[0].count > 1:
            parts.append(f"{self.running[0].count} layers together")
        elif len(self.running) == 1:
            parts.append(f"layer {self.running[0].name}")
            if self.num_layers > 1:
                parts[0] += f" ({self.num_done + 1} of {self.num_layers})"
            if self.running[0].block:
                parts.append(self.running[0].block)
        else:
            parts.append(f"{self.num_done} of {self.num_layers} layers done")
        total = sum(layer.num_columns for layer in self.running)
        if total:
            done = sum(layer.columns_done() for layer in self.running)
            parts.append(f"{done} of {total} columns")
        # The time comes first, because a narrow terminal cuts off the end.
        return f"Solving for {self.elapsed():.0f} s: {', '.join(parts)}"


class _Layer:
    num_columns = 0
    done = 0
    block = ""

    def __init__(self, name, count):
        self.name = name
        self.count = count

    def columns_done(self):
        # A retry counts the columns of its call again.
        return min(self.done, self.num_columns)


def set_columns(done, total):
    """Sets how many columns of the current layer are solved."""
    layer = getattr(_current, "layer", None)
    if layer is not None:
        layer.done, layer.num_columns = done, total


def add_column():
    """Reports that one more column of the current layer is solved."""
    layer = getattr(_current, "layer", None)
    if layer is not None:
        layer.done += 1


def set_block(index, count, sweep, sweeps):
    """Sets which block of the current layer is being solved, from 0."""
    layer = getattr(_current, "layer", None)
    if layer is not None:
        layer.block = (
            f"sweep {sweep + 1} of {sweeps}, block {index + 1} of {count}"
        )
