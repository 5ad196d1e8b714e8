"""`QuboRecorder` with all kinds of backends and ways to train."""

import os

import dimod
import numpy as np
import offline
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras

RATE = 0.05
BACKENDS = {
    "native": lambda: "native",
    "exact": lambda: "exact",
    "ridge": lambda: "ridge",
    "sign": lambda: "sign",
    "annealing": lambda: {
        "name": "simulated_annealing",
        "num_reads": 4,
        "num_sweeps": 20,
    },
    "gurobi": lambda: "gurobi",
    "dimod": dimod.ExactSolver,
    "dwave": offline.small_qpu,
}
# The number of reads in the first layer of `small_model`, with 5 inputs.
READS = {"annealing": 4, "dimod": 32, "dwave": 20}
SLOW = pytest.mark.slow
# One backend in the graph, which compiles fast, and one on the host.
BOTH = ["sign", "dimod"]
GRAPH_AND_SLOW_HOST = ["sign", pytest.param("dimod", marks=SLOW)]


class Kernels(keras.callbacks.Callback):
    """Collects the kernels before each update and after the last one."""

    values = None

    def on_train_batch_begin(self, batch, logs=None):
        if self.values is None and self.model.built:
            self.values = [tools.kernels(self.model)]

    def on_train_batch_end(self, batch, logs=None):
        if self.values is not None:
            self.values.append(tools.kernels(self.model))


def data():
    """Returns data in which input 2 is never active."""
    x, y = tools.data()
    x[:, 2] = 0.0
    return x, y


def train(backend, *callbacks, model=None, wrap=None, epochs=1, **arguments):
    """Trains for 4 steps per epoch. Compiles the model if given a backend."""
    model = model or tools.small_model()
    if backend is not None:
        optimizer = tools.optimizer(backend=backend)
        optimizer = wrap(optimizer) if wrap else optimizer
        model.compile(optimizer, tools.loss(), **arguments)
    seen = Kernels()
    model.fit(
        *data(),
        batch_size=tools.BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[*callbacks, seen],
    )
    return seen.values, model


def names(model):
    return [layer.name for layer in model.layers[-2:]]


def check(run, kernels, model, every=3, num_updates=tools.STEPS):
    """Checks the recorded updates against the movement of the kernels."""
    steps = range(0, num_updates, every)
    expected = [(step, name) for step in steps for name in names(model)]
    found = [(update.step, update.layer) for update in run.updates]
    assert found == expected
    for update in run.updates:
        layer = names(model).index(update.layer)
        before, after = (kernels[update.step + k][layer] for k in (0, 1))
        np.testing.assert_array_equal(update.states, np.sign(before - after))
        if layer == 0:
            assert (update.states[2] == 0).all()  # never active
        assert (update.states != 0).any()


@pytest.mark.parametrize(
    "name",
    [
        # `native` compiles the same search.
        pytest.param(name, marks=SLOW if name == "exact" else ())
        for name in BACKENDS
        if name != "sign"
    ],
)
def test_all_backends(name):
    recorder = kq.callbacks.QuboRecorder(every=3)
    # Eager steps are faster to test, and differ only outside the backend.
    eager = name in ("annealing", "gurobi", "dwave")
    kernels, model = train(BACKENDS[name](), recorder, run_eagerly=eager)
    run = recorder.run
    check(run, kernels, model)
    assert run.complete
    (logs,) = run.epochs
    assert logs["epoch"] == 0
    assert logs["loss"] == model.history.history["loss"][0]
    for update in run.updates:
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


@pytest.mark.parametrize("name", BOTH)
def test_eager(name):
    recorder = kq.callbacks.QuboRecorder(every=3)
    kernels, model = train(BACKENDS[name](), recorder, run_eagerly=True)
    check(recorder.run, kernels, model)


def test_several_steps_per_execution():
    recorder = kq.callbacks.QuboRecorder(every=1)
    kernels, model = train("sign", recorder, steps_per_execution=2)
    for index, name in enumerate(names(model)):
        updates = recorder.run.of_layer(name)
        assert [update.step for update in updates] == [0, 1, 2, 3]
        states = sum(update.states.astype(float) for update in updates)
        moved = kernels[0][index] - kernels[-1][index]
        np.testing.assert_allclose(moved, RATE * states, atol=1e-6)


def assert_same_updates(one, two):
    assert len(one.updates) == len(two.updates) > 0
    for left, right in zip(one.updates, two.updates):
        assert left.step == right.step
        np.testing.assert_array_equal(left.states, right.states)
        for name in ("couplings", "fields", "offset"):
            np.testing.assert_allclose(
                getattr(left.qubo, name),
                getattr(right.qubo, name),
                rtol=1e-5,
                atol=1e-6,
            )


@pytest.mark.parametrize(
    ("inputs", "on_host", "to_file"),
    [(5, False, False), (300, False, True), (300, True, False)],
)
def test_qubo_is_that_of_definition_1(inputs, on_host, to_file, tmp_path):
    """Layers with more than 256 inputs pass rows instead of couplings."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, inputs)).astype("float32")
    y = rng.normal(size=(6, 2)).astype("float32")
    layer = kq.layers.BinaryDense(2, use_bias=False, output_scale=None)
    model = keras.Sequential([keras.layers.InputLayer((inputs,)), layer])
    backend = tools.SignBackend() if on_host else "sign"
    model.compile(tools.optimizer(backend=backend), "mse")
    v = x @ np.sign(layer.kernel.numpy()) - y
    expected = kq.Qubo.from_rows(x, 4 * v / np.abs(v).max())
    path = tmp_path / "run" if to_file else None
    recorder = kq.callbacks.QuboRecorder(path)
    model.fit(x, y, batch_size=6, verbose=0, callbacks=[recorder])
    (update,) = recorder.run.updates
    for part in ("couplings", "fields", "offset"):
        np.testing.assert_allclose(
            getattr(update.qubo, part),
            getattr(expected, part),
            rtol=1e-4,
            atol=1e-4,
        )


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras has no gradient accumulation"
)
@pytest.mark.parametrize("name", GRAPH_AND_SLOW_HOST)
def test_accumulation(name):
    recorder = kq.callbacks.QuboRecorder(every=3)
    model = tools.small_model()
    optimizer = tools.optimizer(
        backend=BACKENDS[name](), gradient_accumulation_steps=2
    )
    model.compile(optimizer, tools.loss())
    kernels, _ = train(None, recorder, model=model, epochs=2)
    # The kernels before each update, every second batch.
    check(recorder.run, kernels[::2], model)


@pytest.mark.parametrize("name", GRAPH_AND_SLOW_HOST)
def test_two_replicas(name, mirrored):
    with mirrored.scope():
        recorder = kq.callbacks.QuboRecorder(every=3)
        kernels, model = train(BACKENDS[name](), recorder)
    # Only one of the replicas records.
    check(recorder.run, kernels, model)


@pytest.mark.parametrize("name", GRAPH_AND_SLOW_HOST)
def test_loss_scale_optimizer(name):
    recorder = kq.callbacks.QuboRecorder(every=3)
    kernels, model = train(BACKENDS[name](), recorder, wrap=tools.loss_scaled)
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


# Files and settings


def test_file_and_memory_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("DWAVE_API_TOKEN", "DEV-secret")
    path = tmp_path / "new" / "run"
    file = kq.callbacks.QuboRecorder(path, every=4)
    memory = kq.callbacks.QuboRecorder(every=4)
    assert file.run.updates == [] and not path.exists()
    for recorder in (file, memory):
        _, model = train(offline.small_qpu(), recorder, run_eagerly=True)
    one, two = file.run, memory.run
    assert_same_updates(one, two)
    for left, right in zip(one.updates, two.updates):
        np.testing.assert_array_equal(left.samples, right.samples)
        assert left.info == right.info
    assert one.complete and two.complete
    assert one.epochs == two.epochs
    assert b"DEV-secret" not in path.read_bytes()
    for run in (one, two):
        assert run.settings.keys() == one.settings.keys()
        assert run.settings["versions"]["keras"] == _keras.version()
        assert run.settings["versions"]["tensorflow"] == tf.__version__
        assert run.settings["every"] == 4
    layers = two.settings["layers"]
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
        model.compile(tools.optimizer(backend="sign"), tools.loss())
        return model

    recorder = kq.callbacks.QuboRecorder(every=2)
    train(None, recorder, model=deferred())
    assert [update.step for update in recorder.run.updates] == [0, 2]
    (layer,) = recorder.run.settings["layers"].values()
    assert layer["kernel_shape"] == [5, 3]
    wrong = kq.callbacks.QuboRecorder(layers=["missing"])
    with pytest.raises(ValueError, match="`layers` .*Received: .*missing"):
        train(None, wrong, model=deferred())


# Without a recorder


class Fake:
    """A recorder as `QPSBGD` expects it."""

    def __init__(self):
        self.found = []

    def wants(self, step, layer):
        return step % 2 == 0

    def record(self, step, layer, *values):
        self.found.append((step, layer, len(values)))


def host_calls(backend, recorder):
    """Returns the number of calls of the host in the graph of a step."""
    x, y = data()
    model = tools.small_model()
    optimizer = tools.optimizer(backend=backend)
    optimizer.recorder = recorder

    @tf.function
    def step(x, y):
        gradients = tools.gradients(model, x, y)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    graph = step.get_concrete_function(x[:6], y[:6]).graph.as_graph_def()
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes.extend(function.node_def)
    inputs = [len(node.input) for node in nodes if "PyFunc" in node.op]
    return inputs, model, lambda: step(x[:6], y[:6])


def test_step_without_a_recorder_contains_no_recording():
    assert host_calls("sign", None)[0] == []
    recorder = Fake()
    found, model, step = host_calls("sign", recorder)
    # The step, and for each layer states, couplings, fields and offset.
    assert found == [1 + 2 * 4]
    for _ in range(3):
        step()
    assert recorder.found == [
        (step, name, 2) for step in (0, 2) for name in names(model)
    ]
    # The host call of a solver passes the step and the masks to a recorder.
    (plain,), *_ = host_calls(dimod.ExactSolver(), None)
    (recorded,), *_ = host_calls(dimod.ExactSolver(), Fake())
    assert recorded == plain + 1 + 2


@pytest.mark.parametrize(
    ("name", "eager"),
    [
        ("sign", False),
        pytest.param("dimod", False, marks=SLOW),
        pytest.param("sign", True, marks=SLOW),
    ],
)
def test_second_fit_without_the_recorder(name, eager, monkeypatch):
    recorder = kq.callbacks.QuboRecorder(every=1)
    _, model = train(BACKENDS[name](), recorder, run_eagerly=eager)
    assert len(recorder.run.updates) == 8
    assert model.optimizer.recorder is None
    calls = []
    original = tf.numpy_function
    monkeypatch.setattr(
        tf, "numpy_function", lambda *a: calls.append(a) or original(*a)
    )
    train(None, model=model)
    assert len(recorder.run.updates) == 8
    if name == "sign":
        assert not calls
    # A second recording starts from an empty record.
    train(None, recorder, model=model)
    steps = sorted({update.step for update in recorder.run.updates})
    assert steps == [8, 9, 10, 11]


class Failing(keras.callbacks.Callback):
    """Fails once, in the step or after it."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def on_train_batch_begin(self, batch, logs=None):
        if (self.where, batch) == ("step", 2):
            raise InterruptedError

    def on_train_batch_end(self, batch, logs=None):
        if (self.where, batch) == ("callback", 1):
            raise InterruptedError


@pytest.mark.parametrize(
    "where", ["step", pytest.param("callback", marks=SLOW)]
)
def test_fit_after_an_exception(where):
    """Keras does not call `on_train_end` after an exception."""
    recorder = kq.callbacks.QuboRecorder(every=1)
    model = tools.small_model()
    with pytest.raises(InterruptedError):
        train("sign", recorder, Failing(where), model=model)
    assert len(recorder.run.updates) == 4 and not recorder.run.complete
    train(None, model=model)
    # A custom loop.
    x, y = data()
    gradients = tools.gradients(model, x, y)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    assert len(recorder.run.updates) == 4
    train(None, recorder, model=model)
    assert len(recorder.run.updates) == 8 and recorder.run.complete


def test_evaluate_in_a_callback_does_not_end_the_recording():
    """In legacy Keras, `evaluate` replaces `model.history`."""

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.evaluate(*data(), verbose=0)

    recorder = kq.callbacks.QuboRecorder(every=1)
    train("sign", recorder, Evaluate(), run_eagerly=True)
    assert len(recorder.run.updates) == 8


# Failures


class Broken(kq.backends.Backend):
    def sample(self, qubo, seed):
        raise OSError("offline, token=DEV-secret")


@pytest.mark.filterwarnings("ignore:A solve failed")
def test_failed_solves():
    model = tools.small_model()
    recorder = kq.callbacks.QuboRecorder(every=1)

    def broken(on_failure):
        return tools.optimizer(backend=Broken(), on_failure=on_failure)

    model.compile(broken("hold"), tools.loss(), run_eagerly=True)
    train(None, recorder, model=model)
    assert len(recorder.run.updates) == 8
    for update in recorder.run.updates:
        assert (update.states == 0).all()
        assert update.info["error"] == "OSError"
        assert "secret" not in str(update.info)
    model.compile(broken(dimod.ExactSolver()), tools.loss(), run_eagerly=True)
    kernels, _ = train(None, recorder, model=model)
    check(recorder.run, kernels, model, every=1)
    info = recorder.run.updates[0].info
    assert info["error"] == "OSError" and info["reads"] == 32
    assert recorder.run.updates[0].samples.shape == (32, 5, 3)
    model.compile(broken("raise"), tools.loss(), run_eagerly=True)
    with pytest.raises(Exception, match="SolverError"):
        train(None, recorder, model=model)
    assert recorder.run.updates == []


def test_errors(tmp_path):
    for every in (0, 1.5, "10"):
        with pytest.raises(ValueError, match="`every` .*Received: "):
            kq.callbacks.QuboRecorder(every=every)
    for layers in ("dense", [1]):
        with pytest.raises(ValueError, match="`layers` .*Received: "):
            kq.callbacks.QuboRecorder(layers=layers)
    model = tools.small_model()
    recorder = kq.callbacks.QuboRecorder(layers=["missing"])
    with pytest.raises(ValueError, match=f"{names(model)[0]}.*'missing'"):
        train("sign", recorder, model=model)
    with pytest.raises(ValueError, match="one `QuboRecorder`.*Received: "):
        both = [kq.callbacks.QuboRecorder() for _ in range(2)]
        train(None, *both, model=model)
    model.compile("sgd", tools.loss())
    with pytest.raises(ValueError, match="`QPSBGD`. Received: .*SGD"):
        train(None, kq.callbacks.QuboRecorder(), model=model)
    folder = kq.callbacks.QuboRecorder(tmp_path)
    with pytest.raises(OSError):
        train("sign", folder)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=SLOW)])
def test_xla(again):
    recorder = kq.callbacks.QuboRecorder()
    model = tools.small_model()
    with pytest.raises(ValueError, match="jit_compile=False.*Received: "):
        train("sign", recorder, model=model, jit_compile=True)
    if again:
        # Without the recorder, the same optimizer trains. Keras has to compile
        # the model again after an error in the first step.
        model.compile(model.optimizer, tools.loss(), jit_compile=True)
        train(None, model=model)
    assert recorder.run.updates == []
