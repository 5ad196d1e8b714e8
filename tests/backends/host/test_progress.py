"""Progress of slow solvers, and the log message about compilation."""

import concurrent.futures
import contextlib
import io
import logging
import sys
import threading
import time
import types

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd import callbacks
from keras_qpsbgd.backends import progress
from keras_qpsbgd.callbacks import solver_progress
from keras_qpsbgd.optimizers import step_solver

SHOWN = "Solving for "


class Stream(io.StringIO):
    """A stdout that can act as a terminal."""

    encoding = "utf-8"

    def __init__(self, terminal=True):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def wait_until(condition, seconds=5.0):
    """Waits for a condition and returns whether it became true."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class Slow(kq.backends.Backend):
    """Waits in each call until the line has been shown."""

    name = "slow"

    def __init__(self, shown, fails=False):
        super().__init__()
        self.shown = shown
        self.fails = fails
        self.seen = []

    def sample(self, qubo, seed):
        progress.add_column()
        self.seen.append(self.shown())
        if self.fails:
            raise OSError("the chip is offline")
        return np.ones((1, qubo.num_variables, qubo.num_columns)), {}


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 0.02)
    monkeypatch.setattr(solver_progress, "_columns", lambda: 80)
    monkeypatch.setenv("TERM", "xterm")
    return Stream()


def shown_in(stream):
    """Returns a function that waits for the next line in `stream`."""

    def shown():
        before = stream.getvalue().count(SHOWN)
        return wait_until(lambda: stream.getvalue().count(SHOWN) > before)

    return shown


def fit(stream, backend, watched=True, verbose=1, **arguments):
    """Trains for one epoch of two steps."""
    x, y = tools.data()
    model = tools.small_model()
    model.compile(
        tools.optimizer(backend=backend, **arguments),
        tools.loss(),
        run_eagerly=True,
    )
    watch = [callbacks.SolverProgress(after=0.0)] if watched else []
    with contextlib.redirect_stdout(stream):
        history = model.fit(
            x[:12], y[:12], batch_size=6, verbose=verbose, callbacks=watch
        )
    return model, history


def is_clean(stream):
    """Returns whether the line was removed after its last update."""
    cut = solver_progress._Terminal.BELOW
    return stream.getvalue().split(cut)[-1].startswith("\x1b8")


def test_line_below_the_progress_bar(terminal):
    backend = Slow(shown_in(terminal))
    model, history = fit(terminal, backend)
    assert backend.seen == [True] * 4
    text = terminal.getvalue()
    names = [layer.name for layer in model.layers[-2:]]
    for number, name in enumerate(names, 1):
        line = f" s: layer {name} ({number} of 2), 1 of 3 columns\x1b8"
        assert line in text
    assert is_clean(terminal)
    seconds = model.optimizer.host_progress.seconds
    assert history.history["solver_s"] == [pytest.approx(seconds / 2)]
    # In a narrow terminal, `solver_s` does not fit in the running bar.
    bars = text.split("\n")
    assert "solver_s" not in "".join(bars[:-2])
    assert "solver_s" in text


@pytest.mark.once
def test_verbose_0_shows_nothing(terminal):
    backend = Slow(lambda: time.sleep(0.1))
    _, history = fit(terminal, backend, verbose=0)
    assert terminal.getvalue() == ""
    assert history.history["solver_s"][0] > 0.15


def test_file_only_contains_the_progress_bar(terminal):
    file = Stream(terminal=False)
    fit(file, Slow(lambda: time.sleep(0.1)))
    assert SHOWN not in file.getvalue()
    assert file.getvalue().count("solver_s") >= 2  # also in the running bar


@pytest.mark.once
def test_notebook(terminal, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("x"))
    fit(terminal, Slow(shown_in(terminal)))
    assert SHOWN in terminal.getvalue()
    assert "\x1b7" not in terminal.getvalue()
    # In a notebook, backspaces delete characters, so no line remains.
    remaining = []
    for char in terminal.getvalue():
        if char != "\b":
            remaining.append(char)
        elif remaining and remaining[-1] != "\n":
            remaining.pop()
    assert "Solving" not in "".join(remaining)
    assert "solver_s" in "".join(remaining)


def test_failures_clear_the_line(terminal, monkeypatch):
    clean = []
    on_error = step_solver.StepSolver._on_error

    def spy(self, *arguments):
        clean.append(is_clean(terminal))
        on_error(self, *arguments)

    monkeypatch.setattr(step_solver.StepSolver, "_on_error", spy)
    x, y = tools.data()
    model = tools.small_model()
    backend = Slow(shown_in(terminal), fails=True)
    optimizer = kq.QPSBGD(backend=backend)
    model.compile(optimizer, tools.loss(), run_eagerly=True)
    watch = callbacks.SolverProgress(after=0.0)
    with contextlib.redirect_stdout(terminal):
        with pytest.raises(Exception, match="SolverError"):
            model.fit(x[:6], y[:6], callbacks=[watch])
    assert is_clean(terminal)
    assert clean == [True]  # the second layer is not solved
    # `fit` ended without `on_train_end`; the next `fit` has no display.
    before = terminal.getvalue()
    backend.fails, backend.shown = False, lambda: time.sleep(0.1)
    with contextlib.redirect_stdout(terminal):
        model.fit(x[:6], y[:6], verbose=0)
    assert terminal.getvalue() == before


@pytest.mark.once
def test_line_reappears_after_a_held_failure(terminal):
    with pytest.warns(UserWarning, match="the chip is offline"):
        backend = Slow(shown_in(terminal), fails=True)
        fit(terminal, backend, on_failure="hold")
    assert backend.seen == [True] * 4
    assert is_clean(terminal)


@pytest.mark.once
def test_other_optimizers_are_ignored(terminal):
    x, y = tools.data()
    model = tools.small_model()
    model.compile("sgd", tools.loss(), run_eagerly=True)
    watch = callbacks.SolverProgress()
    history = model.fit(x[:6], y[:6], verbose=0, callbacks=[watch])
    assert set(history.history) == {"loss"}


@pytest.mark.parametrize("verbose, shown", [(1, 1), (2, 0), (0, 0)])
def test_first_step_compiles_a_solver_in_the_graph(verbose, shown, terminal):
    """A line above the first bar says so, only in the first `fit`."""
    model, history = fit(terminal, "exact", verbose=verbose)
    x, y = tools.data()
    watch = callbacks.SolverProgress()
    with contextlib.redirect_stdout(terminal):
        model.fit(x[:6], y[:6], verbose=verbose, callbacks=[watch])
    text = terminal.getvalue()
    line = "The first step compiles the solver."
    assert text.count(line) == shown
    assert text.startswith(line) == bool(shown)
    assert set(history.history) == {"loss"}


@pytest.mark.once
def test_parallel_layers_and_blocks(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 0.01)
    texts = []
    display = types.SimpleNamespace(
        show=texts.append, clear=lambda: texts.append("")
    )
    host_progress = progress.HostProgress()
    host_progress.watch(display)
    both = threading.Barrier(2)

    def solve(name):
        with host_progress.layer(name):
            progress.set_columns(1, 4)
            both.wait()
            assert wait_until(
                lambda: "0 of 3 layers done, 2 of 8 columns" in str(texts)
            )
            both.wait()

    with host_progress.step(3):
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            list(threads.map(solve, "ab"))
        with host_progress.layer("c"):
            progress.set_block(1, 5, 0, 4)
            progress.set_columns(2, 4)
            expected = (
                " s: layer c (3 of 3), sweep 1 of 4, block 2 of 5, "
                "2 of 4 columns"
            )
            assert wait_until(lambda: texts and texts[-1].endswith(expected))
    assert texts[-1] == ""
    assert (host_progress.begun, host_progress.finished) == (1, 1)
    # The display thread ends when there are no new steps.
    assert wait_until(lambda: not host_progress._thread_runs)


@pytest.mark.once
def test_blocks_and_samplers_report_columns():
    sampler = kq.backends.get(
        {"name": "simulated_annealing", "num_reads": 1, "block_size": 3}
    )
    rows, gradients = tools.rows_and_gradients(n=6, m=3)
    qubo = kq.Qubo.from_rows(rows, gradients)
    host_progress = progress.HostProgress()
    with host_progress.step(1), host_progress.layer("a"):
        sampler.solve(qubo)
        text = str(host_progress._step)
    assert "block 2 of 2" in text
    assert "3 of 3 columns" in text


@pytest.mark.slow
def test_compiling_is_logged_once(caplog):
    x, y = tools.data()
    logger = logging.getLogger("keras_qpsbgd")
    logger.disabled = False  # Dask disables loggers
    with caplog.at_level(logging.INFO, "keras_qpsbgd"):
        model = tools.small_model()
        model.compile(tools.optimizer(), tools.loss())
        for _ in range(2):
            model.fit(x[:6], y[:6], verbose=0)
    found = [r for r in caplog.records if "compiled" in r.message]
    assert len(found) == 1 and found[0].levelno == logging.INFO
