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


def joined(blocks, n):
    """Joins the QUBOs of the interleaved blocks of a layer with n inputs."""
    count = len(blocks)
    size = sum(block.num_variables for block in blocks)
    couplings = np.zeros((size, size), np.float32)
    fields = np.zeros((size, blocks[0].num_columns), np.float32)
    for index, block in enumerate(blocks):
        couplings[index::count, index::count] = block.couplings
        fields[index::count] = block.fields
    return kq.Qubo(couplings[:n, :n], fields[:n])


# Without momentum, the first step depends on its batch alone.
MEMORYLESS = {"momentum": 0.0, "covariance_decay": 0.0}


@pytest.mark.parametrize(
    "make, arguments, rounding",
    [
        (network, MEMORYLESS, 1e-6),
        (lambda: network(301), MEMORYLESS, 1e-6),
        (network, {"rule": "paper"}, 0.0),
        pytest.param(
            shared_network, {"rule": "paper"}, 0.0, marks=pytest.mark.slow
        ),
    ],
    ids=["averaged", "blocks", "paper", "shared-paper"],
)
def test_a_training_step_solves_these_qubos(make, arguments, rounding):
    assert_next_step_solves(make(), arguments, rounding, run_eagerly=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, arguments",
    [(network, MEMORYLESS), (shared_network, {"rule": "paper"})],
    ids=["averaged", "shared-paper"],
)
def test_a_step_in_a_graph_solves_the_same_qubos(make, arguments):
    """TensorFlow may optimize the two graphs differently, so they round."""
    assert_next_step_solves(make(), arguments, rounding=1e-6)


def assert_next_step_solves(model, arguments, rounding, **compile_arguments):
    backend = Keep()
    x, y = tools.data(inputs=model.input_shape[-1])
    weight = np.linspace(0, 1, len(x))
    opt = kq.QPSBGD(0.05, backend, real_optimizer="sgd", **arguments)
    opt.build(model.trainable_variables)
    model.compile(opt, tools.loss(), metrics=["accuracy"], **compile_arguments)
    averaged = arguments is MEMORYLESS
    if (
        not averaged
    ):  # later steps measure gradients by the size of earlier ones
        model.train_on_batch(x, y, sample_weight=weight)
    before, solved = state(model), len(backend.received)
    qubos = kq.analysis.layer_qubos(model, x.astype("float64"), y, weight)
    tools.assert_equal(state(model), before)
    assert len(backend.received) == solved  # nothing was solved
    model.train_on_batch(x, y, sample_weight=weight)
    assert list(qubos) == ["first", "last"]
    *first, last = backend.received[solved:]
    blocks = 3 if averaged and x.shape[1] > 288 else 1
    assert len(first) == blocks
    received = [joined(first, x.shape[1]), last]
    for qubo, expected in zip(qubos.values(), received):
        assert_same_qubo(qubo, expected, rounding)
        assert np.abs(qubo.fields).max() > 0
        assert np.abs(qubo.couplings).max() > 0


def test_first_step_with_the_default_averages():
    """Averages that start at zero only change the unit of the energy."""
    backend = Keep()
    x, y = tools.data()
    model = network()
    opt = kq.QPSBGD(0.05, backend, real_optimizer="sgd")
    opt.build(model.trainable_variables)
    model.compile(opt, tools.loss(), run_eagerly=True)
    qubos = kq.analysis.layer_qubos(model, x, y)
    model.train_on_batch(x, y)
    for qubo, received in zip(qubos.values(), backend.received):
        unit = 1.0 - opt.covariance_decay
        scaled = kq.Qubo(unit * qubo.couplings, unit * qubo.fields)
        assert_same_qubo(scaled, received, 1e-5)


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


@pytest.mark.slow
def test_eager_gradients_can_still_be_applied():
    """The rows of a pass before `optimizer.build` stay."""
    x, y = tools.data()
    found = []
    for look in (False, True):
        model = tools.small_model()
        opt = tools.optimizer(backend="exact")
        model.compile(opt, tools.loss(), run_eagerly=True)
        gradients = [2.0 * g for g in tools.gradients(model, x[:6], y[:6])]
        if look:
            kq.analysis.layer_qubos(model, x, y)
        opt.apply_gradients(zip(gradients, model.trainable_variables))
        state = [tf.convert_to_tensor(v).numpy() for v in opt.variables]
        found.append([*model.get_weights(), *state])
    tools.assert_equal(*found)


@pytest.mark.parametrize(
    "inputs, rule, reduction",
    [
        (tools.INPUTS, "averaged", "sum_over_batch_size"),
        pytest.param(300, "averaged", "sum", marks=pytest.mark.slow),
        pytest.param(300, "paper", "sum", marks=pytest.mark.slow),
    ],
)
def test_batches_add_up(reduction, inputs, rule):
    """The last batch is smaller than the others."""
    x, y = tools.data(inputs=inputs)
    model = tools.small_model(inputs=inputs)
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)
    opt = kq.QPSBGD(0.05, "sign", rule=rule)
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


@pytest.mark.slow
def test_mixed_precision_and_replicas(mirrored):
    """Neither the loss scale nor the number of replicas is in the QUBO."""
    x, y = tools.data()
    backend = Keep()
    expected, found = [], []
    for scope in (tf.distribute.get_strategy(), mirrored):
        with scope.scope():
            model = tools.small_model(dtype="mixed_float16")
            opt = tools.optimizer(backend=backend, rule="paper")
            opt = tools.loss_scaled(opt)
            opt.build(model.trainable_variables)
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
