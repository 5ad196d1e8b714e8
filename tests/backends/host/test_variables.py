"""Variables after failed solves, and layers with several problems."""

import numpy as np
import pytest
import tensorflow as tf
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.optimizers.averaged_rule import Averaged

pytestmark = pytest.mark.once

SEED = tools.CLEAR_CUT["averaged"]
MOMENTUM = 0.9


class Fails(tools.GapBackend):
    """Solves exactly, but raises in the calls `failing`."""

    warm_start = True

    def __init__(self, *failing):
        super().__init__()
        self.failing = failing
        self.calls = 0

    def sample(self, qubo, seed):
        self.calls += 1
        if self.calls - 1 in self.failing:
            raise kq.backends.SolverError("planned failure")
        return super().sample(qubo, seed)


def start(backend, **arguments):
    """Returns a built model, its optimizer and its data."""
    model = tools.small_model(SEED)
    opt = tools.optimizer(backend=backend, **arguments)
    model.compile(opt, tools.loss())
    opt.build(model.trainable_variables)
    return model, opt, tools.data(SEED)


def batch(data, step):
    part = slice(step * tools.BATCH, (step + 1) * tools.BATCH)
    return tuple(array[part] for array in data)


def variables(model, opt):
    """Returns all values by name, those of the model first."""
    found = {}
    for variable in [*model.variables, *opt.variables]:
        name = getattr(variable, "path", variable.name)
        while name in found:
            name += "'"
        found[name] = np.array(tf.convert_to_tensor(variable))
    return found


def changed(before, after):
    return {n for n in before if not np.array_equal(before[n], after[n])}


def averages(values):
    return [value for name, value in values.items() if "momentum_" in name]


# Failures


def test_raise_changes_only_what_the_forward_pass_changes():
    """The first layer is solved in step 2, and the second one fails."""
    model, opt, data = start(Fails(5), real_optimizer="adam")
    for step in range(2):
        model.train_on_batch(*batch(data, step))
    before = variables(model, opt)
    with pytest.raises(Exception, match="SolverError.*planned failure"):
        model.train_on_batch(*batch(data, 2))
    after = variables(model, opt)
    couplings = {name for name in before if "couplings" in name}
    assert len(couplings) == 2 and len(averages(before)) == 2
    assert changed(before, after) == couplings
    assert int(opt.iterations) == 2
    # The next step goes on from here.
    model.train_on_batch(*batch(data, 2))
    assert int(opt.iterations) == 3


@pytest.mark.filterwarnings("ignore:A solve failed")
def test_hold_keeps_one_layer_and_averages_its_gradient():
    model, opt, data = start(Fails(5), on_failure="hold")
    for step in range(2):
        model.train_on_batch(*batch(data, step))
    before = variables(model, opt)
    x, y = batch(data, 2)
    grads = tools.gradients(model, x, y, training=False)[::2]
    model.train_on_batch(x, y)
    after = variables(model, opt)
    kernels = [name for name in before if name.endswith("kernel")][:2]
    assert kernels[0] in changed(before, after)
    assert kernels[1] not in changed(before, after)
    assert any("bias" in name for name in changed(before, after))
    for old, new, grad in zip(averages(before), averages(after), grads):
        expected = MOMENTUM * old + (1 - MOMENTUM) * np.array(grad)
        np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-7)
    # The next solve of this layer starts without states.
    first, second = (v for n, v in after.items() if n.endswith("states"))
    assert first.all() and not second.any()


def test_a_backend_that_uses_no_couplings():
    class Sign(tools.SignBackend):
        uses_couplings = False

    found = []
    for backend in (Sign(), "sign"):
        model, opt, data = start(backend)
        for step in range(tools.STEPS):
            model.train_on_batch(*batch(data, step))
        found.append(tools.kernels(model))
    tools.assert_equal(*found)


# Several blocks of couplings


@pytest.fixture
def narrow(monkeypatch):
    """Layers with 5 inputs have two blocks, and those with 3 have one."""
    monkeypatch.setattr(Averaged, "widest", 3)


def names(model):
    first, second = (layer.name for layer in model.layers)
    return [f"{first}[0]", f"{first}[1]", second]


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_blocks_on_the_host_equal_blocks_in_the_graph():
    found = []
    for backend in (Fails(), "exact"):
        model, opt, data = start(backend)
        for step in range(tools.STEPS):
            model.train_on_batch(*batch(data, step))
        found.append(tools.kernels(model))
        if backend != "exact":
            assert backend.least > 1e-4
            assert backend.solved == 3 * tools.STEPS
            rows = opt.solver_report().layers
            assert list(rows) == names(model)
            assert {row.solves for row in rows.values()} == {tools.STEPS}
    tools.assert_equal(*found)


@pytest.mark.usefixtures("narrow")
@pytest.mark.filterwarnings("ignore:A solve failed")
def test_hold_keeps_one_block():
    model, opt, data = start(Fails(1), on_failure="hold")
    before = tools.kernels(model)[0]
    model.train_on_batch(*batch(data, 0))
    moved = tools.kernels(model)[0] != before
    assert moved[0::2].all() and not moved[1::2].any()
    rows = opt.solver_report().layers
    assert [row.failures for row in rows.values()] == [0, 1, 0]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    "backend", ["host", pytest.param("exact", marks=pytest.mark.exhaustive)]
)
def test_blocks_are_recorded(backend):
    """A layer is chosen by its name, and each block has an update."""
    backend = Fails() if backend == "host" else backend
    model, _, data = start(backend)
    before = tools.kernels(model)[0]
    recorder = kq.callbacks.QuboRecorder(every=2, layers=[model.layers[0].name])
    x, y = data
    model.fit(
        x[: tools.BATCH],
        y[: tools.BATCH],
        batch_size=tools.BATCH,
        verbose=0,
        callbacks=[recorder],
    )
    updates = recorder.run.updates
    assert [update.layer for update in updates] == names(model)[:2]
    states = np.sign(before - tools.kernels(model)[0])
    for block, update in enumerate(updates):
        part = states[block::2]
        assert update.qubo.num_variables == 3
        np.testing.assert_array_equal(update.states[: len(part)], part)
        assert not update.states[len(part) :].any()  # padding


def test_layers_are_checked_by_their_blocks(monkeypatch):
    """A layer may have more inputs than the solver has variables."""

    class Three(Fails):
        max_variables = 3

    model, _, data = start(Three())
    with pytest.raises(kq.backends.BackendUnavailable, match="5 inputs"):
        model.train_on_batch(*batch(data, 0))
    monkeypatch.setattr(Averaged, "widest", 3)
    model, opt, data = start(Three())
    model.train_on_batch(*batch(data, 0))
    assert int(opt.iterations) == 1
