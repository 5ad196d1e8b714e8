"""What `SolverProgress` adds to the logs of an epoch."""

import csv
import math

import dimod
import numpy as np
import offline
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.errors import TransientError
from keras_qpsbgd.backends.host.solver_report import SolverReport

ALWAYS = {"solver_s", "solver_energy", "solver_retries", "solver_fallbacks"}
QPU = {"solver_qpu_s", "solver_chain_breaks"}


def fit(backend, *callbacks, epochs=2, on_failure="raise", verbose=0):
    """Trains for four steps per epoch."""
    model = tools.small_model()
    model.compile(
        tools.optimizer(backend=backend, on_failure=on_failure),
        tools.loss(),
        run_eagerly=True,
    )
    x, y = tools.data()
    history = model.fit(
        x,
        y,
        batch_size=tools.BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=verbose,
        callbacks=[kq.callbacks.SolverProgress(), *callbacks],
    )
    return history.history


def tags(folder):
    """Returns the names of the scalars in a log of TensorBoard."""
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = event_accumulator.EventAccumulator(str(folder))
    found.Reload()
    return set(found.Tags()["tensors"]) | set(found.Tags()["scalars"])


def solved_energies(update):
    """Returns the energies of the solutions, also of columns that are held."""
    held = (update.states == 0).any(axis=0)
    best = update.sample_energies.min(axis=0)
    return np.where(held, best, update.energies)


def test_all_logs_of_a_qpu(tmp_path):
    """Compares the logs with the recorded updates of each epoch."""
    path = tmp_path / "log.csv"
    recorder = kq.callbacks.QuboRecorder(every=1)
    history = fit(
        offline.small_qpu(),
        keras.callbacks.CSVLogger(str(path)),
        keras.callbacks.TensorBoard(str(tmp_path / "board")),
        recorder,
    )
    assert history.keys() == {"loss"} | ALWAYS | QPU
    for epoch in range(2):
        updates = [u for u in recorder.run.updates if u.step // 4 == epoch]
        energies = np.concatenate([solved_energies(u) for u in updates])
        assert history["solver_energy"][epoch] == pytest.approx(energies.mean())
        seconds = 1e-6 * sum(u.info["qpu_access_time"] for u in updates)
        assert history["solver_qpu_s"][epoch] == pytest.approx(seconds)
        breaks = [np.mean(u.info["chain_break_fraction"]) for u in updates]
        found = history["solver_chain_breaks"][epoch]
        assert found == pytest.approx(np.mean(breaks), abs=1e-12)
        logged = recorder.run.epochs[epoch]
        assert logged["solver_energy"] == history["solver_energy"][epoch]
    with open(path) as file:
        rows = list(csv.DictReader(file))
    for name in ALWAYS | QPU:
        found = [float(row[name]) for row in rows]
        np.testing.assert_allclose(found, history[name], rtol=1e-6)
    board = tags(tmp_path / "board" / "train")
    assert {f"epoch_{name}" for name in ALWAYS | QPU} <= board


def test_local_solvers_have_no_logs_of_a_qpu():
    assert fit(dimod.ExactSolver(), epochs=1).keys() == {"loss"} | ALWAYS
    # Backends in the graph have none at all.
    assert fit("sign", epochs=1).keys() == {"loss"}


class Unreliable(kq.backends.Backend):
    """Fails in a transient way in every second call, or always."""

    def __init__(self, always=False):
        super().__init__(retries=1)
        self.always = always
        self.calls = 0

    def sample(self, qubo, seed):
        self.calls += 1
        if self.always:
            raise OSError("offline")
        if self.calls % 2:
            raise TransientError("busy")
        return np.ones((1, qubo.num_variables, qubo.num_columns)), {}


@pytest.fixture
def no_waiting(monkeypatch):
    from keras_qpsbgd.backends import calls

    monkeypatch.setattr(calls, "FIRST_WAIT", 0.0)


def test_retries(no_waiting):
    history = fit(Unreliable())
    assert history["solver_retries"] == [8, 8]
    assert history["solver_fallbacks"] == [0, 0]


def test_progress_bar(capsys, monkeypatch):
    """In a narrow terminal, `solver_s` does not fit in the running bar."""
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        history = fit(dimod.ExactSolver(), epochs=1, verbose=1)
        count = capsys.readouterr().out.count("solver_s")
        assert count == 1 if columns == 80 else count > 1
        assert history["solver_s"][0] > 0


@pytest.mark.parametrize(
    "verbose", [pytest.param(0, marks=pytest.mark.exhaustive), 1]
)
def test_first_step_compiles_a_solver_in_the_graph(verbose, capsys):
    """A line above the first bar says so, only in the first `fit`."""
    model = tools.small_model()
    model.compile(tools.optimizer(backend="exact"), tools.loss())
    x, y = tools.data()
    for _ in range(2):
        watch = kq.callbacks.SolverProgress()
        model.fit(x[:6], y[:6], verbose=verbose, callbacks=[watch])
    text = capsys.readouterr().out
    assert text.count("The first step compiles the solver.") == verbose


@pytest.mark.once
def test_other_optimizers_are_ignored():
    x, y = tools.data()
    model = tools.small_model()
    model.compile("sgd", tools.loss(), run_eagerly=True)
    watch = kq.callbacks.SolverProgress()
    history = model.fit(x[:6], y[:6], verbose=0, callbacks=[watch])
    assert set(history.history) == {"loss"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A solve failed")
def test_fallbacks_and_failures():
    solver = dimod.ExactSolver()
    history = fit(Unreliable(always=True), on_failure=solver, epochs=1)
    expected = fit(solver, epochs=1)
    for name in ("loss", "solver_energy"):
        assert history[name] == pytest.approx(expected[name])
    assert history["solver_fallbacks"] == [8]
    assert expected["solver_fallbacks"] == [0]
    history = fit(Unreliable(always=True), on_failure="hold", epochs=1)
    assert history["solver_fallbacks"] == [0]
    assert math.isnan(history["solver_energy"][0])


@pytest.mark.once
def test_difference_of_reports():
    def add(report, layer, energies, breaks, **arguments):
        info = {
            "calls": 2,
            "qpu_access_time": 1e6,
            "chain_break_fraction": np.array(breaks),
        }
        energies = None if energies is None else np.array(energies)
        report.count(layer, 0.5, info, energies=energies, **arguments)

    report = SolverReport()
    add(report, "a", [5.0, 7.0], [0.1, 0.3])
    before = report.copy()
    empty = report.since(before)
    assert empty.total.solves == 0 and empty.total.mean_energy is None
    add(report, "a", [1.0, 2.0], [0.5, 0.5])
    add(report, "a", None, [0.9, 0.9], failed=True)
    add(report, "b", [4.0], [0.0])
    after = report.since(before)
    assert after.layers["a"].solves == 2 and after.layers["a"].columns == 2
    assert after.layers["a"].mean_energy == pytest.approx(1.5)
    assert after.layers["a"].mean_chain_breaks == pytest.approx(0.5)
    assert after.total.calls == 6
    assert after.total.qpu_seconds == pytest.approx(3.0)
    assert after.total.seconds == pytest.approx(1.5)
    assert after.total.failures == 1
    # Three columns, and two successful solves.
    assert after.total.mean_energy == pytest.approx(7 / 3)
    assert after.total.mean_chain_breaks == pytest.approx(0.25)
    assert report.total.mean_energy == pytest.approx(19 / 5)
