"""`kq.compare`: initial weights, and all kinds of networks and data."""

import math
import random

import numpy as np
import pytest
import tensorflow as tf
from comparing import PARTS
from comparing import QUICK
from comparing import X
from comparing import Y
from comparing import small_model
from comparing import splits
from scipy import sparse
from tensorflow import keras

import keras_qpsbgd as kq
from research.engine import arguments
from research.engine import network
from research.engine import plan

RNG = np.random.default_rng(1)


@pytest.fixture(scope="module", autouse=True)
def eagerly():
    """The networks make few steps. Compiling them would take longer."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


# --- The same initial weights for all methods ---


def conv_model():
    return keras.Sequential(
        [
            kq.layers.BinaryConv2D(2, 2, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            kq.layers.BinaryDense(2),
        ]
    )


@pytest.mark.slow
def test_initial_weights_depend_only_on_the_seed():
    """They are equal for all methods, including random states of dropout."""
    x = RNG.normal(size=(40, 3, 3, 1))
    parts = [(x, Y[:40])] * 3
    data = arguments.read_data(*parts, has_loss=False)
    source = network.Source(data, conv_model, [0, 1, 1_000])
    kernel, other = source.first_weights(0)[0], source.first_weights(1)[0]
    assert kernel.shape == (2, 2, 1, 2)
    assert (kernel != other).all()
    again = network.Source(data, conv_model, [1, 0])
    for left, right in zip(source.first_weights(0), again.first_weights(0)):
        np.testing.assert_array_equal(left, right)
    states = [source.first_weights(seed)[-1] for seed in (0, 1)]
    assert (states[0] != states[1]).any()

    seen = {}
    original = plan.Work.__call__

    def watched(self, job):
        result = original(self, job)
        (trainer,) = self._trainers.values()
        seed = job["seed"]
        trainer._reset(seed)
        values = [v.numpy() for v in trainer.model_variables()]
        seen.setdefault(seed, []).append(values)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.Work, "__call__", watched)
        kq.compare(
            conv_model,
            *parts,
            methods=["signsgd", "real"],
            grids={key: [{"rate": 0.1}] for key in ("signsgd", "real")},
            seeds=2,
            **QUICK,
        )
    for seed in (0, 1):
        first, second = seen[seed]
        assert len(first) == len(source.first_weights(seed)) == 9
        for ours, theirs, drawn in zip(
            first, second, source.first_weights(seed)
        ):
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(ours, drawn)


def test_random_states_are_restored():
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    with network.random_seed(7):
        random.random()
    assert (random.random(), np.random.random()) == expected


def test_equal_initial_kernels_give_a_warning():
    def fixed():
        initializer = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.layers.InputLayer((6,)),
                kq.layers.BinaryDense(2, kernel_initializer=initializer),
            ]
        )

    data = arguments.read_data(*splits(), has_loss=False)
    with pytest.warns(UserWarning, match="same binary kernels"):
        network.build_and_check(data, fixed, 2)


# --- Kinds of weights ---


def test_binary_latent_and_real_weights():
    data = arguments.read_data(*splits(), has_loss=False)
    source = network.Source(data, small_model, [0])
    x = X[:5].astype("float32")
    for mode in ("binary", "latent", "real"):
        model = source.model(mode)
        layer = model.layers[0]
        kernel = np.asarray(layer.kernel)
        signs = np.where(kernel < 0, -1.0, 1.0) / math.sqrt(6)
        latent = kernel / math.sqrt(6)
        trained = {"binary": signs, "latent": latent, "real": kernel}[mode]
        evaluated = kernel if mode == "real" else signs
        for training, weights in ((True, trained), (False, evaluated)):
            np.testing.assert_allclose(
                layer(x, training=training),
                np.clip(x @ weights, -1, 1),
                rtol=1e-5,
                atol=1e-5,
            )


@pytest.mark.slow
@pytest.mark.once
def test_methods_that_need_other_weights():
    found = kq.compare(
        small_model,
        *splits(),
        methods=["proxquant", "real", "bop", "sgd"],
        grids={
            "proxquant": [{"rate": 1.0, "regularization": 0.01}],
            "real": [{"rate": 0.1}],
            "bop": [{"rate": 0.1, "threshold": 1e-3}],
            "sgd": [{"rate": 1.0}],
        },
        seeds=1,
        reference="real",
        **QUICK,
    )
    assert {*found.results} == {"proxquant", "real", "bop", "sgd"}
    assert all(math.isnan(p) for p in found.p_values.values())


# --- Other data ---


@pytest.mark.slow
def test_regression():
    y = X[:, 0] + 2.0 * X[:, 1]

    class Model(keras.Model):
        """A subclassed model that is built when it is first called."""

        def __init__(self):
            super().__init__()
            self.hidden = kq.layers.BinaryDense(8, activation="relu")
            self.last = keras.layers.Dense(1)

        def call(self, inputs, training=None):
            return self.last(self.hidden(inputs, training=training))

    found = kq.compare(
        Model,
        *splits(y=y),
        methods=["adam"],
        grids={"adam": [{"rate": 0.3, "real_rate": 0.1}]},
        seeds=1,
        loss=keras.losses.Huber(),
        **{**QUICK, "epochs": 10},
    )
    for run in found.runs:
        assert "test_accuracy" not in run["result"]
        loss = run["curves"]["train_loss"]
        assert loss[-1] < 0.8 * loss[0]
    assert "test loss" in found.table() and "accuracy" not in found.table()


def test_loss_is_the_mean_over_rows():
    """It is not the mean over all pairs of rows if targets have one axis."""
    y = X[:, 0]

    def linear():
        return keras.Sequential(
            [keras.layers.InputLayer((6,)), kq.layers.BinaryDense(1)]
        )

    for loss in ("mse", keras.losses.MeanSquaredError()):
        found = kq.compare(
            linear,
            *splits(y=y),
            methods=["frozen"],
            grids={"frozen": [{"real_rate": 0.1}]},
            seeds=1,
            loss=loss,
            **QUICK,
        )
        data = arguments.read_data(*splits(y=y), has_loss=True)
        source = network.Source(data, linear, [0])
        kernel, bias = source.first_weights(0)
        signs = np.where(kernel < 0, -1.0, 1.0)
        outputs = X[100:] @ signs / math.sqrt(6) + bias
        expected = np.mean((outputs[:, 0] - y[100:]) ** 2)
        first = found.runs[-1]["curves"]["test_loss"][0]
        assert first == pytest.approx(expected, rel=1e-4)


def test_graph():
    rng = np.random.default_rng(0)
    nodes = 30
    y = np.arange(nodes) % 2
    x = rng.normal(size=(nodes, 4)) + y[:, None]
    a = sparse.random(nodes, nodes, 0.1, random_state=0)
    a = kq.layers.BinaryGraphConv.preprocess(a + a.T)

    def build():
        features = keras.Input((4,))
        adjacency = keras.Input((None,), sparse=True)
        hidden = kq.layers.BinaryGraphConv(3, "hard_tanh")(
            [features, adjacency]
        )
        outputs = kq.layers.BinaryGraphConv(2)([hidden, adjacency])
        return keras.Model([features, adjacency], outputs)

    mask = np.arange(nodes) < 14
    found = kq.compare(
        build,
        ((x, a), y, mask),
        ((x, a), y, np.arange(14, 20)),
        ((x, a), y, np.arange(20, 30)),
        methods=["signsgd"],
        grids={"signsgd": [{"rate": 0.1}]},
        seeds=1,
        **QUICK,
    )
    (run,) = found.runs
    # Two epochs of one batch each.
    assert run["curves"]["epoch"] == [0, 1, 2]
    assert run["result"]["test_accuracy"] * 10 == pytest.approx(
        round(run["result"]["test_accuracy"] * 10)
    )


def test_several_inputs_and_an_embedding():
    words = RNG.integers(5, size=(120, 3))

    def build():
        numbers = keras.Input((6,))
        tokens = keras.Input((3,), dtype="int32")
        embedded = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(tokens))
        joined = keras.layers.Concatenate()([numbers, embedded])
        return keras.Model([numbers, tokens], kq.layers.BinaryDense(1)(joined))

    parts = [((X[p], words[p]), Y[p]) for p in PARTS]
    found = kq.compare(
        build,
        *parts,
        methods=["signsgd"],
        grids={"signsgd": [{"rate": 0.1}]},
        seeds=1,
        **QUICK,
    )
    assert len(found.runs) == 1
