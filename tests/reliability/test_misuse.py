"""Wrong arguments of optimizers raise clear errors and change nothing."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq

OPTIMIZERS = [
    kq.QPSBGD,
    kq.optimizers.Bop,
    kq.optimizers.ProxQuant,
    kq.optimizers.SignSGD,
]
EVERY = pytest.mark.parametrize("make", OPTIMIZERS)


def small_model(make, **arguments):
    weights = "latent" if make is kq.optimizers.ProxQuant else "binary"
    return tools.small_model(training_weights=weights, **arguments)


def fit(make, model, opt, x, y):
    """Trains a model. Only `QPSBGD` uses a graph, because tracing is slow."""
    eager = make is not kq.QPSBGD
    return tools.fit(model, opt, x, y, run_eagerly=eager)


def states(opt):
    return [np.array(tf.convert_to_tensor(v)) for v in opt.variables]


def message_of(function, kind=ValueError):
    with pytest.raises(kind) as caught:
        function()
    return str(caught.value)


# Unknown variables


@EVERY
def test_another_model(make):
    """Without biases, all unknown variables are binary kernels."""
    x, y = tools.data()
    opt = make(0.05)
    fit(make, small_model(make, use_bias=False), opt, x, y)
    other = small_model(make, use_bias=False)
    before, state = other.get_weights(), states(opt)
    text = message_of(lambda: fit(make, other, opt, x, y))
    assert "new optimizer" in text
    for variable in other.trainable_variables:
        assert getattr(variable, "path", variable.name) in text
    tools.assert_equal(other.get_weights(), before)
    tools.assert_equal(states(opt), state)


@EVERY
def test_a_layer_that_is_unfrozen_later(make):
    x, y = tools.data()
    model, opt = small_model(make, use_bias=False), make(0.05)
    model.layers[0].trainable = False
    fit(make, model, opt, x, y)
    model.layers[0].trainable = True
    assert "unfreezing" in message_of(lambda: fit(make, model, opt, x, y))


@EVERY
def test_iterations_count_while_all_binary_layers_are_frozen(make):
    """The schedule of the learning rate continues."""
    x, y = tools.data()
    weights = small_model(make).layers[0].training_weights
    model = keras.Sequential(
        [
            keras.layers.InputLayer((tools.INPUTS,)),
            kq.layers.BinaryDense(4, training_weights=weights),
            keras.layers.Dense(3),
        ]
    )
    opt = make(0.05)
    fit(make, model, opt, x, y)
    assert int(tf.convert_to_tensor(opt.iterations)) == tools.STEPS
    model.layers[0].trainable = False
    frozen, moving = (
        model.layers[0].get_weights(),
        model.layers[1].get_weights(),
    )
    fit(make, model, opt, x, y)
    assert int(tf.convert_to_tensor(opt.iterations)) == 2 * tools.STEPS
    tools.assert_equal(model.layers[0].get_weights(), frozen)
    assert not np.array_equal(model.layers[1].get_weights()[0], moving[0])


@EVERY
def test_no_binary_kernel(make):
    x, y = tools.data()
    model = keras.Sequential([keras.layers.Dense(3)])
    text = message_of(lambda: fit(make, model, make(0.05), x, y))
    assert "no trainable binary kernel" in text and "Received" in text


@EVERY
def test_nothing_to_train(make):
    """Keras may warn, but nothing changes."""
    x, y = tools.data()
    model, opt = small_model(make), make(0.05)
    model.trainable = False
    before = model.get_weights()
    fit(make, model, opt, x, y)
    tools.assert_equal(model.get_weights(), before)


# Gradients


@EVERY
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_loss_without_gradients(make, eager):
    x, y = tools.data()
    model = small_model(make)
    model.compile(
        make(0.05), lambda y, _: 0.0 * tf.cast(y, "float32"), run_eagerly=eager
    )
    text = message_of(lambda: model.fit(x, y, verbose=0))
    assert "No gradients provided for any variable" in text


@EVERY
def test_missing_gradients_are_named_once_each(make):
    x, y = tools.data()
    model, opt = small_model(make), make(0.05)
    variables = model.trainable_variables
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            grads = tools.gradients(model, x, y)
            grads[0] = grads[3] = None
            opt.apply_gradients(zip(grads, variables))
    texts = [str(w.message) for w in caught if "No gradient" in str(w.message)]
    paths = [getattr(v, "path", v.name) for v in (variables[0], variables[3])]
    assert len(texts) == 2
    for path, text in zip(paths, texts):
        assert "/" in path and f"`{path}`" in text


@EVERY
def test_number_of_gradients_must_match(make):
    x, y = tools.data()
    model, opt = small_model(make), make(0.05)
    variables = model.trainable_variables
    grads = tools.gradients(model, x, y)
    before = model.get_weights()
    text = message_of(lambda: opt.apply(grads[:2], variables))
    assert text.endswith("Received: 2 gradients for 4 variables")
    text = message_of(lambda: make(0.05).apply(grads))
    assert text.endswith("Received: trainable_variables=None")
    assert "2 gradients" in message_of(lambda: opt.apply(grads[:2]))
    tools.assert_equal(model.get_weights(), before)


# Weights of the optimizer


@EVERY
def test_set_weights(make):
    x, y = tools.data()
    model, opt = small_model(make), make(0.05)
    before = states(opt)
    assert "build" in message_of(lambda: opt.set_weights([1, 2, 3]))
    tools.assert_equal(states(opt), before)
    fit(make, model, opt, x, y)
    state = states(opt)
    assert "Received" in message_of(lambda: opt.set_weights(state[:-1]))
    wrong = [*state[:-1], np.zeros((7, 7))]
    assert "(7, 7)" in message_of(lambda: opt.set_weights(wrong))
    tools.assert_equal(states(opt), state)
    other = make(0.05)
    other.build(model.trainable_variables)
    other.set_weights(state)
    tools.assert_equal(states(other), state)


# `real_optimizer`


@EVERY
def test_real_optimizer_of_the_user_is_not_changed(make, tmp_path):
    x, y = tools.data()
    adam = keras.optimizers.Adam(0.01)
    adam.exclude_from_weight_decay(var_names=["bias"])
    before = dict(vars(adam))
    # One object can be passed to several optimizers.
    runs = []
    for _ in range(2):
        opt = make(0.05, real_optimizer=adam, clipnorm=0.3, weight_decay=0.1)
        model = small_model(make)
        fit(make, model, opt, x, y)
        runs.append(model.get_weights())
        assert opt.real_optimizer is not adam
        assert opt.real_optimizer.clipnorm == 0.3
    tools.assert_equal(*runs)
    assert vars(adam).keys() == before.keys()
    assert adam.clipnorm is None
    # Weight decay did not change the biases.
    plain = small_model(make)
    opt = make(0.05, real_optimizer=adam, clipnorm=0.3)
    fit(make, plain, opt, x, y)
    tools.assert_equal(plain.get_weights()[1::2], runs[0][1::2])
    # It can still train another model and be saved with it.
    other = tools.small_model()
    other.compile(adam, tools.loss())
    other.fit(x, y, verbose=0)
    other.save(tmp_path / "other.keras")
    loaded = keras.models.load_model(tmp_path / "other.keras")
    tools.assert_equal(states(loaded.optimizer), states(adam))


def test_schedules_without_a_configuration_are_accepted():
    class Halved(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5 ** tf.cast(step, "float32")

    x, y = tools.data()
    real = keras.optimizers.SGD(Halved())
    found = []
    for _ in range(2):
        model = tools.small_model()
        tools.fit(model, tools.optimizer(real_optimizer=real), x, y)
        found.append(model.get_weights())
        real = keras.optimizers.SGD(Halved())
    tools.assert_equal(*found)


@pytest.mark.parametrize("real_optimizer", [None, {}, {"config": {}}])
def test_invalid_real_optimizer(real_optimizer):
    text = message_of(lambda: kq.QPSBGD(real_optimizer=real_optimizer))
    assert "`real_optimizer` must be" in text and "Received: real" in text


def test_real_optimizer_by_configuration():
    """The keys that legacy Keras adds are optional, and nothing is modified."""
    config = {"class_name": "RMSprop", "config": {"momentum": 0.5}}
    opt = kq.QPSBGD(real_optimizer=config)
    assert config == {"class_name": "RMSprop", "config": {"momentum": 0.5}}
    assert isinstance(opt.real_optimizer, keras.optimizers.RMSprop)
    tools.fit(tools.small_model(), opt, *tools.data())
    assert float(opt.real_optimizer.momentum) == 0.5


def test_optimizers_of_keras_optimizers_legacy_raise():
    legacy = getattr(keras.optimizers, "legacy", None)
    if not hasattr(legacy, "SGD"):
        pytest.skip("this Keras has no legacy optimizers")
    try:
        old = legacy.SGD()
    except ImportError:
        pytest.skip("this Keras has only placeholders")
    text = message_of(lambda: kq.QPSBGD(real_optimizer=old))
    assert "`keras.optimizers.Optimizer`" in text and "Received" in text


# Clipping and weight decay


@EVERY
def test_one_kind_of_clipping(make):
    text = message_of(lambda: make(0.05, clipnorm=0.1, clipvalue=0.1))
    assert "clipnorm" in text and "clipvalue" in text and "Received" in text
    real = keras.optimizers.SGD(0.1, clipvalue=0.1)
    message_of(lambda: make(0.05, real_optimizer=real, global_clipnorm=0.1))


@EVERY
@pytest.mark.parametrize(
    "name", ["clipnorm", "clipvalue", "global_clipnorm", "weight_decay"]
)
def test_clipping_and_weight_decay_are_attributes(make, name):
    opt = make(0.05, **{name: 0.25})
    assert getattr(opt, name) == getattr(opt.real_optimizer, name) == 0.25
    again = make.from_config(opt.get_config())
    assert getattr(again, name) == 0.25
    assert getattr(make(0.05), name) is None


# Numbers


def test_numpy_numbers_can_be_saved(tmp_path):
    x, y = tools.data()
    backend = {"name": "simulated_annealing", "num_reads": np.int64(2)}
    opt = kq.QPSBGD(
        0.05, backend, seed=np.int64(3), kappa=np.float32(2), on_failure="hold"
    )
    assert type(opt.seed) is int and type(opt.kappa) is float
    model = tools.small_model()
    tools.fit(model, opt, x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert loaded.get_config()["seed"] == 3
    assert loaded.backend.get_config()["num_reads"] == 2
    with pytest.raises(ValueError, match="Received: seed=0.5"):
        kq.QPSBGD(seed=0.5)
    with pytest.raises(ValueError, match="`kappa`.*Received: kappa='x'"):
        kq.QPSBGD(kappa="x")


@pytest.mark.parametrize(
    ("make", "rate"),
    [(make, np.nan) for make in OPTIMIZERS],
)
def test_learning_rate_that_is_not_finite(make, rate):
    with pytest.warns(UserWarning, match="learning rate is not finite.*Rec"):
        make(rate)
    x, y = tools.data()
    model, opt = small_model(make), make(0.05)
    fit(make, model, opt, x, y)
    before = tools.kernels(model)
    opt.learning_rate = rate
    with pytest.warns(UserWarning, match="learning rate is not finite"):
        model.fit(x, y, verbose=0)
    if make is kq.QPSBGD:  # such updates are skipped
        tools.assert_equal(tools.kernels(model), before)
        assert opt.skipped_updates == 1


@pytest.mark.parametrize("inputs", [tools.INPUTS, 300])
def test_inputs_whose_norm_overflows(inputs):
    """Their gradients are finite, but they have no second moments."""
    x, y = tools.data(inputs=inputs)
    x = np.float32(1e20) * x
    model = keras.Sequential(
        [keras.layers.InputLayer((inputs,)), kq.layers.BinaryDense(3)]
    )
    opt = tools.optimizer()
    before = tools.kernels(model)[0]
    gradient = np.array(tools.gradients(model, x, y, training=False)[0])
    tools.fit(model, opt, x, y, batch_size=len(x))
    assert np.isfinite(gradient).all() and opt.skipped_updates == 0
    for variable in [*model.variables, *opt.variables]:
        value = tf.cast(tf.convert_to_tensor(variable), tf.float32)
        assert np.isfinite(value).all()
    # Without couplings, the kernel moves along the signs of its gradient.
    moved = (before - tools.kernels(model)[0]) / 0.05
    np.testing.assert_allclose(moved, np.sign(gradient), rtol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_a_skipped_update_are_dropped(compiled):
    """With the rule of the paper, the norm of an input must be finite."""
    x, y = tools.data()
    bad = tools.BATCH
    found = []
    for first in (0, bad):
        huge = x.copy()
        huge[:bad] *= 1e20
        model, opt = tools.small_model(), tools.optimizer(rule="paper")
        opt.build(model.trainable_variables)
        arguments = model, opt, huge[first:], y[first:]
        if first:
            tools.fit(*arguments, jit_compile=compiled)
        else:
            with pytest.warns(UserWarning, match="1 update.*skipped"):
                tools.fit(*arguments, jit_compile=compiled)
        found.append(tools.kernels(model))
        assert np.isfinite(found[-1][0]).all()
    tools.assert_equal(*found)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_layer_without_inputs(shape):
    with pytest.raises(ValueError, match="at least one input.*Received"):
        kq.layers.BinaryDense(4).build((None, *shape))


@pytest.mark.parametrize("function", [False, True], ids=["fit", "function"])
def test_host_solver_under_xla(function):
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer(backend=tools.GapBackend())
    if not function:
        model.compile(opt, tools.loss(), jit_compile=True)
        with pytest.raises(ValueError, match="jit_compile=False"):
            model.fit(x, y, verbose=0)
        return

    @tf.function(jit_compile=True)
    def step():
        grads = tools.gradients(model, tf.constant(x), tf.constant(y))
        opt.apply_gradients(zip(grads, model.trainable_variables))

    with pytest.raises(ValueError, match="jit_compile=False"):
        step()


@pytest.mark.parametrize("name", ["my optimizer", "a/b:c", 7])
def test_unusual_names(name):
    """They are accepted, or Keras raises."""
    try:
        opt = kq.QPSBGD(0.05, name=name)
    except ValueError as error:
        assert "name" in str(error)
    else:
        assert opt.name == name
