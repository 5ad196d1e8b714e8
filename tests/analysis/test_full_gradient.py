"""Tests `layer_qubos` against the QUBOs that training steps solve."""

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras


class Keep(kq.backends.Backend):
    """Keeps the QUBOs that it receives."""

    def __init__(self):
        super().__init__()
        self.received = []

    def sample(self, qubo, seed):
        self.received.append(qubo.copy())
        return np.where(qubo.fields > 0, -1, 1)[None], {}


def network(inputs=tools.INPUTS):
    """A network whose forward pass changes variables."""
    keras.utils.set_random_seed(1)
    with _keras.random_states_as_variables():
        return keras.Sequential(
            [
                keras.layers.InputLayer((inputs,)),
                kq.layers.BinaryDense(6, name="first"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.4),
                kq.layers.BinaryDense(3, name="last"),
            ]
        )


def shared_network():
    """A network that calls one layer twice."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((tools.INPUTS,))
    layer = kq.layers.BinaryDense(tools.INPUTS, name="first")
    hidden = layer(keras.activations.tanh(layer(inputs)))
    outputs = kq.layers.BinaryDense(3, name="last")(hidden)
    return keras.Model(inputs, outputs)


def state(model):
    """Returns the values of all variables of a model and its optimizer."""
    variables = list(_keras.variables_with_random_states(model))
    for metric in model.metrics:
        variables += metric.variables
    optimizer = model.optimizer.variables
    variables += optimizer() if callable(optimizer) else optimizer
    return [keras.backend.get_value(variable) for variable in variables]


def assert_same_qubo(one, other, rounding=0.0):
    for name in ("couplings", "fields", "offset"):
        left, right = getattr(one, name), getattr(other, name)
        largest = np.abs(right).max()
        np.testing.assert_allclose(left, right, 0.0, rounding * largest)


@pytest.mark.parametrize(
    "make, scale",
    [
        (network, "max"),
        (network, "reach"),
        (shared_network, "rms"),
        (lambda: network(300), "batch"),
        (shared_network, "raw"),
    ],
    ids=["max", "reach", "shared-rms", "wide-batch", "shared-raw"],
)
@pytest.mark.filterwarnings("ignore:gradient_scale")
def test_a_training_step_solves_exactly_these_qubos(make, scale):
    assert_next_step_solves(make(), scale, run_eagerly=True)


@pytest.mark.parametrize("make", [network, shared_network])
def test_a_step_in_a_graph_solves_the_same_qubos(make):
    """TensorFlow may optimize the two graphs differently, so they round."""
    assert_next_step_solves(make(), "max", rounding=1e-6)


def assert_next_step_solves(model, scale, rounding=0.0, **arguments):
    backend = Keep()
    x, y = tools.data(inputs=model.input_shape[-1])
    weight = np.linspace(0, 1, len(x))
    opt = kq.QPSBGD(0.05, backend, scale, real_optimizer="sgd")
    model.compile(opt, tools.loss(), metrics=["accuracy"], **arguments)
    model.train_on_batch(x, y, sample_weight=weight)
    before = state(model)
    qubos = kq.analysis.layer_qubos(model, x.astype("float64"), y, weight)
    tools.assert_equal(state(model), before)
    assert len(backend.received) == 2  # nothing was solved
    model.train_on_batch(x, y, sample_weight=weight)
    assert list(qubos) == ["first", "last"]
    for qubo, received in zip(qubos.values(), backend.received[2:]):
        assert_same_qubo(qubo, received, rounding)
        assert np.abs(qubo.fields).max() > 0


def test_training_continues_as_if_nothing_had_happened():
    x, y = tools.data()
    found = []
    for look in (False, True):
        model = network()
        opt = tools.optimizer(backend="sign")
        model.compile(opt, tools.loss(), run_eagerly=True)
        for _ in range(2):
            if look:
                kq.analysis.layer_qubos(model, x, y, batch_size=7)
            model.train_on_batch(x[:6], y[:6])
        found.append(model.get_weights())
    tools.assert_equal(*found)


def test_eager_gradients_can_still_be_applied():
    """The latest passes, by which an eager update finds its rows, stay."""
    x, y = tools.data()
    found = []
    for look in (False, True):
        model = tools.small_model()
        opt = tools.optimizer(backend="sign")
        model.compile(opt, tools.loss(), run_eagerly=True)
        gradients = [2.0 * g for g in tools.gradients(model, x[:6], y[:6])]
        if look:
            kq.analysis.layer_qubos(model, x, y)
        opt.apply_gradients(zip(gradients, model.trainable_variables))
        found.append(model.get_weights())
    tools.assert_equal(*found)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
@pytest.mark.parametrize("inputs", [tools.INPUTS, 300], ids=["narrow", "wide"])
def test_batches_add_up(reduction, inputs):
    """The last batch is smaller than the others."""
    x, y = tools.data(inputs=inputs)
    model = tools.small_model(inputs=inputs)
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)
    with pytest.warns(UserWarning, match="raw"):
        opt = kq.QPSBGD(0.05, "sign", "raw")
    model.compile(opt, loss, run_eagerly=True)
    whole = kq.analysis.layer_qubos(model, x, y)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(9)
    for parts in (
        kq.analysis.layer_qubos(model, x, y, batch_size=9),
        kq.analysis.layer_qubos(model, batches),
    ):
        for one, other in zip(whole.values(), parts.values()):
            for name in ("couplings", "fields", "offset"):
                np.testing.assert_allclose(
                    getattr(one, name), getattr(other, name), 1e-4, 1e-5
                )


@pytest.mark.filterwarnings("ignore:gradient_scale")
def test_mixed_precision_and_replicas(mirrored):
    """Neither the loss scale nor the number of replicas is in the QUBO."""
    x, y = tools.data()
    backend = Keep()
    expected, found = [], []
    for scope in (tf.distribute.get_strategy(), mirrored):
        with scope.scope():
            model = tools.small_model(dtype="mixed_float16")
            opt = tools.optimizer(backend=backend, gradient_scale="raw")
            opt = tools.loss_scaled(opt)
            model.compile(opt, tools.loss(), jit_compile=False)
            qubos = kq.analysis.layer_qubos(model, x, y)
        (expected if scope is not mirrored else found).extend(qubos.values())
        if scope is not mirrored:
            model.train_on_batch(x, y)
            for qubo, received in zip(expected, backend.received):
                assert_same_qubo(qubo, received, rounding=1e-6)
    for one, other in zip(expected, found):
        np.testing.assert_allclose(one.fields, other.fields, 1e-5)


def test_optimizer_of_another_model():
    x, y = tools.data()
    model = tools.small_model()
    model.compile("adam", tools.loss(), run_eagerly=True)
    with pytest.raises(ValueError, match="`optimizer` .*Received: "):
        kq.analysis.layer_qubos(model, x, y)
    strengths = {}
    for kappa in (1.0, 2.0):
        opt = kq.QPSBGD(kappa=kappa)
        qubos = kq.analysis.layer_qubos(model, x, y, optimizer=opt)
        strengths[kappa] = list(qubos.values())
    for one, two in zip(strengths[1.0], strengths[2.0]):
        np.testing.assert_allclose(2.0 * one.fields, two.fields, 1e-6)


def test_frozen_layers_are_left_out():
    x, y = tools.data()
    model = network()
    model.get_layer("last").trainable = False
    model.compile(tools.optimizer(), tools.loss(), run_eagerly=True)
    assert list(kq.analysis.layer_qubos(model, x, y)) == ["first"]


def test_errors():
    x, y = tools.data()
    model = tools.small_model()
    model.compile(tools.optimizer(), tools.loss())
    data = tf.data.Dataset.from_tensors((x, y))
    layer_qubos = kq.analysis.layer_qubos
    with pytest.raises(ValueError, match="`y` .*Received: "):
        layer_qubos(model, data, y)
    with pytest.raises(ValueError, match="`x` .*Received: "):
        layer_qubos(model, data.take(0))
    unbuilt = keras.Sequential([kq.layers.BinaryDense(1)])
    unbuilt.compile(tools.optimizer(), "mse")
    with pytest.raises(ValueError, match="must be built.*Received: "):
        layer_qubos(unbuilt, x, y)
    real = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    real.compile(tools.optimizer(), tools.loss())
    with pytest.raises(ValueError, match="binary layers.*Received: "):
        layer_qubos(real, x, y)
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction="none")
    model.compile(tools.optimizer(), loss, run_eagerly=True)
    with pytest.raises(ValueError, match="`batch_size` .*Received: "):
        layer_qubos(model, x, y, batch_size=9)
