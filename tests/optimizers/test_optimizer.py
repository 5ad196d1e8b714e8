"""Tests the update, the arguments and the state of `QPSBGD`."""

import pickle
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd import recording
from keras_qpsbgd.optimizers.gradient_scale import GradientScale
from keras_qpsbgd.recording import problems


def one_layer(units=2, inputs=3, **arguments):
    layer = kq.layers.BinaryDense(units, **arguments)
    return keras.Sequential([keras.layers.InputLayer((inputs,)), layer])


def eager_fit(model, opt, x, y, loss="mse", **arguments):
    """Trains eagerly on one batch per epoch, unless `arguments` differ."""
    model.compile(opt, loss, run_eagerly=True)
    arguments = {
        "batch_size": len(x),
        "shuffle": False,
        "verbose": 0,
        **arguments,
    }
    return model.fit(x, y, **arguments)


def test_one_step_by_hand():
    """Three inputs, one output and two samples, computed by hand.

    W = (1, -1, 1), x1 = (1, 1, 0), x2 = (0, 1, 2); R = (0, 1).
    The loss is sum_b r_b t_b with t = (1, -0.5), so V = t. The normalized rows
    are z1 = (1/2, 1/2, 0) and z2 = (0, 1/5, 2/5), so
    s = -2 (1/2, 1/2 - 1/10, -1/5) = (-1, -0.8, 0.4).
    With gradient_scale "raw", the energy of g is
    (1 - (g1 + g2)/2)^2 + (-1/2 - g2/5 - 2 g3/5)^2.
    The minimum is 0 + (-1/2 + 1/5)^2 = 0.09, for g = (1, 1, -1).
    """
    model = one_layer(1, use_bias=False, output_scale=None)
    model.layers[-1].kernel.assign([[0.1], [-0.2], [0.3]])
    x = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]], "float32")
    t = np.array([[1.0], [-0.5]], "float32")
    with pytest.warns(UserWarning, match="raw"):
        opt = kq.QPSBGD(0.25, "exact", gradient_scale="raw")

    def loss(y_true, y_pred):
        return 2.0 * y_true * y_pred  # Keras takes the mean over two samples

    eager_fit(model, opt, x, t, loss)
    np.testing.assert_allclose(
        model.layers[-1].kernel.numpy()[:, 0],
        [0.1 - 0.25, -0.2 - 0.25, 0.3 + 0.25],
    )
    qubo = kq.Qubo.from_rows(x, t)
    np.testing.assert_allclose(qubo.fields[:, 0], [-1.0, -0.8, 0.4])
    np.testing.assert_allclose(qubo.energy(np.array([1, 1, -1])), [0.09])


def test_golden_sequence():
    """Compares four steps of the exact backend with stored values."""
    found = tools.fit(
        tools.small_model(), tools.optimizer(backend="exact"), *tools.data()
    )
    start = tools.kernels(tools.small_model())
    steps = [np.rint((b - a) / 0.05).astype(int) for a, b in zip(start, found)]
    np.testing.assert_array_equal(steps[0], GOLDEN[0])
    np.testing.assert_array_equal(steps[1], GOLDEN[1])


# In units of the learning rate, after four steps of +-1.
GOLDEN = [
    [[4, 4, 0], [0, 0, 0], [0, -2, 0], [-2, -4, 4], [0, 0, 0]],
    [[0, 0, 0], [0, 2, 0], [0, -4, 2]],
]


@pytest.mark.once
def test_gradient_scales():
    rows, v = tools.rows_and_gradients(batch=10)
    v[4] = 0.0
    call = ops.normalize(tf.constant(rows), tf.constant(v), batch=10)
    problem = ops.gram_problem(call.normalized_rows, call.row_gradients)
    statistics = ops.statistics(call)

    def factor(name, kappa=None, loss_scale=1.0):
        scale = GradientScale(name, kappa)
        return float(scale.factor(problem, statistics, loss_scale))

    kept = np.delete(v, 4, axis=0)
    z = np.delete(rows, 4, axis=0)
    z = z / (z**2).sum(axis=1, keepdims=True)
    largest = np.abs(v).max()
    reach = np.abs(z).sum(axis=1).mean()
    np.testing.assert_allclose(factor("max"), 4 / largest, rtol=1e-5)
    np.testing.assert_allclose(factor("max", 2), 2 / largest, rtol=1e-5)
    np.testing.assert_allclose(factor("reach"), reach / largest, rtol=1e-5)
    rms = np.sqrt((kept**2).mean())
    np.testing.assert_allclose(factor("rms"), 1 / rms, rtol=1e-5)
    np.testing.assert_allclose(factor("batch"), 10)
    np.testing.assert_allclose(factor("batch", loss_scale=4.0), 2.5)
    np.testing.assert_allclose(factor("raw"), 1)
    scaled = ops.scale_problem(problem, tf.constant(3.0))
    expected = kq.Qubo.from_rows(rows, 3.0 * v)
    np.testing.assert_allclose(scaled.fields, expected.fields, rtol=1e-4)
    np.testing.assert_allclose(scaled.offset, expected.offset, rtol=1e-4)


def test_reach_does_not_depend_on_the_scale_of_the_inputs():
    x, y = tools.data()
    found = []
    for factor in (1.0, 16.0):
        # The rescaling undoes the factor, so only the rows are scaled.
        keras.utils.set_random_seed(1)
        model = one_layer(3, tools.INPUTS, use_bias=False)
        model.add(keras.layers.Rescaling(1.0 / factor))
        opt = tools.optimizer(backend="exact", gradient_scale="reach")
        eager_fit(model, opt, factor * x, y, tools.loss())
        found.append(model.layers[0].kernel.numpy())
    np.testing.assert_array_equal(*found)


def test_entries_without_information_do_not_move():
    model = one_layer(2, 4, use_bias=False)
    before = model.layers[-1].kernel.numpy()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4)).astype("float32")
    x[:, 1] = 0.0  # never active
    weight = np.array(
        [1.0, 0.0], "float32"
    )  # the second column has no gradient

    def loss(y_true, y_pred):
        return tf.reduce_sum((y_true - y_pred) ** 2 * weight, axis=-1)

    eager_fit(model, tools.optimizer(), x, rng.normal(size=(8, 2)), loss)
    moved = np.abs(model.layers[-1].kernel.numpy() - before) > 0
    expected = np.zeros((4, 2), bool)
    expected[[0, 2, 3], 0] = True
    np.testing.assert_array_equal(moved, expected)


def test_one_hot_inputs_without_gradient_do_not_move():
    """Without field and couplings, both signs have the same energy."""
    model = one_layer(2, 3, use_bias=False)
    before = model.layers[-1].kernel.numpy()
    x = np.eye(3, dtype="float32")
    target = model.predict(x, verbose=0)
    target[0, 0] += 1.0
    target[1, 1] += 1.0
    eager_fit(model, tools.optimizer(), x, target)
    moved = np.abs(model.layers[-1].kernel.numpy() - before) > 0
    np.testing.assert_array_equal(moved, [[1, 0], [0, 1], [0, 0]])


def test_layer_without_gradient_does_not_move():
    model = one_layer(2, 4, use_bias=False)
    before = model.layers[-1].kernel.numpy()
    x = np.ones((4, 4), "float32")
    eager_fit(model, tools.optimizer(), x, model.predict(x, verbose=0))
    np.testing.assert_array_equal(model.layers[-1].kernel.numpy(), before)
    assert model.optimizer.skipped_updates == 0


@pytest.mark.once
@pytest.mark.parametrize("backend", ["native", "exact", "ridge", "sign"])
def test_never_ascend_in_the_graph(backend):
    backend = kq.backends.get(backend)
    for seed in range(10):
        rows, v = tools.rows_and_gradients(seed, kind="sparse")
        call = ops.normalize(tf.constant(rows), tf.constant(1e-3 * v), batch=12)
        problem = ops.gram_problem(call.normalized_rows, call.row_gradients)
        states = backend.solve_in_graph(problem, tf.constant([seed, 0]))
        assert (
            (tf.reduce_sum(problem.fields * states, axis=0) <= 0).numpy().all()
        )


@pytest.mark.parametrize("real", ["adam", "sgd", keras.optimizers.Adagrad])
def test_real_optimizer_updates_all_other_variables(real):
    """A dense layer moves exactly as with only the real optimizer."""
    x, y = tools.data()

    def model():
        keras.utils.set_random_seed(0)
        layers = [
            keras.layers.InputLayer((tools.INPUTS,)),
            keras.layers.Dense(4, activation="tanh"),
            kq.layers.BinaryDense(3),
        ]
        return keras.Sequential(layers)

    name = real if isinstance(real, str) else real(0.01)
    frozen, ours = model(), model()
    eager_fit(frozen, keras.optimizers.get(name), x, y, tools.loss())
    inner = real if isinstance(real, str) else real(0.01)
    eager_fit(ours, tools.optimizer(real_optimizer=inner), x, y, tools.loss())
    for mine, theirs in zip(ours.get_weights()[:2], frozen.get_weights()[:2]):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert int(ours.optimizer.real_optimizer.iterations) == 1


def test_learning_rates():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [0, 1], [0.5, 0.25, 0.125]
    )
    x, y = tools.data()
    for rate, expected in ((1, [1.0, 1.0]), (schedule, [0.5, 0.25])):
        model = one_layer(3, tools.INPUTS)
        model.compile(kq.QPSBGD(rate, "exact"), tools.loss(), run_eagerly=True)
        sizes = []
        for _ in range(2):
            before = model.layers[-1].kernel.numpy()
            model.train_on_batch(x, y)
            sizes.append(np.abs(model.layers[-1].kernel.numpy() - before).max())
        np.testing.assert_allclose(sizes, expected, rtol=1e-5)
    opt = kq.QPSBGD(0.5)
    opt.learning_rate = 0.125
    assert float(opt.learning_rate) == 0.125
    opt.real_optimizer.learning_rate = 0.5
    assert float(opt.learning_rate) == 0.125


def test_constraint_and_ema():
    class Clip(keras.constraints.Constraint):
        def __call__(self, w):
            return tf.clip_by_value(w, -0.1, 0.1)

    x, y = tools.data()
    model = one_layer(3, tools.INPUTS, kernel_constraint=Clip())
    eager_fit(model, tools.optimizer(), x, y, tools.loss())
    assert np.abs(model.layers[-1].kernel.numpy()).max() <= 0.1 + 1e-7

    model = one_layer(3, tools.INPUTS)
    weights = [model.get_weights()]
    opt = tools.optimizer(use_ema=True, ema_momentum=0.5)
    model.compile(opt, tools.loss(), run_eagerly=True)
    for _ in range(3):
        model.train_on_batch(x, y)
        weights.append(model.get_weights())
    opt.finalize_variable_values(model.trainable_variables)
    first = 1 if _keras.KERAS_3 else 0  # where the average starts
    average = weights[first]
    for later in weights[first + 1 :]:
        average = [0.5 * a + 0.5 * w for a, w in zip(average, later)]
    for found, expected in zip(model.get_weights(), average):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "argument",
    [
        {"clipnorm": 1e-3},
        {"clipvalue": 1e-4},
        {"global_clipnorm": 1e-3},
        {"weight_decay": 0.1},
    ],
    ids=str,
)
def test_clipping_and_decay_apply_to_real_variables_only(argument):
    """The argument does not affect kernels. It affects biases as in SGD."""
    x, y = tools.data()
    kernels, biases = [], []
    for arguments in ({}, argument):
        model = one_layer(3, tools.INPUTS, bias_initializer="ones")
        model.layers[-1].kernel.assign(np.full((tools.INPUTS, 3), 0.5))
        opt = tools.optimizer(
            real_optimizer=keras.optimizers.SGD(1.0), **arguments
        )
        eager_fit(model, opt, x, y, tools.loss())
        kernels.append(model.layers[-1].kernel.numpy())
        biases.append(model.layers[-1].bias.numpy())
    np.testing.assert_array_equal(*kernels)
    start = np.ones(3)
    gradient = start - biases[0]
    if "clipvalue" in argument:
        expected = start - np.clip(gradient, -1e-4, 1e-4)
    elif "weight_decay" in argument:
        expected = biases[0] - 0.1
    else:  # there is one real variable, so its norm is the global norm
        expected = start - gradient * 1e-3 / np.linalg.norm(gradient)
    np.testing.assert_allclose(biases[1], expected, rtol=1e-5)


def test_conflicting_real_optimizer_raises():
    inner = keras.optimizers.SGD(0.1, clipnorm=1.0)
    with pytest.raises(ValueError, match="`clipnorm`.*Received: clipnorm=2.0"):
        kq.QPSBGD(real_optimizer=inner, clipnorm=2.0)
    with pytest.raises(ValueError, match="`use_ema`.*Received"):
        kq.QPSBGD(real_optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    with pytest.raises(ValueError, match="`real_optimizer`.*Received"):
        kq.QPSBGD(real_optimizer=kq.QPSBGD())
    with pytest.raises(ValueError):
        kq.QPSBGD(real_optimizer="adamm")


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"kappa": 0}, "kappa"),
        ({"kappa": -1.0}, "kappa"),
        ({"kappa": float("inf")}, "kappa"),
        ({"kappa": 1.0, "gradient_scale": "batch"}, "kappa"),
        ({"gradient_scale": "mean"}, "gradient_scale"),
        ({"seed": 0.5}, "seed"),
        ({"on_failure": "give up"}, "on_failure"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}`.*Received: "):
        kq.QPSBGD(**arguments)


def test_too_wide_layer_raises_before_training():
    model = one_layer(2, 21)
    with pytest.raises(
        kq.backends.BackendUnavailable, match="at most 20 inputs"
    ):
        eager_fit(
            model, kq.QPSBGD(backend="exact"), np.ones((2, 21)), np.ones((2, 2))
        )


def test_model_without_binary_kernel_raises():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(
        ValueError, match="no trainable binary kernel.*Received"
    ):
        eager_fit(model, kq.QPSBGD(), np.ones((2, 3)), np.ones((2, 2)))


def test_frozen_layer_does_not_move():
    x, y = tools.data()
    model = tools.small_model()
    model.layers[-2].trainable = False
    before, last = tools.kernels(model)
    found = eager_fit(
        model, tools.optimizer(), x, y, tools.loss()
    ) and tools.kernels(model)
    np.testing.assert_array_equal(found[0], before)
    assert not np.array_equal(found[1], last)


@pytest.mark.once
def test_wide_layers_learn():
    """Layers wider than `WIDE` use the rows form, solved by sweeps."""
    rng = np.random.default_rng(0)
    n = recording.WIDE + 44
    w = rng.choice([-1.0, 1.0], size=(n,))
    x = rng.normal(size=(256, n)).astype("float32")
    y = (x @ w > 0).astype("int32")
    model = one_layer(2, n)
    model.compile(kq.QPSBGD(0.01, seed=0), tools.loss(), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, epochs=8, verbose=0).history
    assert history["accuracy"][-1] > 0.8


def test_wide_layers_agree_with_the_gram_form(monkeypatch):
    """Both forms are the same problem. The `sign` backend reads either."""
    rng = np.random.default_rng(0)
    n = recording.WIDE + 4
    x = rng.normal(size=(32, n)).astype("float32")
    y = rng.integers(3, size=(32,))
    found = []
    for wide in (recording.WIDE, 10**6):
        monkeypatch.setattr(problems, "WIDE", wide)
        keras.utils.set_random_seed(0)
        model = one_layer(3, n)
        eager_fit(model, tools.optimizer(backend="sign"), x, y, tools.loss())
        found.append(model.layers[-1].kernel.numpy())
    np.testing.assert_array_equal(*found)


def test_missing_gradient_warns():
    model = tools.small_model()
    opt = tools.optimizer()
    opt.build(model.trainable_variables)
    x, y = tools.data()
    grads = tools.gradients(model, x, y)
    grads[1] = None
    with pytest.warns(UserWarning, match="No gradient exists"):
        opt.apply_gradients(zip(grads, model.trainable_variables))
    opt.apply([], [])


def test_host_backend_with_xla_raises():
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer(backend=tools.GapBackend())
    with pytest.raises(ValueError, match="`gap`.*jit_compile=False.*Received"):
        tools.fit(model, opt, x, y, jit_compile=True)


def test_host_backend_does_not_affect_other_models():
    x, y = tools.data()
    host = tools.optimizer(backend=tools.GapBackend())
    tools.fit(tools.small_model(), host, x, y)
    model = tools.small_model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile(tools.optimizer(), tools.loss(), jit_compile=True)
    assert all(getattr(layer, "supports_jit", True) for layer in model.layers)


def test_config_and_pickle():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    opt = kq.QPSBGD(
        schedule,
        {"name": "native", "preset": "fast"},
        gradient_scale="rms",
        kappa=2.0,
        real_optimizer=keras.optimizers.SGD(0.5, momentum=0.9),
        seed=7,
        on_failure="ridge",
        weight_decay=0.01,
        use_ema=True,
        name="mine",
    )
    config = opt.get_config()
    again = kq.QPSBGD.from_config(config)
    assert again.get_config() == config
    assert again.backend.preset == "fast"
    assert again.real_optimizer.weight_decay == 0.01
    assert float(again.real_optimizer.momentum) == 0.9
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(opt))
    assert restored.get_config() == config
    default = kq.QPSBGD().get_config()
    assert kq.QPSBGD.from_config(default).get_config() == default
    if _keras.KERAS_3:
        assert pickle.loads(pickle.dumps(opt)).get_config() == config


def test_set_weights():
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer(real_optimizer="adam")
    eager_fit(model, opt, x, y, tools.loss())
    values = [np.array(v) for v in opt.variables]
    other = tools.optimizer(real_optimizer="adam")
    other.build(model.trainable_variables)
    other.set_weights(values)
    tools.assert_equal([np.array(v) for v in other.variables], values)
    with pytest.raises((ValueError, AttributeError)):
        opt.stateless_apply([], [], [])
