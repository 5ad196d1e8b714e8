"""Progress of slow solvers, and the log message about compilation."""

import math

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd import callbacks
from keras_qpsbgd.backends import progress

SHOWN = "Solving for "


class Host(kq.backends.Backend):
    """Reports each column, and fails if told to."""

    fails = False

    def sample(self, qubo, seed):
        progress.add_column()
        if self.fails:
            raise OSError("the chip is offline")
        return np.ones((1, qubo.num_variables, qubo.num_columns)), {}


@pytest.fixture(autouse=True)
def every_line(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)


def fit(backend, verbose=1, after=0.0, model=None, **arguments):
    """Trains for one epoch of two steps."""
    x, y = tools.data()
    if model is None:
        model = tools.small_model()
        optimizer = tools.optimizer(backend=backend, **arguments)
        model.compile(optimizer, tools.loss(), run_eagerly=True)
    history = model.fit(
        x[:12],
        y[:12],
        batch_size=6,
        verbose=verbose,
        callbacks=[callbacks.SolverProgress(after)],
    )
    return model, history


def test_lines_and_progress_bar(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    model, history = fit(Host())
    text = capsys.readouterr().out
    names = [layer.name for layer in model.layers[-2:]]
    for number, name in enumerate(names, 1):
        for done in range(2):
            line = f" s: layer {name} ({number} of 2), {done} of 3 columns\n"
            assert text.count(line) == 2
    progress = model.optimizer.host_progress
    assert progress.finished == 2
    seconds = progress.seconds / 2
    assert history.history["solver_s"] == [pytest.approx(seconds)]
    # In a narrow terminal, `solver_s` does not fit in the running bar.
    assert text.count("solver_s") == 1
    monkeypatch.setenv("COLUMNS", "100")
    fit(None, model=model)
    assert capsys.readouterr().out.count("solver_s") > 1


def test_lines_are_rare(capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 60.0)
    fit(Host())
    assert capsys.readouterr().out.count(SHOWN) == 1


@pytest.mark.once
@pytest.mark.parametrize("verbose, after", [(0, 0.0), (2, 0.0), (1, 60.0)])
def test_no_lines(capsys, verbose, after):
    _, history = fit(Host(), verbose=verbose, after=after)
    assert SHOWN not in capsys.readouterr().out
    assert history.history["solver_s"][0] > 0


def test_after_a_failure(capsys):
    """`fit` ends without `on_train_end`; the next one prints no lines."""
    backend = Host()
    backend.fails = True
    model = tools.small_model()
    model.compile(kq.QPSBGD(backend=backend), tools.loss(), run_eagerly=True)
    with pytest.raises(Exception, match="SolverError"):
        fit(None, model=model)
    capsys.readouterr()
    backend.fails = False
    model.fit(*(part[:6] for part in tools.data()), verbose=1)
    assert SHOWN not in capsys.readouterr().out


@pytest.mark.once
def test_after_a_held_failure(capsys):
    backend = Host()
    backend.fails = True
    with pytest.warns(UserWarning, match="the chip is offline"):
        _, history = fit(backend, on_failure="hold")
    assert capsys.readouterr().out.count(SHOWN) > 4
    assert math.isnan(history.history["solver_energy"][0])


@pytest.mark.once
def test_other_optimizers_are_ignored():
    x, y = tools.data()
    model = tools.small_model()
    model.compile("sgd", tools.loss(), run_eagerly=True)
    watch = callbacks.SolverProgress()
    history = model.fit(x[:6], y[:6], verbose=0, callbacks=[watch])
    assert set(history.history) == {"loss"}


@pytest.mark.parametrize("verbose, shown", [(1, 1), (2, 0), (0, 0)])
def test_first_step_compiles_a_solver_in_the_graph(verbose, shown, capsys):
    """A line above the first bar says so, only in the first `fit`."""
    model, history = fit("exact", verbose=verbose)
    x, y = tools.data()
    watch = callbacks.SolverProgress()
    model.fit(x[:6], y[:6], verbose=verbose, callbacks=[watch])
    text = capsys.readouterr().out
    line = "The first step compiles the solver."
    assert text.count(line) == shown
    assert text.startswith(line) == bool(shown)
    assert set(history.history) == {"loss"}


@pytest.mark.once
def test_blocks_and_samplers_report_columns():
    sampler = kq.backends.get(
        {"name": "simulated_annealing", "num_reads": 1, "block_size": 3}
    )
    rows, gradients = tools.rows_and_gradients(n=6, m=3)
    qubo = kq.Qubo.from_rows(rows, gradients)
    lines = []
    host = progress.HostProgress()
    host.watch(lines.append)
    with host.step(1), host.layer("a"):
        sampler.solve(qubo)
    expected = "layer a, sweep 1 of 4, block 2 of 2, 3 of 3 columns"
    assert any(line.endswith(expected) for line in lines)
    progress.add_column()  # no effect outside of a step
