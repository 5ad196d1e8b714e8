"""What a solver on the host is doing, while it is doing it.

`HostCall` tells a `HostProgress` which layers it solves, backends tell which
columns are done, and a display shows it when a step takes long. Which thread
solves which layer is kept per thread, so that backends need not know it; in the
workers of an executor, which solve for others, they tell nobody.
"""

import contextlib
import threading
import time

REFRESH = 1.0  # seconds between two looks at a running step

_here = threading.local()


class HostProgress:
    """The running step of an optimizer's host solver, and the time of all.

    A fast step costs no thread: one that looks every second is started with
    the first step that has a display, and ends when it has found nothing new.

    Attributes:
        begun: number of steps whose problems reached the solver.
        finished: number of those it has answered.
        seconds: wall-clock time of the finished ones.
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
        self._watched = False

    def watch(self, display, after=0.0):
        """Sets what shows the steps that take longer than `after` seconds.

        Args:
            display: an object with `show(text)`, which replaces what it showed
                before, and `clear()`; or `None`. Its methods are called by
                several threads, one at a time.
            after: seconds.
        """
        with self._lock:
            self._clear()
            self._display = display
            self._after = after

    def clear(self):
        """Takes off what is shown, for others to write; it comes back."""
        with self._lock:
            self._clear()

    @contextlib.contextmanager
    def step(self, num_layers):
        """Goes around the solves of one training step."""
        step = _Step(num_layers)
        with self._lock:
            self._step = step
            self.begun += 1
            if self._display is not None and not self._watched:
                self._watched = True
                threading.Thread(target=self._look, daemon=True).start()
        try:
            yield
        except BaseException:
            # An interrupt: `fit` ends without a word to its callbacks.
            self.watch(None)
            raise
        finally:
            with self._lock:
                self._clear()
                self._step = None
                self.finished += 1
                self.seconds += step.age()

    @contextlib.contextmanager
    def layer(self, name):
        """Goes around the solve of one layer, in the thread that solves it."""
        step, layer = self._step, _Layer(name)
        with self._lock:
            step.running.append(layer)
        _here.layer = layer
        try:
            yield
        finally:
            _here.layer = None
            with self._lock:
                step.running.remove(layer)
                step.num_done += 1

    def _look(self):
        """Runs in a thread of its own."""
        seen = None
        while True:
            time.sleep(REFRESH)
            with self._lock:
                idle = self._step is None and self.begun == seen
                if idle or self._display is None:
                    self._watched = False
                    return
                seen = self.begun
                if self._step is not None and self._step.age() >= self._after:
                    self._shown = True
                    self._display.show(str(self._step))

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

    def age(self):
        return time.perf_counter() - self.start

    def __str__(self):
        parts = []
        if len(self.running) == 1:
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
        # The time comes first: a narrow terminal cuts off the end.
        return f"Solving for {self.age():.0f} s: {', '.join(parts)}"


class _Layer:
    num_columns = 0
    done = 0
    block = ""

    def __init__(self, name):
        self.name = name

    def columns_done(self):
        return min(self.done, self.num_columns)  # repeated ones count twice


def columns(done, total):
    """Tells that so many columns of the layer are solved."""
    layer = getattr(_here, "layer", None)
    if layer is not None:
        layer.done, layer.num_columns = done, total


def column():
    """Tells that one column more is solved."""
    layer = getattr(_here, "layer", None)
    if layer is not None:
        layer.done += 1


def block(index, count, sweep, sweeps):
    """Tells which block of variables is being solved, counted from 0."""
    layer = getattr(_here, "layer", None)
    if layer is not None:
        layer.block = (
            f"sweep {sweep + 1} of {sweeps}, block {index + 1} of {count}"
        )
