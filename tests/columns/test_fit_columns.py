"""Tests `kq.fit_columns`."""

import numpy as np
import offline
import pytest
import tools
from tensorflow import keras
from tools import all_states

import keras_qpsbgd as kq


def make(seed=0, hidden=5, activation="relu", classes=3, inputs=6):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((inputs,)),
            kq.layers.BinaryDense(hidden, activation=activation),
            kq.layers.BinaryDense(classes),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model


def data(seed=0, count=60, inputs=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, inputs)).astype("float32")
    return x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


@pytest.mark.parametrize(
    "activation, backend",
    [
        ("relu", "native"),
        pytest.param("hard_tanh", "native", marks=pytest.mark.exhaustive),
        pytest.param("tanh", "sign", marks=pytest.mark.exhaustive),
    ],
)
def test_loss_never_rises(activation, backend):
    model = make(activation=activation)
    x, y = data()
    before = model.evaluate(x, y, verbose=0)
    history = kq.fit_columns(model, x, y, sweeps=3, backend=backend, verbose=0)
    assert history.loss[0] == pytest.approx(before, rel=1e-5)
    assert (np.diff(history.loss) <= 0).all()
    assert model.evaluate(x, y, verbose=0) == pytest.approx(
        history.loss[-1], rel=1e-5
    )
    if backend == "native":
        assert history.loss[-1] < before
    assert history.solves == 3 * 8 * len(history.changed)


class Random(kq.backends.Backend):
    """Returns random states."""

    def sample(self, qubo, seed):
        rng = np.random.default_rng(seed)
        shape = (4, qubo.num_variables, qubo.num_columns)
        return rng.choice([-1.0, 1.0], shape), {}


def test_one_layer_reaches_the_enumerated_optimum():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(150, 8)).astype("float32")
    y = (x @ rng.normal(size=(8, 1)) > 0).astype("float32")
    logits = x @ all_states(8) / np.sqrt(8)
    losses = (np.logaddexp(0, logits) - y * logits).mean(axis=0)
    model = keras.Sequential(
        [keras.Input((8,)), kq.layers.BinaryDense(1, use_bias=False)]
    )
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    history = kq.fit_columns(model, x, y, sweeps=3, verbose=0)
    assert history.loss[-1] == pytest.approx(losses.min(), rel=1e-5)


@pytest.mark.slow
def test_calls_are_counted():
    x, y = data()
    kwargs = {"sweeps": 1, "dampings": (1.0, 4.0), "verbose": 0}
    history = kq.fit_columns(make(), x, y, **kwargs)
    assert (history.calls, history.solves) == (8, 16)
    assert history.qpu_seconds == 0
    backend = offline.qpu(offline.small_chip())
    history = kq.fit_columns(make(), x, y, backend=backend, **kwargs)
    assert (history.calls, history.solves) == (8, 16)
    assert history.qpu_seconds == pytest.approx(backend.budget.charged)
    assert history.qpu_seconds > 0


class FailsOnce(kq.backends.Backend):
    """Solves twice, then fails."""

    def __init__(self):
        super().__init__()
        self.left = 2

    def sample(self, qubo, seed):
        self.left -= 1
        if self.left < 0:
            raise ValueError("no connection")
        return Random().sample(qubo, seed)


def test_history_of_a_spent_budget():
    x, y = data()
    backend = offline.qpu(offline.small_chip(), qpu_budget_seconds=0.3)
    model = make()
    before = model.evaluate(x, y, verbose=0)
    with pytest.raises(kq.backends.BudgetExceeded) as error:
        kq.fit_columns(model, x, y, sweeps=50, backend=backend, verbose=0)
    history = error.value.info["history"]
    assert history.calls > 0
    assert history.qpu_seconds == pytest.approx(backend.budget.charged)
    assert len(history.loss) == 1 + len(history.changed) < 51
    assert model.evaluate(x, y, verbose=0) <= before + 1e-6


def test_functional_models_and_other_layers_stay():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    hidden = kq.layers.BinaryDense(5, activation="relu")(hidden)
    hidden = keras.layers.Dropout(0.5)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    x, y = data()
    before = model.get_weights()
    history = kq.fit_columns(model, x, y, verbose=0)
    assert history.loss[-1] < history.loss[0]
    for index, (a, b) in enumerate(zip(before, model.get_weights())):
        assert (index == 2) == (a != b).any()


@pytest.mark.slow
def test_layers_that_are_added_one_by_one():
    models = make(), keras.Sequential()
    for layer in [keras.Input((6,)), *models[0].layers]:
        copied = layer
        if isinstance(layer, keras.layers.Layer):
            copied = type(layer).from_config(layer.get_config())
        models[1].add(copied)
    models[1].compile("sgd", models[0].loss)
    models[1].set_weights(models[0].get_weights())
    x, y = data()
    losses = [kq.fit_columns(model, x, y, verbose=0).loss for model in models]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_penalties_are_left_out():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            kq.layers.BinaryDense(
                3, kernel_regularizer=keras.regularizers.L2(0.1)
            ),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    x, y = data()
    history = kq.fit_columns(model, x, y, verbose=0)
    assert (np.diff(history.loss) <= 0).all()
    expected = float(loss(y, model(x, training=False)))
    assert history.loss[-1] == pytest.approx(expected, rel=1e-4)


def test_loss_without_curvature():
    model = keras.Sequential([keras.Input((6,)), kq.layers.BinaryDense(1)])
    model.compile("sgd", "mae")
    x, _ = data()
    history = kq.fit_columns(model, x, x[:, :1], dampings=1.0, verbose=0)
    assert (np.diff(history.loss) <= 0).all()


def test_function_after_each_sweep():
    seen = []

    def stop(sweep, loss):
        seen.append((sweep, loss))
        return sweep == 2

    x, y = data()
    history = kq.fit_columns(
        make(), x, y, sweeps=5, backend=Random(), on_sweep=stop, verbose=0
    )
    assert [sweep for sweep, _ in seen] == [1, 2]
    assert [loss for _, loss in seen] == history.loss[1:]


def test_progress_bar_ends_once(monkeypatch):
    ends = tools.count_ends(monkeypatch)
    x, y = data()
    arguments = {"sweeps": 2, "backend": Random(), "verbose": 1}
    kq.fit_columns(make(), x, y, **arguments)
    assert ends == ["16 of 16"]
    kq.fit_columns(make(), x, y, **arguments, on_sweep=lambda *_: True)
    assert ends[1:] == ["8 of 16"]
    with pytest.raises(ValueError, match="no connection"):
        kq.fit_columns(make(), x, y, **{**arguments, "backend": FailsOnce()})
    assert ends[2:] == ["2 of 16"]


class Recording(kq.backends.Backend):
    """Keeps the fields and returns given states."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.fields = []

    def sample(self, qubo, seed):
        self.fields.append(qubo.fields)
        return np.stack([self.answer(qubo)] * 2), {}


@pytest.mark.parametrize(
    "answer,factor",
    [
        (lambda qubo: qubo.start, 0.7),
        (lambda qubo: qubo.start * [[-1], [1], [1]], 1 / 0.7),
    ],
)
def test_dampings_after_a_visit_without_a_change(answer, factor):
    model = keras.Sequential(
        [keras.Input((3,)), kq.layers.BinaryDense(1, use_bias=False)]
    )
    model.compile("sgd", "mse")
    # The layer already is the best one, so no other column is better.
    model.set_weights([np.array([[1.0], [-1.0], [1.0]])])
    x = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")
    y = model.predict(x, verbose=0) + 0.1 * x[:, :1]
    backend = Recording(answer)
    kq.fit_columns(
        model,
        x,
        y,
        sweeps=2,
        dampings=2.0,
        backend=backend,
        max_reads=2,
        verbose=0,
    )
    first, second = backend.fields
    product = 2.0 * x.T @ x @ model.get_weights()[0]
    # Without the part of the current column, the gradient over the damping.
    np.testing.assert_allclose(
        (first + product) / (second + product), factor, rtol=1e-3
    )


def test_three_sweeps_without_a_change_end_it():
    x, y = data()
    history = kq.fit_columns(
        make(),
        x,
        y,
        sweeps=9,
        backend=Recording(lambda qubo: qubo.start),
        verbose=0,
    )
    assert history.changed == [0, 0, 0]


def test_batches():
    x, y = data(count=200)
    seen = []
    model = make()
    history = kq.fit_columns(
        model,
        x,
        y,
        sweeps=3,
        batch_size=50,
        on_sweep=lambda sweep, loss: seen.append(model.get_weights()),
        verbose=0,
    )
    assert len(set(history.before)) == 3
    assert (np.array(history.loss[1:]) <= history.before).all()
    assert model.evaluate(x, y, verbose=0) < 0.9 * history.loss[0]
    again = make()
    kq.fit_columns(again, x, y, sweeps=1, batch_size=50, verbose=0)
    for a, b in zip(again.get_weights(), seen[0]):
        np.testing.assert_array_equal(a, b)


def test_weights_of_samples():
    x, y = data()
    weights = np.where(y == 0, 1.0, 0.0)
    model = make()
    history = kq.fit_columns(
        model, x, y, sample_weight=weights, sweeps=1, verbose=0
    )
    expected = model.evaluate(x, y, sample_weight=weights, verbose=0)
    assert history.loss[-1] == pytest.approx(expected, rel=1e-5)


def uncompiled():
    return keras.Sequential([keras.Input((6,)), kq.layers.BinaryDense(3)])


def without_binary_layers():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    return model


def with_a_skip_connection():
    inputs = keras.Input((6,))
    outputs = kq.layers.BinaryDense(6)(inputs)
    model = keras.Model(inputs, keras.layers.Add()([inputs, outputs]))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    "model, message",
    [
        (lambda: "x", "must be a Keras model.*Received: model='x'"),
        (uncompiled, "must be compiled with a loss.*Received"),
        (without_binary_layers, "trainable `BinaryDense` layer.*Received"),
        (
            lambda: keras.Sequential([kq.layers.BinaryDense(3)]),
            "built Sequential or functional.*Received",
        ),
        (with_a_skip_connection, "only through the layer.*Received"),
    ],
)
def test_invalid_models(model, message):
    x, y = data()
    with pytest.raises(ValueError, match=message):
        kq.fit_columns(model(), x, y, verbose=0)


@pytest.mark.parametrize(
    "name, values",
    [
        ("x", [[np.ones((60, 6))], np.ones((59, 6))]),
        ("sweeps", [0, 1.5]),
        ("dampings", [[], [0.0], [1, -1], None, "1", True, ["1"]]),
        ("seed", ["a"]),
        ("batch_size", [0]),
        ("max_reads", [0]),
        ("sample_weight", [np.ones((3, 1))]),
    ],
)
def test_invalid_arguments(name, values):
    x, y = data()
    model = make()
    for value in values:
        arguments = {"x": x, "y": y, name: value}
        with pytest.raises(ValueError, match=f"`{name}` .*Received"):
            kq.fit_columns(model, **arguments)
