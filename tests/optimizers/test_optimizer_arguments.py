"""Wrong arguments of optimizers raise clear errors and change nothing."""

import functools
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers import Bop
from keras_qpsbgd.optimizers import ProxQuant
from keras_qpsbgd.optimizers import SignSGD

# The solver does not matter here, and this one needs no compilation.
SIGN = functools.partial(QPSBGD, backend="sign")
# The others use the same code as `Bop`.
BOTH = pytest.mark.parametrize("make", [SIGN, Bop], ids=["QPSBGD", "Bop"])
NAN = float("nan")


@pytest.mark.parametrize(
    "make, name, values",
    [
        (QPSBGD, "kappa", [0, -1.0, float("inf"), NAN, "3", None]),
        (QPSBGD, "momentum", [1, 1.0, -0.1, NAN, "0.9", None]),
        (QPSBGD, "covariance_decay", [1, 1.0, -0.1, NAN, "0.9", None]),
        (QPSBGD, "rule", ["newton", "Paper", None, 1]),
        (QPSBGD, "max_variables", [0, -1, 2.5, "8"]),
        (QPSBGD, "seed", [0.5, "1"]),
        (QPSBGD, "on_failure", ["give up", 3]),
        (QPSBGD, "backend", ["no backend", 3, None]),
        (QPSBGD, "real_optimizer", [None, {}, {"config": {}}]),
        (QPSBGD, "real_optimizer", [QPSBGD(), Bop()]),
        (QPSBGD, "use_ema", [keras.optimizers.SGD(0.1, use_ema=True)]),
        (SignSGD, "momentum", [1.0, None]),
        (ProxQuant, "regularization", [-1.0, "1"]),
        (Bop, "threshold", [NAN, "a"]),
    ],
)
def test_invalid_arguments(make, name, values):
    argument = "real_optimizer" if name == "use_ema" else name
    for value in values:
        with pytest.raises(ValueError, match=f"`{name}`.*Received: "):
            make(**{argument: value})


@BOTH
def test_clipping_and_weight_decay(make):
    """They are those of `real_optimizer`, and one kind of clipping is used."""
    for name in ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay"):
        opt = make(0.05, **{name: 0.25})
        assert getattr(opt, name) == getattr(opt.real_optimizer, name) == 0.25
        again = type(opt).from_config(opt.get_config())
        assert getattr(again, name) == 0.25
        assert getattr(make(0.05), name) is None
    real = keras.optimizers.SGD(0.1, clipvalue=0.1)
    for arguments in (
        {"clipnorm": 0.1, "clipvalue": 0.1},
        {"real_optimizer": real, "global_clipnorm": 0.1},
        {"real_optimizer": real, "clipvalue": 0.2},
    ):
        with pytest.raises(ValueError, match="clipvalue.*Received"):
            make(0.05, **arguments)


def test_optimizers_of_keras_optimizers_legacy_raise():
    legacy = getattr(keras.optimizers, "legacy", None)
    if not hasattr(legacy, "SGD"):
        pytest.skip("this Keras has no legacy optimizers")
    try:
        old = legacy.SGD()
    except ImportError:
        pytest.skip("this Keras has only placeholders")
    with pytest.raises(ValueError, match="`keras.optimizers.Optim.*Received"):
        QPSBGD(real_optimizer=old)


# Models and gradients


def fit(model, opt, x=None, y=None):
    """Trains eagerly, because tracing is slow."""
    if x is None:
        x, y = tools.data()
    return tools.fit(model, opt, x, y, run_eagerly=True)


def states(opt):
    return [np.array(tf.convert_to_tensor(v)) for v in opt.variables]


def path(variable):
    return getattr(variable, "path", variable.name)


@BOTH
def test_unknown_variables(make):
    """Those of another model, and of a layer that is unfrozen later.

    Without biases, all unknown variables are binary kernels.
    """
    model, opt = tools.small_model(use_bias=False), make(0.05)
    model.layers[0].trainable = False
    fit(model, opt)
    other = tools.small_model(use_bias=False)
    before, state = other.get_weights(), states(opt)
    with pytest.raises(ValueError, match="new optimizer") as error:
        fit(other, opt)
    for variable in other.trainable_variables:
        assert path(variable) in str(error.value)
    tools.assert_equal(other.get_weights(), before)
    tools.assert_equal(states(opt), state)
    model.layers[0].trainable = True
    with pytest.raises(ValueError, match="unfreezing"):
        fit(model, opt)


@BOTH
def test_models_without_trainable_binary_kernels(make):
    model = keras.Sequential([keras.layers.Dense(3)])
    message = "no trainable binary kernel.*Received"
    with pytest.raises(ValueError, match=message):
        fit(model, make(0.05))
    frozen = tools.small_model()
    frozen.trainable = False
    before = frozen.get_weights()
    fit(frozen, make(0.05))  # Keras may warn
    tools.assert_equal(frozen.get_weights(), before)


@BOTH
def test_iterations_count_while_all_binary_layers_are_frozen(make):
    """The schedule of the learning rate continues."""
    model = keras.Sequential(
        [
            keras.layers.InputLayer((tools.INPUTS,)),
            kq.layers.BinaryDense(4),
            keras.layers.Dense(3),
        ]
    )
    opt = make(0.05)
    fit(model, opt)
    assert int(tf.convert_to_tensor(opt.iterations)) == tools.STEPS
    binary, real = model.layers
    binary.trainable = False
    frozen, moving = binary.get_weights(), real.get_weights()
    fit(model, opt)
    assert int(tf.convert_to_tensor(opt.iterations)) == 2 * tools.STEPS
    tools.assert_equal(binary.get_weights(), frozen)
    assert not np.array_equal(real.get_weights()[0], moving[0])


@pytest.mark.parametrize(
    "make, eager",
    [(SIGN, True), (SIGN, False), (Bop, True)],
    ids=["QPSBGD-eager", "QPSBGD-graph", "Bop-eager"],
)
def test_loss_without_gradients(make, eager):
    x, y = tools.data()
    model = tools.small_model()
    model.compile(
        make(0.05), lambda y, _: 0.0 * tf.cast(y, "float32"), run_eagerly=eager
    )
    with pytest.raises(ValueError, match="No gradients provided for any var"):
        model.fit(x, y, verbose=0)


@BOTH
def test_gradients_must_match(make):
    """Missing ones are named once each."""
    x, y = tools.data()
    model, opt = tools.small_model(), make(0.05)
    variables = model.trainable_variables
    grads = tools.gradients(model, x, y)
    before = model.get_weights()
    for arguments in ((grads[:2], variables), (grads[:2],)):
        with pytest.raises(ValueError, match="2 gradients for 4 variables$"):
            opt.apply(*arguments)
    with pytest.raises(ValueError, match="Received: trainable_variables=None$"):
        make(0.05).apply(grads)
    opt.apply([], [])
    tools.assert_equal(model.get_weights(), before)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            grads = tools.gradients(model, x, y)
            grads[0] = grads[3] = None
            opt.apply_gradients(zip(grads, variables))
    texts = [str(w.message) for w in caught if "No gradient" in str(w.message)]
    paths = [path(variables[0]), path(variables[3])]
    assert len(texts) == 2
    for name, text in zip(paths, texts):
        assert "/" in name and f"`{name}`" in text


@BOTH
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("index", [0, 1], ids=["binary", "real"])
def test_gradients_must_have_the_shapes_of_their_variables(make, eager, index):
    model, opt = tools.small_model(), make(0.05)
    variables = model.trainable_variables
    grads = tools.gradients(model, *tools.data())
    grads[index] = tf.zeros((3, 5))
    before = model.get_weights()

    def step():
        opt.apply(grads, variables)

    shape = tuple(variables[index].shape)
    message = rf"shape \(3, 5\) for .*`{path(variables[index])}` of shape "
    with pytest.raises(ValueError, match=message + re.escape(str(shape))):
        step() if eager else tf.function(step)()
    tools.assert_equal(model.get_weights(), before)


def test_gradients_whose_shapes_are_not_known():
    """They are checked when they are known, as with sparse gradients."""
    grads = tools.gradients(tools.small_model(), *tools.data())
    found = []
    for spec in (tf.TensorSpec(None), tf.TensorSpec((None, 3)), None):
        model, opt = tools.small_model(), SIGN(0.05)
        opt.build(model.trainable_variables)

        def step(grad, model=model, opt=opt):
            opt.apply([grad, *grads[1:]], model.trainable_variables)

        grad = grads[0]
        if spec is None:
            grad = tf.IndexedSlices(grad, tf.range(5), tf.constant([5, 3]))
        else:
            step = tf.function(step, input_signature=[spec])
        step(grad)
        found.append(model.get_weights())
    tools.assert_equal(found[0], found[1])
    tools.assert_equal(found[0], found[2])


def test_set_weights():
    model, opt, other = tools.small_model(), SIGN(0.05), SIGN(0.05)
    fit(model, opt)
    other.build(model.trainable_variables)
    other.set_weights(states(opt))
    tools.assert_equal(states(other), states(opt))


# `real_optimizer`


@BOTH
def test_real_optimizer_of_the_user_is_not_changed(make, tmp_path):
    x, y = tools.data()
    adam = keras.optimizers.Adam(0.01)
    adam.exclude_from_weight_decay(var_names=["bias"])
    before = dict(vars(adam))
    # One object can be passed to several optimizers.
    runs = []
    for arguments in ({"weight_decay": 0.1}, {"weight_decay": 0.1}, {}):
        opt = make(0.05, real_optimizer=adam, clipnorm=0.3, **arguments)
        model = tools.small_model()
        fit(model, opt)
        runs.append(model.get_weights())
        assert opt.real_optimizer is not adam
        assert opt.real_optimizer.clipnorm == 0.3
    tools.assert_equal(*runs[:2])
    # Weight decay did not change the biases.
    tools.assert_equal(runs[2][1::2], runs[0][1::2])
    assert vars(adam).keys() == before.keys()
    assert adam.clipnorm is None
    # It can still train another model and be saved with it.
    other = tools.small_model()
    other.compile(adam, tools.loss(), run_eagerly=True)
    other.fit(x, y, verbose=0)
    other.save(tmp_path / "other.keras")
    loaded = keras.models.load_model(tmp_path / "other.keras")
    tools.assert_equal(states(loaded.optimizer), states(adam))


def test_schedules_without_a_configuration_are_accepted():
    class Halved(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5 ** tf.cast(step, "float32")

    found = []
    for _ in range(2):
        real, model = keras.optimizers.SGD(Halved()), tools.small_model()
        fit(model, tools.optimizer(backend="sign", real_optimizer=real))
        found.append(model.get_weights())
    tools.assert_equal(*found)


def test_real_optimizer_by_configuration():
    """The keys that legacy Keras adds are optional, and nothing is modified."""
    config = {"class_name": "RMSprop", "config": {"momentum": 0.5}}
    opt = SIGN(real_optimizer=config)
    assert config == {"class_name": "RMSprop", "config": {"momentum": 0.5}}
    assert isinstance(opt.real_optimizer, keras.optimizers.RMSprop)
    assert float(opt.real_optimizer.momentum) == 0.5


# Numbers


def test_numpy_numbers_can_be_saved(tmp_path):
    backend = {"name": "simulated_annealing", "num_reads": np.int64(2)}
    opt = QPSBGD(0.05, backend, seed=np.int64(3), kappa=np.float32(2))
    model = tools.small_model()
    model.compile(opt, tools.loss())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert (loaded.seed, loaded.kappa) == (3, 2.0)
    assert loaded.backend.get_config()["num_reads"] == 2


@pytest.mark.parametrize("rate", [np.inf, NAN])
def test_learning_rate_that_is_not_finite(rate):
    x, y = tools.data()
    model, opt = tools.small_model(), SIGN(0.05)
    fit(model, opt)
    before = tools.kernels(model)
    opt.learning_rate = rate
    with pytest.warns(UserWarning, match="learning rate was not finite"):
        model.fit(x, y, verbose=0)
    tools.assert_equal(tools.kernels(model), before)
    assert opt.skipped_updates == 1


@pytest.mark.parametrize(
    "inputs", [tools.INPUTS, pytest.param(300, marks=pytest.mark.exhaustive)]
)
def test_inputs_whose_norm_overflows(inputs):
    """Their gradients are finite, but they have no second moments."""
    x, y = tools.data(inputs=inputs)
    x = np.float32(1e19) * x
    model = keras.Sequential(
        [keras.layers.InputLayer((inputs,)), kq.layers.BinaryDense(3)]
    )
    opt = tools.optimizer()
    before = tools.kernels(model)[0]
    gradient = np.array(tools.gradients(model, x, y, training=False)[0])
    tools.fit(model, opt, x, y, batch_size=len(x), run_eagerly=True)
    assert np.isfinite(gradient).all() and opt.skipped_updates == 0
    for variable in [*model.variables, *opt.variables]:
        value = tf.cast(tf.convert_to_tensor(variable), tf.float32)
        assert np.isfinite(value).all()
    # Without couplings, the kernel moves along the signs of its gradient.
    moved = (before - tools.kernels(model)[0]) / 0.05
    np.testing.assert_allclose(moved, np.sign(gradient), rtol=1e-4)


def test_too_wide_layer_raises_before_training():
    model = keras.Sequential(
        [keras.layers.InputLayer((21,)), kq.layers.BinaryDense(2)]
    )
    with pytest.raises(
        kq.backends.BackendUnavailable, match="at most 20 inputs"
    ):
        fit(model, QPSBGD(backend="exact"), np.ones((2, 21)), np.ones(2))


@pytest.mark.slow
def test_too_wide_layer_with_blocks():
    """The message names its inputs, not only those of a block."""
    layer = kq.layers.BinaryDense(2, name="wide")
    model = keras.Sequential([keras.layers.InputLayer((301,)), layer])
    message = (
        "at most 20 inputs.*Received: 101 inputs and 2 outputs .`wide` has 301 "
        "inputs in 3 blocks of couplings with 101 inputs.$"
    )
    with pytest.raises(kq.backends.BackendUnavailable, match=message):
        fit(model, QPSBGD(backend="exact"), np.ones((2, 301)), np.ones(2))


@pytest.mark.slow
def test_host_solver_under_xla():
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer(backend=tools.GapBackend())
    message = "`gap`.*jit_compile=False.*Received"
    with pytest.raises(ValueError, match=message):
        tools.fit(model, opt, x, y, jit_compile=True)

    @tf.function(jit_compile=True)
    def step():
        grads = tools.gradients(model, tf.constant(x), tf.constant(y))
        opt.apply_gradients(zip(grads, model.trainable_variables))

    with pytest.raises(ValueError, match=message):
        step()
