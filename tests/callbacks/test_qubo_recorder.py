"""`QuboRecorder` with all kinds of backends and ways to train."""

import importlib.metadata

import dimod
import numpy as np
import offline
import pytest
import tensorflow as tf
import tools
from recorded_training import check
from recorded_training import names
from recorded_training import train
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras

RATE = 0.05
BACKENDS = {
    "native": lambda: "native",
    "ridge": lambda: "ridge",
    "sign": lambda: "sign",
    "annealing": lambda: {
        "name": "simulated_annealing",
        "num_reads": 4,
        "num_sweeps": 20,
    },
    "dimod": dimod.ExactSolver,
    "dwave": offline.small_qpu,
}
# The number of reads in the first layer of `small_model`, with 5 inputs.
READS = {"annealing": 4, "dimod": 32, "dwave": 20}


@pytest.mark.parametrize(
    ("name", "eager"),
    [
        *((name, True) for name in BACKENDS if name != "native"),
        ("sign", False),
        pytest.param("native", False, marks=pytest.mark.exhaustive),
        pytest.param("dimod", False, marks=pytest.mark.exhaustive),
    ],
)
def test_all_backends(name, eager):
    recorder = kq.callbacks.QuboRecorder(every=3)
    kernels, model = train(BACKENDS[name](), recorder, run_eagerly=eager)
    run = recorder.run
    check(run, kernels, model)
    assert run.complete
    (logs,) = run.epochs
    assert logs["epoch"] == 0
    on_host = not isinstance(model.optimizer.backend, kq.backends.GraphBackend)
    assert ("solver_calls" in logs) == on_host
    assert logs["loss"] == model.history.history["loss"][0]
    for update in run.updates:
        size = len(update.states)
        assert update.qubo.couplings.shape == (size, size)
        # The sign of the fields is the solution without couplings.
        assert update.qubo.couplings.any() == (name != "sign")
        assert "energies" not in update.info
        if name not in READS:
            assert update.samples is None and update.sample_energies is None
            continue
        num_reads = len(update.samples)
        assert update.samples.shape == (num_reads, *update.states.shape)
        for read, energies in zip(update.samples, update.sample_energies):
            np.testing.assert_allclose(
                energies, update.qubo.energy(read), rtol=1e-5
            )
        # The best read moved the weights.
        for j, states in enumerate(update.states.T):
            moved = states != 0
            if moved.any():
                reads = update.samples[:, :, j]
                best = reads[update.sample_energies[:, j].argmin()]
                np.testing.assert_array_equal(best[moved], states[moved])
    if name in READS:
        assert len(run.updates[0].samples) == READS[name]
    if name == "dwave":
        info = run.updates[0].info
        assert info["qpu_access_time"] > 0
        assert len(info["chain_break_fraction"]) == 3


@pytest.mark.slow
def test_several_steps_per_execution():
    recorder = kq.callbacks.QuboRecorder(every=1)
    kernels, model = train("sign", recorder, steps_per_execution=2)
    for index, name in enumerate(names(model)):
        updates = recorder.run.of_layer(name)
        assert [update.step for update in updates] == [0, 1, 2, 3]
        states = np.stack(
            [update.states.astype(float).ravel() for update in updates], axis=1
        )
        moved = (kernels[0][index] - kernels[-1][index]).ravel() / RATE
        # All entries move by the same distance in a step.
        sizes, *_ = np.linalg.lstsq(states, moved)
        np.testing.assert_allclose(states @ sizes, moved, atol=1e-5)


def wide_model(inputs):
    layer = kq.layers.BinaryDense(
        2, use_bias=False, output_scale=None, name="only"
    )
    model = keras.Sequential([keras.layers.InputLayer((inputs,)), layer])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, inputs)).astype("float32")
    y = rng.normal(size=(6, 2)).astype("float32")
    return model, x, y


def test_qubo_is_that_of_definition_1():
    model, x, y = wide_model(5)
    opt = tools.optimizer(backend="sign", rule="paper")
    opt.build(model.trainable_variables)
    model.compile(opt, "mse")
    v = x @ np.sign(tools.kernels(model)[0]) - y
    expected = kq.Qubo.from_rows(x, v / 6)  # a mean over 12 squares
    recorder = kq.callbacks.QuboRecorder()
    model.fit(x, y, batch_size=6, verbose=0, callbacks=[recorder])
    (update,) = recorder.run.updates
    assert update.layer == "only"
    for part in ("couplings", "fields"):
        right = getattr(expected, part)
        np.testing.assert_allclose(
            getattr(update.qubo, part), right, 0, 1e-5 * np.abs(right).max()
        )


@pytest.mark.parametrize("on_host", [False, True], ids=["graph", "host"])
def test_blocks(on_host):
    """Each block is an update. The last entries of two of them are padding."""
    model, x, y = wide_model(301)
    backend = tools.SignBackend() if on_host else "ridge"
    opt = tools.optimizer(backend=backend)
    opt.build(model.trainable_variables)
    model.compile(opt, "mse", run_eagerly=True)
    before = tools.kernels(model)[0]
    recorder = kq.callbacks.QuboRecorder(layers=["only"])
    model.fit(x, y, batch_size=6, verbose=0, callbacks=[recorder])
    moved = np.sign(before - tools.kernels(model)[0])
    updates = recorder.run.updates
    assert [update.layer for update in updates] == [
        f"only[{block}]" for block in range(3)
    ]
    for block, update in enumerate(updates):
        rows, size = x[:, block::3], 101 - (block > 0)
        couplings = 0.1 * rows.T @ rows / (x**2).sum()
        assert update.qubo.couplings.shape == (101, 101)
        np.testing.assert_allclose(
            update.qubo.couplings[:size, :size], couplings, atol=1e-7
        )
        assert not update.qubo.couplings[size:].any()
        np.testing.assert_array_equal(update.states[:size], moved[block::3])
        assert not update.states[size:].any()


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras has no gradient accumulation"
)
def test_accumulation():
    recorder = kq.callbacks.QuboRecorder(every=3)
    model = tools.small_model()
    optimizer = tools.optimizer(backend="sign", gradient_accumulation_steps=2)
    model.compile(optimizer, tools.loss(), run_eagerly=True)
    kernels, _ = train(None, recorder, model=model, epochs=2)
    # The kernels before each update, every second batch.
    check(recorder.run, kernels[::2], model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sign", "dimod"])
def test_two_replicas(name, mirrored):
    with mirrored.scope():
        recorder = kq.callbacks.QuboRecorder(every=3)
        kernels, model = train(BACKENDS[name](), recorder)
    # Only one of the replicas records.
    check(recorder.run, kernels, model)


def test_loss_scale_optimizer():
    recorder = kq.callbacks.QuboRecorder(every=3)
    kernels, model = train(
        "sign", recorder, wrap=tools.loss_scaled, run_eagerly=True
    )
    check(recorder.run, kernels, model)


def test_chosen_layers_without_reads():
    model = tools.small_model()
    chosen = names(model)[1]
    recorder = kq.callbacks.QuboRecorder(every=3, layers=[chosen], reads=False)
    train(dimod.ExactSolver(), recorder, model=model, run_eagerly=True)
    assert recorder.run.layers == [chosen]
    assert [update.step for update in recorder.run.updates] == [0, 3]
    assert recorder.run.updates[0].samples is None
    # A sampler has no configuration.
    assert recorder.run.settings["optimizer"]["seed"] == 1
    layers = recorder.run.settings["layers"]
    assert [layer["recorded"] for layer in layers.values()] == [False, True]


def nested_model():
    """Has two layers with the same name, and their paths differ in Keras 3."""

    def part(name):
        layer = kq.layers.BinaryDense(3, name="dense")
        inner = [keras.layers.InputLayer((3,)), layer]
        return keras.Sequential(inner, name=name)

    inputs = keras.Input((tools.INPUTS,))
    x = kq.layers.BinaryDense(3, name="first")(inputs)
    return keras.Model(inputs, part("decoder")(part("encoder")(x)))


def same_path_model():
    """Has two layers with the same name and path."""

    def part():
        inputs = keras.Input((3,))
        layer = kq.layers.BinaryDense(3, name="dense")
        return keras.Model(inputs, layer(inputs))

    inputs = keras.Input((tools.INPUTS,))
    x = kq.layers.BinaryDense(3, name="first")(inputs)
    return keras.Model(inputs, part()(part()(x)))


@pytest.mark.parametrize("make", [nested_model, same_path_model])
def test_layers_with_the_same_name(make):
    """They have a row, a record and a size each. Others keep their names."""
    keras.utils.set_random_seed(0)
    model = make()
    has_paths = make is nested_model and _keras.KERAS_3
    last = "decoder/dense" if has_paths else "dense#2"
    expected = ["first", "encoder/dense" if has_paths else "dense#1", last]
    recorder = kq.callbacks.QuboRecorder(every=1, layers=["first", last])
    train(dimod.ExactSolver(), recorder, model=model, run_eagerly=True)
    report = model.optimizer.solver_report()
    assert list(report.layers) == expected
    assert {row.solves for row in report.layers.values()} == {tools.STEPS}
    run = recorder.run
    assert run.layers == ["first", last]
    assert len(run.of_layer(last)) == tools.STEPS
    assert list(run.settings["layers"]) == expected
    found = kq.summary(model, print_fn=None, x=tools.data()[0])
    assert list(found.input_sizes) == expected
    wrong = kq.callbacks.QuboRecorder(layers=["dense"])
    with pytest.raises(ValueError, match=f"'{last}'.*Received: layers="):
        train(None, wrong, model=model)


# The logs of each epoch, and the budget


@pytest.mark.parametrize(
    "policy", [pytest.param("exact", marks=pytest.mark.exhaustive), "raise"]
)
@pytest.mark.filterwarnings("ignore:The QPU budget is spent")
def test_totals_of_all_updates_and_the_end_of_the_budget(policy, tmp_path):
    """Records two of eight updates. The budget is enough for five."""
    step = offline.small_qpu().step_cost([(5, 3), (3, 3)]).seconds
    backend = offline.qpu(
        offline.small_chip(), qpu_budget_seconds=5.1 * step, retries=0
    )
    optimizer = tools.optimizer(backend=backend, on_failure=policy)
    model = tools.small_model()
    model.compile(optimizer, tools.loss(), run_eagerly=True)
    recorder = kq.callbacks.QuboRecorder(tmp_path / "a.run", every=4)
    if policy == "raise":
        with pytest.raises(Exception, match="qpu_budget_seconds"):
            train(None, recorder, model=model, epochs=2)
    else:
        train(None, recorder, model=model, epochs=2)
    run = recorder.run
    assert {update.step for update in run.updates} == {0, 4}
    assert run.budget_spent_at == 5
    epochs = {name: [e[name] for e in run.epochs] for name in run.epochs[0]}
    ended = policy == "raise"
    assert epochs["solver_calls"] == [4, 1][: 1 if ended else 2]
    if ended:
        assert not run.complete
        return
    # Two layers in three updates.
    assert epochs["solver_failures"] == [0, 6]
    assert epochs["solver_fallbacks"] == [0, 6]
    total = optimizer.solver_report().total
    assert sum(epochs["solver_qpu_s"]) == pytest.approx(total.qpu_seconds)
    left = 5.1 * step - backend.budget.charged
    assert epochs["solver_budget_s"][-1] == pytest.approx(left)
    assert len(epochs["solver_chain_breaks"]) == 2


# Files and settings


def test_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DWAVE_API_TOKEN", "DEV-secret")
    path = tmp_path / "new" / "run"
    recorder = kq.callbacks.QuboRecorder(path, every=4)
    assert recorder.run.updates == [] and not path.exists()
    kernels, model = train(offline.small_qpu(), recorder, run_eagerly=True)
    run = kq.analysis.load_run(path)
    check(run, kernels, model, every=4)
    assert run.complete
    assert b"DEV-secret" not in path.read_bytes()
    assert run.settings["versions"]["keras"] == _keras.version()
    assert run.settings["versions"]["tensorflow"] == tf.__version__
    version = importlib.metadata.version("dwave-system")
    assert run.settings["versions"]["dwave-system"] == version
    assert run.settings["every"] == 4
    layers = run.settings["layers"]
    assert list(layers) == names(model)
    assert layers[names(model)[0]]["num_variables"] == 5
    assert layers[names(model)[0]]["kernel_shape"] == [5, 3]


def test_model_can_be_saved_while_it_is_recorded(tmp_path):
    path = str(tmp_path / "model.keras")
    save = keras.callbacks.ModelCheckpoint(path)
    recorder = kq.callbacks.QuboRecorder()
    _, model = train("sign", recorder, save, run_eagerly=True)
    loaded = keras.models.load_model(path)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    assert loaded.optimizer.recorder is None
    config = recorder.run.settings["optimizer"]
    assert config["backend"]["name"] == "sign"
    assert config["learning_rate"] == pytest.approx(RATE)
    assert kq.QPSBGD.from_config(config).get_config().keys() == config.keys()


def test_model_that_is_built_in_the_first_step():
    def deferred():
        model = keras.Sequential([kq.layers.BinaryDense(3)])
        opt = tools.optimizer(backend="sign")
        model.compile(opt, tools.loss(), run_eagerly=True)
        return model

    recorder = kq.callbacks.QuboRecorder(every=2)
    train(None, recorder, model=deferred())
    assert [update.step for update in recorder.run.updates] == [0, 2]
    (layer,) = recorder.run.settings["layers"].values()
    assert layer["kernel_shape"] == [5, 3]
    wrong = kq.callbacks.QuboRecorder(layers=["missing"])
    with pytest.raises(ValueError, match="`layers` .*Received: .*missing"):
        train(None, wrong, model=deferred())
