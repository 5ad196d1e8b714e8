"""Tests `SignSGD`, `ProxQuant` and `Bop` on a layer computed by hand.

The layer has four inputs, one output, the kernel (1/2, 1/4, 3/4, -1/2) and the
bias 0. The samples are x1 = (1, 1, 0, 0) and x2 = (0, 1, 2, 0). The loss
sum_b t_b y_b with t = (1, -1/2) has the gradient
g = sum_b t_b x_b = (1, 1/2, -1, 0) for the kernel and 1/2 for the bias. The
loss is therefore g.w + bias / 2, where w is the kernel or its sign. At the
start it is 1/2 + 1/8 - 3/4 = -1/8 with the kernel and 1 + 1/2 - 1 = 1/2 with
its sign. All numbers are exact in floating point.
"""

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers import Bop
from keras_qpsbgd.optimizers import ProxQuant
from keras_qpsbgd.optimizers import SignSGD

ALL = (SignSGD, ProxQuant, Bop)
START = [0.5, 0.25, 0.75, -0.5]
LATENT, SIGN = -0.125, 0.5  # the loss at the start
X = np.array([[1, 1, 0, 0], [0, 1, 2, 0]], "float32")
T = np.array([[1], [-0.5]], "float32")


def loss(y_true, y_pred):
    return 2.0 * y_true * y_pred  # Keras takes the mean over two samples


def hand_model(opt=None, weights=None, bits=1, **arguments):
    if weights is None:
        weights = "latent" if isinstance(opt, ProxQuant) else "binary"
    layer = kq.layers.BinaryDense(
        1, bits=bits, output_scale=None, training_weights=weights
    )
    model = keras.Sequential([keras.layers.InputLayer((4,)), layer])
    restart(model)
    if opt is not None:
        model.compile(opt, loss, **arguments)
    return model


def restart(model):
    model.set_weights([np.array(START)[:, None], np.zeros(1)])


def kernel(model):
    return model.layers[-1].kernel.numpy()[:, 0].tolist()


def losses(model, epochs, t=T):
    arguments = {"batch_size": 2, "shuffle": False, "verbose": 0}
    return model.fit(X, t, epochs=epochs, **arguments).history["loss"]


def one_loss(model):
    """Returns the loss of one step from the start."""
    restart(model)
    return float(np.ravel(model.train_on_batch(X, T))[0])


def test_sign_sgd():
    opt = SignSGD(0.25, real_optimizer=keras.optimizers.SGD(0.5))
    model = hand_model(opt, run_eagerly=True)
    assert losses(model, 1) == [SIGN]
    assert kernel(model) == [0.25, 0.0, 1.0, -0.5]
    assert model.layers[-1].bias.numpy() == [-0.25]


@pytest.mark.parametrize(
    "momentum, expected",
    [
        # m = g/2, then g/4 - g/8: the second step has the same direction.
        (0.5, [0.0, -0.25, 1.25, -0.5]),
        # The second step undoes the first.
        (0.0, START),
    ],
)
def test_signum(momentum, expected):
    model = hand_model(SignSGD(0.25, momentum), run_eagerly=True)
    model.train_on_batch(X, T)
    model.train_on_batch(X, -0.25 * T)
    assert kernel(model) == expected


def test_bop():
    model = hand_model(Bop(0.5, 0.3), run_eagerly=True)
    # m = g/2. The first entry has the sign of its weight and exceeds the
    # threshold. The second (1/4) is below it. The third has the opposite sign.
    assert losses(model, 1) == [SIGN]
    assert kernel(model) == [-0.5, 0.25, 0.75, -0.5]
    # m = 3/4 g. The first weight now has the opposite sign. The second entry
    # (3/8) exceeds the threshold, so its weight flips.
    model.train_on_batch(X, T)
    assert kernel(model) == [-0.5, -0.25, 0.75, -0.5]


PROX = [
    # Kernel - g/2 = (0, 0, 5/4, -1/2), pulled by 1/2 * 1/4 * 1 to the sign.
    [0.125, 0.125, 1.125, -0.625],
    # (-3/8, -1/8, 13/8, -5/8), pulled by 1/2 * 1/4 * 2.
    [-0.625, -0.375, 1.375, -0.875],
    # (-9/8, -5/8, 15/8, -7/8), pulled by 1/2 * 1/4 * 3, but not past the sign.
    [-1.0, -1.0, 1.5, -1.0],
]


def test_prox_quant_in_fit():
    """From the first step, the loss is the loss of the real weights."""
    opt = ProxQuant(0.5, 0.25, real_optimizer=keras.optimizers.SGD(0.5))
    model = hand_model(opt)  # in a graph
    # g.kernel + bias/2. The bias decreases by 1/4 in each step.
    assert losses(model, 3) == [LATENT, -0.9375 - 0.125, -2.1875 - 0.25]
    assert kernel(model) == PROX[2]
    # g.sign - 3/8
    assert model.evaluate(X, T, verbose=0) == -2.5 - 0.375
    signs = X @ [[-1.0], [-1.0], [1.0], [-1.0]]
    np.testing.assert_array_equal(model.predict(X, verbose=0), signs - 0.75)


def test_prox_quant_with_a_schedule():
    """Called with 0, 1, ..., this schedule returns the default strength."""
    schedule = keras.optimizers.schedules.PolynomialDecay(0.25, 2, 0.75)
    model = hand_model(ProxQuant(0.5, schedule), run_eagerly=True)
    for expected in PROX:
        model.train_on_batch(X, T)
        assert kernel(model) == expected


def test_prox_quant_in_a_custom_loop():
    model = hand_model(weights="latent")
    opt = ProxQuant(0.5, 0.25, real_optimizer="sgd")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(T, model(X)))
        grads = tape.gradient(value, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
        return value

    assert step().numpy() == LATENT
    assert kernel(model) == PROX[0]


def test_training_weights_can_be_changed():
    model = hand_model()
    layer = model.layers[-1]
    found = []
    for weights, opt in (
        ("latent", ProxQuant()),
        ("latent", keras.optimizers.Adam()),
        ("binary", keras.optimizers.Adam()),
        ("binary", QPSBGD(backend="sign")),
    ):
        layer.training_weights = weights
        model.compile(opt, loss, run_eagerly=True)
        found.append(one_loss(model))
        restart(model)
        assert model.evaluate(X, T, verbose=0) == SIGN
    assert found == [LATENT, LATENT, SIGN, SIGN]
    config = layer.get_config()
    assert config["training_weights"] == "binary"
    config["training_weights"] = "latent"
    assert type(layer).from_config(config).training_weights == "latent"
    with pytest.raises(ValueError, match="`training_weights`.*Received: "):
        layer.training_weights = "real"


@pytest.mark.parametrize(
    "make, weights",
    [
        (ProxQuant, "binary"),
        (SignSGD, "latent"),
        (Bop, "latent"),
        (QPSBGD, "latent"),
    ],
)
def test_wrong_training_weights_raise(make, weights):
    model = hand_model(weights=weights)
    name = model.layers[-1].name
    with pytest.raises(
        ValueError, match=f"`training_weights=.*Received: .*{name}.*{weights}"
    ):
        make().build(model.trainable_variables)


@pytest.mark.parametrize(
    "layer, inputs",
    [
        (kq.layers.BinaryDense(2), np.ones((1, 3))),
        (kq.layers.BinaryConv2D(2, (1, 3)), np.ones((1, 3, 3, 1))),
        (kq.layers.BinaryGraphConv(2), [np.ones((1, 3)), np.eye(1)]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_latent_forward_pass_of_every_layer(layer, inputs):
    """Doubling the kernel only affects the latent forward pass."""
    inputs = tf.nest.map_structure(lambda x: tf.constant(x, "float32"), inputs)
    layer(inputs)
    weights = layer.get_weights()

    def ratio(training):
        outputs = []
        for factor in (1.0, 2.0):
            layer.set_weights([factor * w for w in weights])
            outputs.append(layer(inputs, training=training).numpy())
        return np.unique(outputs[1] / outputs[0]).tolist()

    assert ratio(True) == ratio(None) == ratio(False) == [1.0]
    layer.training_weights = "latent"
    assert ratio(True) == ratio(None) == [2.0]
    assert ratio(False) == [1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: SignSGD(rate, 0.5),
        lambda rate: ProxQuant(rate, 0.01),
        lambda rate: Bop(rate, 1e-4),
    ],
    ids=["SignSGD", "ProxQuant", "Bop"],
)
def test_save_load_continue(tmp_path, make):
    """A loaded model continues bit for bit like the original."""
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 20)
    opt = make(schedule)
    model = hand_model(opt)
    model.compile(opt, "mse", run_eagerly=True)
    model.train_on_batch(X, T)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for net in (model, loaded):
        before = kernel(net)
        for _ in range(3):
            net.train_on_batch(X, T)
        assert kernel(net) != before
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    tools.assert_equal(
        [tf.convert_to_tensor(v).numpy() for v in loaded.optimizer.variables],
        [tf.convert_to_tensor(v).numpy() for v in model.optimizer.variables],
    )


STEPS = [
    (lambda **k: SignSGD(0.25, **k), [0.25, 0.0, 1.0, -0.5]),
    (lambda **k: ProxQuant(0.5, 0.25, **k), PROX[0]),
    (lambda **k: Bop(0.5, 0.3, **k), [-0.5, 0.25, 0.75, -0.5]),
]


@pytest.mark.parametrize("make, expected", STEPS, ids=[c.__name__ for c in ALL])
def test_keras_options_do_not_change_the_step(make, expected):
    """Tests loss scaling, EMA, weight decay, clipping and accumulation."""
    latent = make().name == "prox_quant"
    weights = "latent" if latent else "binary"
    scaled = hand_model(tools.loss_scaled(make()), weights, run_eagerly=True)
    assert one_loss(scaled) == (LATENT if latent else SIGN)
    assert kernel(scaled) == expected
    decayed = hand_model(
        make(weight_decay=0.5, clipnorm=0.01, use_ema=True), run_eagerly=True
    )
    decayed.train_on_batch(X, T)
    assert kernel(decayed) == expected
    if _keras.KERAS_3:
        halves = hand_model(
            make(gradient_accumulation_steps=2), run_eagerly=True
        )
        for _ in range(2):
            assert kernel(halves) == START
            halves.train_on_batch(X, T)
        assert kernel(halves) == expected


@pytest.mark.once
def test_two_replicas(mirrored):
    with mirrored.scope():
        model = hand_model(Bop(0.5, 0.3))
    losses(model, 1)
    assert kernel(model) == [-0.5, 0.25, 0.75, -0.5]


def test_config():
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 10, 1.0)
    for opt in (
        SignSGD(schedule, 0.9, keras.optimizers.SGD(0.5), weight_decay=0.01),
        ProxQuant(0.5, schedule, clipnorm=1.0, name="mine"),
        ProxQuant(0.5, 1),
        Bop(0.5, 0.25, use_ema=True),
    ):
        config = opt.get_config()
        assert type(opt).from_config(config).get_config() == config
        restored = keras.optimizers.deserialize(keras.optimizers.serialize(opt))
        assert type(restored) is type(opt)
        assert restored.get_config() == config


# Two bits. The kernel has the levels (1, 1, 3, -1) and the weights
# (1/3, 1/3, 1, -1/3), so the loss is 1/3 + 1/6 - 1 = -1/2 at the start.


@pytest.mark.parametrize(
    "opt, steps",
    [
        # With couplings of (1, 2) between neighbors, 2 kappa f / rms is 12.6,
        # so the solution has the signs of g.
        (lambda: QPSBGD(0.25, "sign"), [[0.25, 0, 1, -0.5]]),
        (lambda: QPSBGD(0.25, "exact"), [[0.25, 0, 1, -0.5]]),
        (lambda: SignSGD(0.25), [[0.25, 0, 1, -0.5], [0, -0.25, 1.25, -0.5]]),
        (lambda: keras.optimizers.SGD(0.25), [[0.25, 0.125, 1, -0.5]]),
        # A distance of 1/8 toward 1/3, 1/3, 1 and -1/3.
        (lambda: ProxQuant(0.25, 0.5), [[1 / 3, 0.25, 1, -0.375]]),
        # Only |g| = 1 exceeds the threshold, and 3/4 is at the last level.
        (
            lambda: Bop(1.0, 0.75),
            [[-1 / 3, *START[1:]], [-1, *START[1:]], [-1, *START[1:]]],
        ),
    ],
)
def test_steps_with_two_bits(opt, steps):
    opt = opt()
    model = hand_model(opt, bits=2, run_eagerly=True)
    arguments = {"batch_size": 2, "shuffle": False, "verbose": 0}
    first = model.fit(X, T, **arguments).history["loss"][0]
    latent = isinstance(opt, ProxQuant)
    assert first == pytest.approx(-0.125 if latent else -0.5)
    for position, expected in enumerate(steps):
        if position:
            model.fit(X, T, **arguments)
        found = model.layers[-1].kernel.numpy()[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_real_optimizer_trains_the_scale_of_a_channel():
    layer = kq.layers.BinaryDense(1, bits=2, output_scale="channel")
    model = keras.Sequential([keras.layers.InputLayer((4,)), layer])
    model.compile(QPSBGD(0.25, "sign"), loss, run_eagerly=True)
    before = layer.scale.numpy()
    model.train_on_batch(X, T)
    assert np.abs(layer.scale.numpy() - before).min() > 1e-6
