"""`QPSBGD.estimate`, and how `SolverProgress` confirms the QPU time."""

import logging

import dimod
import numpy as np
import offline
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends import remote
from keras_qpsbgd.backends.dwave import cost

SIZES = [(5, 3), (3, 3)]


def fit(backend, epochs=1, **arguments):
    model = tools.small_model()
    opt = tools.optimizer(backend=backend, **arguments)
    model.compile(opt, tools.loss(), run_eagerly=True)
    x, y = tools.data()
    history = model.fit(
        x,
        y,
        batch_size=tools.BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[kq.callbacks.SolverProgress()],
    )
    return history.history, opt


def test_estimate_equals_the_charged_time(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "keras_qpsbgd")
    # Packages that configure logging may disable all existing loggers.
    logger = logging.getLogger("keras_qpsbgd")
    monkeypatch.setattr(logger, "disabled", False)
    backend = offline.qpu(offline.small_chip(), qpu_budget_seconds=1.0)
    opt = tools.optimizer(backend=backend)
    model = tools.small_model()
    found = opt.estimate(model, 2 * tools.STEPS)
    per_step = backend.step_cost(SIZES).seconds
    assert found.calls_per_update == 1
    assert found.seconds_per_update == pytest.approx(per_step)
    assert found.seconds == pytest.approx(8 * per_step)
    assert found.fits and found.affordable_steps == 8
    assert found.budget_seconds == 1.0
    history, opt = fit(backend, epochs=2)
    assert backend.budget.charged == pytest.approx(found.seconds)
    left = history["solver_budget_s"]
    np.testing.assert_allclose(left, [1 - 4 * per_step, 1 - 8 * per_step])
    assert "Estimate for this fit" in caplog.text
    assert "An update takes 1 QPU call and about" in caplog.text
    assert f"{found.seconds:.3g} s" in caplog.text


def test_warns_if_the_budget_is_not_enough():
    chip = offline.small_chip()
    per_step = offline.qpu(chip).step_cost(SIZES).seconds
    backend = offline.qpu(chip, qpu_budget_seconds=2.5 * per_step)
    message = "used up after 2 of 4 steps.*Received: .*on_failure='hold'"
    with pytest.warns(UserWarning, match=message):
        _, opt = fit(backend, on_failure="hold")
    report = opt.solver_report()
    assert report.total.calls == 2 and report.total.failures == 4


def test_table_fits_a_terminal():
    chip = offline.small_chip()
    backend = offline.qpu(chip, qpu_budget_seconds=0.1)
    found = kq.QPSBGD(backend=backend).estimate(tools.small_model(), 10**6)
    assert not found.fits
    lines = str(found).splitlines()
    assert max(map(len, lines)) < 80
    assert "1,000,000" in lines[0]
    assert f"used up after {found.affordable_steps:,} steps" in str(found)


def test_time_is_unknown_without_a_cost_model(monkeypatch):
    def access_time(*args, **parameters):
        raise ValueError("no timing data")

    monkeypatch.setattr(cost, "access_time", access_time)
    opt = kq.QPSBGD(backend=offline.qpu(offline.small_chip()))
    found = opt.estimate(tools.small_model(), 10)
    assert found.calls_per_update == 1 and found.seconds == 0
    assert "QPU time             unknown" in str(found)
    assert "no timing data" in str(found)


def test_solver_that_cannot_be_reached(monkeypatch):
    def connect(*args, **options):
        raise kq.backends.BackendUnavailable("offline")

    monkeypatch.setattr(remote, "connect", connect)
    with pytest.raises(kq.backends.BackendUnavailable, match="offline"):
        kq.QPSBGD(backend="dwave").estimate(tools.small_model(), 10)


def test_accumulation_solves_fewer_steps():
    pytest.importorskip("dwave.system")
    opt = tools.optimizer(backend=offline.small_qpu())
    if not hasattr(opt, "gradient_accumulation_steps"):
        pytest.skip("legacy Keras does not accumulate gradients")
    model = tools.small_model()
    whole = opt.estimate(model, 100).seconds
    opt = tools.optimizer(
        backend=offline.small_qpu(), gradient_accumulation_steps=4
    )
    found = opt.estimate(model, 100)
    assert (found.steps, found.updates) == (100, 25)
    assert found.seconds == pytest.approx(whole / 4)


@pytest.mark.parametrize(
    "backend", [dimod.ExactSolver(), tools.GapBackend()], ids=["dimod", "own"]
)
def test_time_of_other_solvers_is_unknown(backend, caplog):
    caplog.set_level(logging.INFO, "keras_qpsbgd")
    found = kq.QPSBGD(backend=backend).estimate(tools.small_model(), 10)
    assert np.isnan(found.seconds) and found.budget_seconds is None
    for name in ("QPU calls per step", "QPU time per step", "QPU time"):
        assert f"{name:<20} unknown" in str(found)
    assert "no estimate" in str(found)
    fit(backend)
    assert "An update takes" not in caplog.text


@pytest.mark.parametrize("backend", ["native", "tabu", "leap_hybrid"])
def test_backends_without_qpu_time(backend):
    found = kq.QPSBGD(backend=backend).estimate(tools.small_model(), 10)
    assert found.seconds == found.calls_per_update == 0 and found.fits
    assert found.note.endswith(".") and found.note in " ".join(
        str(found).split("\n")
    )


def test_invalid_arguments():
    opt = kq.QPSBGD()
    not_built = keras.Sequential([kq.layers.BinaryDense(1)])
    for model, steps, message in (
        (tools.small_model(), 0, "`steps`.*Received: steps=0"),
        (not_built, 5, "`model` must be built.*Received"),
        (None, 5, "`model`.*Received: model=None"),
    ):
        with pytest.raises(ValueError, match=message):
            opt.estimate(model, steps)
