"""Tests the update, the arguments and the state of `QPSBGD`."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras


def one_layer(units=2, inputs=3, **arguments):
    layer = kq.layers.BinaryDense(units, **arguments)
    return keras.Sequential([keras.layers.InputLayer((inputs,)), layer])


def eager_step(model, opt, x, y, loss="mse"):
    model.compile(opt, loss, run_eagerly=True)
    model.train_on_batch(x, y)


@pytest.mark.parametrize("factor", [{"inputs": 16.0}, {"loss": 2.0**-20}])
def test_steps_do_not_depend_on_scales(factor):
    """Powers of two scale without rounding, so the kernels are equal."""
    x, y = tools.data()
    found = []
    for inputs, loss in (
        (1.0, 1.0),
        (factor.get("inputs", 1.0), factor.get("loss", 1.0)),
    ):
        keras.utils.set_random_seed(1)
        model = one_layer(3, tools.INPUTS, use_bias=False)
        # The rescaling undoes the factor, so only the rows are scaled.
        model.add(keras.layers.Rescaling(1.0 / inputs))
        opt = tools.optimizer(backend="exact")
        model.compile(opt, tools.loss(), loss_weights=loss, run_eagerly=True)
        before = tools.kernels(model)[0]
        for start in (0, 6, 12):
            rows = slice(start, start + 6)
            model.train_on_batch(inputs * x[rows], y[rows])
        found.append(tools.kernels(model)[0])
    np.testing.assert_array_equal(*found)
    assert not np.array_equal(found[0], before)


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

    eager_step(model, tools.optimizer(), x, rng.normal(size=(8, 2)), loss)
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
    eager_step(model, tools.optimizer(), x, target)  # no gradient at all
    np.testing.assert_array_equal(model.layers[-1].kernel.numpy(), before)
    assert model.optimizer.skipped_updates == 0
    target[0, 0] += 1.0
    target[1, 1] += 1.0
    eager_step(model, tools.optimizer(), x, target)
    moved = np.abs(model.layers[-1].kernel.numpy() - before) > 0
    np.testing.assert_array_equal(moved, [[1, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize("real", ["adam", keras.optimizers.Adagrad])
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
    eager_step(frozen, keras.optimizers.get(name), x, y, tools.loss())
    inner = real if isinstance(real, str) else real(0.01)
    eager_step(ours, tools.optimizer(real_optimizer=inner), x, y, tools.loss())
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
            moved = np.abs(model.layers[-1].kernel.numpy() - before).max()
            (scalars,) = model.optimizer.update_rule.scalars.values()
            sizes.append(moved / tf.convert_to_tensor(scalars)[-1])
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
    eager_step(model, tools.optimizer(), x, y, tools.loss())
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
        eager_step(model, opt, x, y, tools.loss())
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


def test_max_variables():
    """Wider layers move exactly as with the real optimizer alone."""
    x, y = tools.data()
    ours, theirs = tools.small_model(), tools.small_model()
    opt = tools.optimizer(max_variables=3)
    eager_step(ours, opt, x, y, tools.loss())
    eager_step(theirs, "sgd", x, y, tools.loss())
    np.testing.assert_array_equal(
        tools.kernels(ours)[0], tools.kernels(theirs)[0]
    )
    moved = tools.kernels(ours)[1] - tools.kernels(tools.small_model())[1]
    np.testing.assert_allclose(np.abs(moved), 0.05, rtol=1e-4)
    with pytest.raises(ValueError, match="`max_variables`.*Received: .*=2"):
        eager_step(ours, tools.optimizer(max_variables=2), x, y, tools.loss())


def test_rule_of_the_paper_needs_a_built_optimizer():
    """A call of the model before `build` does no harm."""
    x, y = tools.data()
    model = tools.small_model()
    before = model.get_weights()
    with pytest.raises(ValueError, match="`optimizer.build.*Received: "):
        eager_step(model, tools.optimizer(rule="paper"), x, y, tools.loss())
    tools.assert_equal(model.get_weights(), before)
    model(x)
    opt = tools.optimizer(rule="paper")
    opt.build(model.trainable_variables)
    eager_step(model, opt, x, y, tools.loss())
    assert not np.array_equal(model.get_weights()[0], before[0])


SETTINGS = {
    "kappa": 2.0,
    "momentum": 0.5,
    "covariance_decay": 0.75,
    "max_variables": 100,
    "seed": 7,
    "rule": "paper",
    "name": "mine",
}


def test_config_and_pickle():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    opt = kq.QPSBGD(
        schedule,
        {"name": "native", "preset": "fast"},
        kappa=2,
        momentum=np.float32(0.5),
        covariance_decay=0.75,
        max_variables=100,
        real_optimizer=keras.optimizers.SGD(0.5, momentum=0.9),
        seed=7,
        on_failure="ridge",
        rule="paper",
        weight_decay=0.01,
        use_ema=True,
        name="mine",
    )
    config = opt.get_config()
    assert {name: config[name] for name in SETTINGS} == SETTINGS
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
