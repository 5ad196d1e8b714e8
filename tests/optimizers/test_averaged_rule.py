"""The two rules of `QPSBGD`, and every way to apply them."""

import dimod
import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import averaged_rule
from keras_qpsbgd.optimizers import qpsbgd
from keras_qpsbgd.qubo import blocks

RATE = 0.05
KAPPA, BETA, DECAY = 1.5, 0.8, 0.7
INPUTS, OUTPUTS, BATCH = 6, 3, 8
# The smallest relative gap between the best and the second-best energy.
CLEAR = 1e-3


def solve(couplings, fields):
    """Returns the best states, and the smallest relative gap to the second."""
    states = tools.all_states(len(fields))
    quadratic = np.einsum("is,ij,js->s", states, couplings, states)
    energies = quadratic[:, None] + states.T @ fields
    order = np.sort(energies, axis=0)
    scale = np.abs(energies).max(axis=0)
    return states[:, energies.argmin(axis=0)], ((order[1] - order[0]) / scale)


class Averaged:
    """The averaged rule for one dense layer, in NumPy."""

    def __init__(self, kernel, sees_first_rows=True):
        self.kernel = np.array(kernel, np.float64)
        self.sees_first_rows = sees_first_rows
        self.momentum = np.zeros_like(self.kernel)
        self.covariance = np.zeros((len(kernel),) * 2)
        self.second_moment = self.steps = 0
        self.step_sizes = []
        self.gap = np.inf

    def step(self, x, gradient):
        products = x.T @ x
        if self.steps or self.sees_first_rows:
            self.covariance *= DECAY
            self.covariance += (1 - DECAY) * products / np.trace(products)
        before = 1 - BETA**self.steps  # the weight of the momentum
        self.steps += 1
        self.momentum = BETA * self.momentum + (1 - BETA) * gradient
        ahead = BETA * self.momentum + (1 - BETA) * gradient
        ahead /= BETA**2 * before + 1 - BETA**2
        self.second_moment *= 0.999
        self.second_moment += 0.001 * (gradient**2).mean()
        size = np.sqrt(self.second_moment / (1 - 0.999**self.steps))
        unit = ahead / size
        self.step_sizes.append(np.sqrt((unit**2).mean()))
        others = self.covariance - np.diag(np.diag(self.covariance))
        force = np.sqrt((others**2).sum() / len(others)) or 1.0
        fields = -2 * KAPPA * force * unit
        states, gaps = solve(self.covariance, fields)
        self.gap = min(self.gap, gaps.min())
        self.kernel -= RATE * self.step_sizes[-1] * states


def batches(count, seed=22):  # no near ties in the first steps
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, BATCH, INPUTS)).astype("float32")
    y = rng.normal(size=(count, BATCH, OUTPUTS)).astype("float32")
    return x, y


def one_layer(**arguments):
    keras.utils.set_random_seed(0)
    layer = kq.layers.BinaryDense(OUTPUTS, use_bias=False, **arguments)
    return keras.Sequential([keras.layers.InputLayer((INPUTS,)), layer])


def averaged(backend="exact", **arguments):
    return kq.QPSBGD(
        RATE,
        backend,
        kappa=KAPPA,
        momentum=BETA,
        covariance_decay=DECAY,
        seed=0,
        **arguments,
    )


def kernel_of(model):
    return model.layers[-1].kernel.numpy()


def gradient_of(kernel, x, y):
    """The straight-through gradient of the mean squared error."""
    weights = np.where(kernel >= 0, 1.0, -1.0)
    error = x @ weights / np.sqrt(INPUTS) - y
    return x.T @ (2 * error / error.size) / np.sqrt(INPUTS)


def expected(kernel, x, y, **arguments):
    """Returns the rule in NumPy after these batches."""
    rule = Averaged(kernel, **arguments)
    for rows, targets in zip(x, y):
        rule.step(rows, gradient_of(rule.kernel, rows, targets))
    assert rule.gap > CLEAR
    return rule


SCALE = np.sqrt(12.5)  # the rms of the gradient (3, 4)
HAND = (
    # Rows, gradient, momentum, couplings, V, rho, states.
    # 1. The couplings decide: E(-1, 1) = -.14, E(1, 1) = .01.
    (
        [[1, 1], [-1, -1]],
        [3, 4],
        [1.5, 2],
        [[0.25, 0.25], [0.25, 0.25]],
        0.0125,
        1.0,
        [-1, 1],
    ),
    # 2. The new gradient has 6/7 of the weight, the one before 1/7.
    (
        [[1, -1], [-1, 1]],
        [-3, -4],
        [-0.75, -1],
        [[0.375, -0.125], [-0.125, 0.375]],
        0.001 * (0.999 * 12.5 + 12.5),
        5 / 7,
        [-1, -1],
    ),
    # 3. A small gradient. Zero rows do not change the couplings.
    (
        [[0, 0], [0, 0]],
        [0.3, 0.4],
        [-0.225, -0.3],
        [[0.375, -0.125], [-0.125, 0.375]],
        0.001 * (0.999**2 * 12.5 + 0.999 * 12.5 + 0.125),
        0.0125 / 0.9375 * SCALE / 2.8932456,
        [1, 1],
    ),
)


def test_three_steps_by_hand():
    """Momentum and covariance decay by 1/2, kappa is 1, the rate 1/8."""
    layer = kq.layers.BinaryDense(1, use_bias=False)
    layer.build((None, 2))
    opt = kq.QPSBGD(
        0.125, "native", kappa=1.0, momentum=0.5, covariance_decay=0.5
    )
    opt.build(layer.trainable_variables)
    mark = statistics.mark_of(layer.kernel)
    kernel = np.array([[0.5], [-0.5]])
    layer.kernel.assign(kernel)
    for rows, gradient, momentum, couplings, v, rho, states in HAND:
        layer(tf.constant(rows, tf.float32), training=True)
        gradient = tf.constant(gradient, tf.float32)[:, None]
        opt.apply([gradient], layer.trainable_variables)
        kernel -= 0.125 * rho * np.array(states)[:, None]
        np.testing.assert_allclose(layer.kernel.numpy(), kernel, rtol=1e-5)
        found = [
            opt.update_rule.couplings[mark],
            opt.update_rule.momenta[mark],
            opt.update_rule.scalars[mark],
            *opt.update_rule.states.values(),
        ]
        found = [tf.convert_to_tensor(variable).numpy() for variable in found]
        np.testing.assert_allclose(found[0][0], couplings, rtol=1e-6)
        np.testing.assert_allclose(found[1][:, 0], momentum, rtol=1e-6)
        np.testing.assert_allclose(found[2][[0, 3]], [v, rho], rtol=1e-5)
        np.testing.assert_array_equal(found[3][:, 0], states)
    weights = [1 - 0.999**3, 1 - 0.5**3]
    np.testing.assert_allclose(found[2][1:3], weights, rtol=1e-5)


def test_a_layer_without_a_gradient_in_the_first_steps():
    """The averages of a layer start with its own first gradient."""
    layers = [kq.layers.BinaryDense(OUTPUTS) for _ in range(2)]
    for layer in layers:
        layer.build((None, INPUTS))
    variables = [layer.kernel for layer in layers]
    opt = kq.QPSBGD(1.0)
    opt.build(variables)
    gradient = tf.random.stateless_normal((INPUTS, OUTPUTS), (0, 1))
    for _ in range(3):
        opt.apply([gradient], variables[:1])
    before = layers[1].kernel.numpy()
    opt.apply([gradient, gradient], variables)
    moved = np.abs(layers[1].kernel.numpy() - before)
    np.testing.assert_allclose(moved, 1.0, rtol=1e-5)


WAYS = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "jit": {"jit_compile": True},
    "two steps per call": {"steps_per_execution": 2},
}


@pytest.mark.parametrize(
    "backend, way",
    [
        pytest.param("exact", "jit", marks=pytest.mark.exhaustive),
        ("native", "graph"),
        ("native", "eager"),
        pytest.param("native", "jit", marks=pytest.mark.slow),
        ("host", "graph"),
        pytest.param(
            "host", "two steps per call", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_fit_agrees(backend, way):
    backend = dimod.ExactSolver() if backend == "host" else backend
    x, y = batches(4)
    model = one_layer()
    rule = expected(kernel_of(model), x, y, sees_first_rows=way != "eager")
    model.compile(averaged(backend), "mse", **WAYS[way])
    model.fit(
        x.reshape(-1, INPUTS),
        y.reshape(-1, OUTPUTS),
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    )
    np.testing.assert_allclose(kernel_of(model), rule.kernel, atol=1e-5)


def gradients(model, rows, targets):
    with tf.GradientTape() as tape:
        error = model(rows, training=True) - targets
        loss = tf.reduce_mean(tf.square(error))
    return tape.gradient(loss, model.trainable_variables)


def step_plain(model, opt):
    def step(rows, targets):
        grads = gradients(model, rows, targets)
        opt.apply(grads, model.trainable_variables)

    return step


def step_clipped(model, opt):
    def step(rows, targets):
        grads, _ = tf.clip_by_global_norm(gradients(model, rows, targets), 1e3)
        opt.apply([7.0 * g / 7.0 for g in grads], model.trainable_variables)

    return step


def step_carried(model, opt):
    compute = tf.function(lambda rows, y: gradients(model, rows, y))
    apply = tf.function(lambda g: opt.apply(g, model.trainable_variables))
    return lambda rows, targets: apply(compute(rows, targets))


@pytest.mark.parametrize(
    "make, mode",
    [
        (step_clipped, "eager"),
        (step_carried, "graph"),
        pytest.param(step_clipped, "graph", marks=pytest.mark.exhaustive),
    ],
)
def test_custom_loops_agree(make, mode):
    x, y = batches(4)
    model, opt = one_layer(), averaged()
    rule = expected(kernel_of(model), x, y)
    opt.build(model.trainable_variables)
    step = make(model, opt)
    if mode == "graph" and make is not step_carried:
        step = tf.function(step)
    for rows, targets in zip(x, y):
        step(tf.constant(rows), tf.constant(targets))
    np.testing.assert_allclose(kernel_of(model), rule.kernel, atol=1e-5)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_first_step_before_build(mode):
    """A first eager step has no couplings. A function is traced again."""
    x, y = batches(3)
    model, opt = one_layer(), averaged()
    first = mode == "graph"
    rule = expected(kernel_of(model), x, y, sees_first_rows=first)
    step = step_plain(model, opt)
    step = tf.function(step) if mode == "graph" else step
    for rows, targets in zip(x, y):
        step(tf.constant(rows), tf.constant(targets))
    np.testing.assert_allclose(kernel_of(model), rule.kernel, atol=1e-5)


@pytest.mark.parametrize(
    "mode, is_built",
    [pytest.param("eager", False, marks=pytest.mark.slow), ("graph", True)],
)
def test_loops_on_two_replicas(mode, is_built, mirrored):
    """The first replica builds the optimizer before the second one starts."""
    x, y = batches(3)
    with mirrored.scope():
        model, opt = one_layer(), averaged()
        if is_built:
            opt.build(model.trainable_variables)
    first = is_built or mode == "graph"
    rule = Averaged(kernel_of(model), sees_first_rows=first)
    data = tf.data.Dataset.from_tensor_slices((x, y))

    def replica(rows, targets):
        with tf.GradientTape() as tape:
            error = model(rows, training=True) - targets
            # The replicas sum their gradients.
            loss = tf.reduce_mean(tf.square(error)) / 2
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))

    def step(rows, targets):
        mirrored.run(replica, (rows, targets))

    step = tf.function(step) if mode == "graph" else step
    data = mirrored.experimental_distribute_dataset(data.unbatch().batch(BATCH))
    for inputs, rows, targets in zip(data, x, y):
        step(*inputs)
        halves = np.split(rows, 2)  # each is divided by its own trace
        gradient = gradient_of(rule.kernel, rows, targets)
        weights = [len(rows) / 2 / np.square(half).sum() for half in halves]
        scaled = [
            half * np.sqrt(weight) for half, weight in zip(halves, weights)
        ]
        rule.step(np.concatenate(scaled), gradient)
    assert rule.gap > CLEAR
    np.testing.assert_allclose(kernel_of(model), rule.kernel, atol=1e-5)


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate gradients"
)
@pytest.mark.parametrize(
    "rule", ["averaged", pytest.param("paper", marks=pytest.mark.exhaustive)]
)
def test_accumulation_has_the_gradient_of_the_whole_batch(rule):
    """Both rules see the gradient of all batches of an accumulation."""
    x, y = batches(2)
    fields = []
    for steps in (None, 2):
        model = one_layer()
        opt = averaged(rule=rule, gradient_accumulation_steps=steps)
        model.compile(opt, "mse")
        opt.build(model.trainable_variables)
        recorder = Recorder()
        opt.recorder = recorder
        parts = zip(x, y)
        if steps is None:
            parts = [(np.concatenate(x), np.concatenate(y))]
        for rows, targets in parts:
            model.train_on_batch(rows, targets)
        fields.append(recorder.qubos[-1])
    whole, accumulated = fields
    scale = np.abs(whole.fields).max()
    if rule == "paper":
        np.testing.assert_allclose(
            whole.couplings, accumulated.couplings, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(
            whole.fields, accumulated.fields, rtol=1e-4, atol=1e-6 * scale
        )
    else:
        ratio = accumulated.fields / whole.fields
        np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-3)


class Recorder:
    """Keeps the QUBOs of all updates."""

    def __init__(self):
        self.qubos = []

    def wants(self, step, layer):
        return True

    def record(self, step, layer, qubo, states, *rest):
        self.qubos.append(qubo.copy())

    def budget_spent(self, step):
        raise NotImplementedError


def test_rule_of_the_paper():
    """One step against an oracle of Definition 1."""
    x, y = batches(1, seed=3)
    rows, targets = 3.0 * x[0], 40.0 * y[0]
    model = one_layer()
    opt = kq.QPSBGD(RATE, "exact", rule="paper", seed=0)
    model.compile(opt, "mse")
    opt.build(model.trainable_variables)
    kernel = kernel_of(model)
    weights = np.where(kernel >= 0, 1.0, -1.0)
    error = rows @ weights / np.sqrt(INPUTS) - targets
    v = 2 * error / error.size / np.sqrt(INPUTS)
    z = rows / (rows**2).sum(axis=1, keepdims=True)
    states, gaps = solve(z.T @ z, -2 * z.T @ v)
    assert gaps.min() > CLEAR
    np.testing.assert_array_equal(kq.binary_map(rows, v), states)
    model.train_on_batch(rows, targets)
    np.testing.assert_allclose(
        kernel_of(model), kernel - RATE * states, atol=1e-6
    )
    # The couplings of the next update start at zero.
    assert not np.any(next(iter(opt.update_rule.couplings.values())))


# Models


class Traced(keras.Model):
    """A model whose `call` is a `tf.function`."""

    def __init__(self):
        super().__init__()
        self.dense = kq.layers.BinaryDense(OUTPUTS, use_bias=False)

    @tf.function
    def call(self, inputs, training=None):
        return self.dense(inputs, training=training)


def test_call_is_a_function():
    x, y = batches(4)
    model = Traced()
    model(x[0])
    opt = averaged()
    model.compile(opt, "mse")
    opt.build(model.trainable_variables)
    rule = expected(model.dense.kernel.numpy(), x, y)
    for rows, targets in zip(x, y):
        model.train_on_batch(rows, targets)
    np.testing.assert_allclose(
        model.dense.kernel.numpy(), rule.kernel, atol=1e-5
    )


def test_call_is_a_function_traced_before_build():
    """The optimizer cannot reach the rows, so it says so, and trains."""
    x, y = batches(4)
    model = Traced()
    model(x[0])
    model.compile(averaged(), "mse")
    before = model.dense.kernel.numpy()
    with pytest.warns(UserWarning, match="have no couplings"):
        model.fit(
            x.reshape(-1, INPUTS),
            y.reshape(-1, OUTPUTS),
            batch_size=BATCH,
            verbose=0,
        )
    assert (model.dense.kernel.numpy() != before).any()


@pytest.mark.parametrize("rule", qpsbgd.RULES)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_gradient_of_an_input_variable(rule, mode):
    """Saliency maps differentiate with respect to a variable."""
    x, _ = batches(1)
    model = one_layer()
    opt = averaged(rule=rule)
    opt.build(model.trainable_variables)
    image = tf.Variable(x[0])

    def saliency():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(image, training=True)[:, 0])
        return tape.gradient(total, image)

    found = (tf.function(saliency) if mode == "graph" else saliency)()
    weights = np.where(kernel_of(model)[:, 0] >= 0, 1.0, -1.0)
    np.testing.assert_allclose(
        found, np.tile(weights / np.sqrt(INPUTS), (BATCH, 1)), rtol=1e-6
    )


def test_frozen_layers_compute_no_statistics():
    x, y = batches(2)
    model = one_layer()
    opt = averaged()
    opt.build(model.trainable_variables)
    model.layers[-1].trainable = False
    model(x[0], training=True)
    (couplings,) = opt.update_rule.couplings.values()
    assert not np.any(couplings)


def test_rows_that_are_not_finite_change_no_statistics():
    x, y = batches(2)
    model, opt = one_layer(), averaged()
    model.compile(opt, "mse", run_eagerly=True)
    model.train_on_batch(x[0], y[0])
    (couplings,) = opt.update_rule.couplings.values()
    before = np.array(couplings)
    rows = x[1].copy()
    rows[0, 0] = np.inf
    with pytest.warns(UserWarning, match="skipped"):
        model.train_on_batch(rows, y[1])
        opt.finalize_variable_values(model.trainable_variables)
    np.testing.assert_array_equal(couplings, before)
    assert opt.skipped_updates == 1


# Wide layers


def test_blocks_of_couplings():
    """A block has every K-th input, and is solved without the others."""
    rng = np.random.default_rng(0)
    n, m, count = 10, 2, 3
    x = rng.normal(size=(40, n)).astype("float32")
    gradient = tf.constant(rng.normal(size=(n, m)).astype("float32"))
    shape = (count, 4, 4)
    assert blocks.block_shape(n, 4) == (count, 4)
    moments = blocks.second_moments(tf.constant(x), shape)
    zeros = tf.zeros((n, m)), tf.zeros((averaged_rule.SCALARS,))
    found = averaged_rule.averages(gradient, *zeros, beta=0.0)
    scales = averaged_rule.scales(found, moments, KAPPA)
    problems = averaged_rule.scaled(moments, gradient, gradient, *scales)
    whole = x.T @ x
    states = []
    for block, problem in enumerate(problems):
        inputs = np.arange(block, n, count)
        size = len(inputs)
        np.testing.assert_allclose(
            problem.couplings[:size, :size],
            whole[np.ix_(inputs, inputs)],
            rtol=1e-4,
        )
        assert not np.any(problem.informative[size:])
        ratio = problem.fields[:size] / tf.gather(gradient, inputs)
        np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
        states.append(tf.tile(tf.cast(inputs, tf.float32)[:, None], (1, m)))
        states[-1] = tf.pad(states[-1], [(0, 4 - size), (0, 0)])
    joined = blocks.join(states, n)
    np.testing.assert_array_equal(joined, np.tile(np.arange(n)[:, None], m))


def test_wide_layers_train():
    inputs = 300
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, inputs)).astype("float32")
    y = (x @ rng.choice([-1.0, 1.0], size=(inputs, 1)) > 0).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.InputLayer((inputs,)), kq.layers.BinaryDense(1)]
    )
    opt = kq.QPSBGD(0.005, seed=0)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(opt, loss)
    losses = model.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    (couplings,) = opt.update_rule.couplings.values()
    assert couplings.shape[0] > 1
    assert max(couplings.shape[1:]) <= averaged_rule.Averaged.widest


def test_convolutions_sample_rows():
    """The statistics of a convolution use some patches, evenly spaced."""
    layer = kq.layers.BinaryConv2D(4, 3, padding="same")
    images = np.random.default_rng(0).normal(size=(64, 32, 32, 2))
    images = images.astype("float32")
    layer.build(images.shape)
    rows = layer.sample_rows(tf.constant(images), 1024).numpy()
    assert 512 <= len(rows) <= 2048
    known = {row.tobytes() for row in layer.rows(tf.constant(images)).numpy()}
    assert {row.tobytes() for row in rows} <= known
    assert len({row.tobytes() for row in rows}) == len(rows)
