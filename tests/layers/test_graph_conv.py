"""Tests `BinaryGraphConv` without Spektral.

`test_graph_models.py` tests it with Spektral. Tests that depend only on
TensorFlow are marked `once` and run under Keras 3.
"""

import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.layers import adjacency
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import paper_rule

NODES, FEATURES, CHANNELS, GRAPHS = 7, 4, 3, 2
MODES = ("single", "mixed", "batch")


def graph(mode="single", sparse=False, seed=0):
    """Returns the features and the filter of a directed graph as tensors."""
    rng = np.random.default_rng(seed)
    x_shape = (
        (NODES, FEATURES) if mode == "single" else (GRAPHS, NODES, FEATURES)
    )
    a_shape = (GRAPHS, NODES, NODES) if mode == "batch" else (NODES, NODES)
    a = adjacency.gcn_filter(np.float32(rng.random(a_shape) < 0.3))
    x = rng.normal(size=x_shape).astype("float32")
    return tf.constant(x), tf.sparse.from_dense(a) if sparse else tf.constant(a)


def dense(a):
    return tf.sparse.to_dense(a) if isinstance(a, tf.SparseTensor) else a


def observer_of(layer):
    """Connects the couplings of the paper to a layer."""
    mark = statistics.mark_of(layer.kernel)
    shape = (1, mark.num_variables, mark.num_variables)
    couplings = tf.Variable(tf.zeros(shape))
    mark.observer = observer = statistics.BatchCouplings(couplings)
    return observer, couplings


def observed(layer, x, a):
    """Returns the problem and the gradients of one backward pass."""
    if not layer.built:
        layer.build([x.shape, a.shape])
    observer, couplings = observer_of(layer)
    rng = np.random.default_rng(0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer([x, a])
        target = tf.constant(rng.normal(size=y.shape), y.dtype)
        weight = tf.cast(tf.range(NODES) % 2, y.dtype)[:, None]
        loss = tf.reduce_mean((y - target) ** 2 * weight)
    kernel = tools.tf_variable(layer.kernel)
    gradients = tape.gradient(loss, [x, kernel])
    mark = statistics.mark_of(layer.kernel)
    shape = (mark.num_variables, mark.num_columns)
    product = tf.reshape(gradients[1], shape)
    (problem,) = paper_rule.problems(product, tf.convert_to_tensor(couplings))
    return problem, gradients


def conv(cls=kq.layers.BinaryGraphConv, **arguments):
    keras.utils.set_random_seed(3)
    return cls(CHANNELS, activation="hard_tanh", **arguments)


def assert_close(left, right):
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_rows_and_qubo_match_the_jacobian(mode, sparse):
    """Compares with the Jacobian of the whole layer, including `a`."""
    x, a = graph(mode, sparse)
    layer = kq.layers.BinaryGraphConv(
        CHANNELS, output_scale=None, use_bias=False
    )
    problem, _ = observed(layer, x, a)

    rng = np.random.default_rng(0)
    with tf.GradientTape(persistent=True) as tape:
        y = layer([x, a], training=False)
        target = tf.constant(rng.normal(size=y.shape), y.dtype)
        weight = tf.cast(tf.range(NODES) % 2, y.dtype)[:, None]
        tape.watch(y)
        loss = tf.reduce_mean((y - target) ** 2 * weight)
    v = tf.reshape(tape.gradient(loss, y), (-1, CHANNELS)).numpy()
    jacobian = tape.jacobian(y, layer.kernel, experimental_use_pfor=False)
    # Output j depends only on column j of the kernel. Its Jacobian is the row.
    jacobian = tf.reshape(jacobian, (-1, CHANNELS, FEATURES, CHANNELS)).numpy()
    for j in range(CHANNELS):
        z = jacobian[:, j, :, j]
        kept = np.any(v != 0, axis=1)
        z = (z / np.sum(z**2, axis=1, keepdims=True))[kept]
        assert_close(problem.couplings, z.T @ z)
        assert_close(problem.fields[:, j], -2 * z.T @ v[kept, j])


@pytest.mark.once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_layer_equals_a_dense_layer_on_ax(mode, sparse):
    x, a = graph(mode, sparse)
    layer = conv()
    layer([x, a])
    twin = kq.layers.BinaryDense(CHANNELS, activation="hard_tanh")
    twin.build((None, FEATURES))
    twin.set_weights(layer.get_weights())
    calls = [
        lambda: layer([x, a]),
        lambda: twin(dense(a) @ x),
        # A third input is ignored, and the features may be sparse.
        lambda: layer([x, a, tf.zeros(NODES, tf.int64)]),
        lambda: layer([tf.sparse.from_dense(x), a]),
    ]
    found = []
    for call, each in zip(calls, (layer, twin, layer, layer)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call()
            loss = tf.reduce_sum(y**3)
        sources = [tools.tf_variable(each.kernel)]
        if call is not calls[-1]:
            sources.append(x)
        found.append([y, *tape.gradient(loss, sources)])
    for others in found[1:]:
        for left, right in zip(found[0], others):
            assert_close(left, right)


@pytest.mark.parametrize("rank", [2, 3])
def test_masked_nodes(rank):
    """Keras masks are (graphs, nodes), Spektral masks (graphs, nodes, 1)."""
    x, a = graph("batch")
    mask = np.ones((GRAPHS, NODES), bool)
    mask[0, -2:] = False
    given = tf.constant(
        mask if rank == 2 else mask[..., None].astype("float32")
    )
    layer = conv()
    y = layer([x, a], mask=[given, None])
    assert not np.any(y[0, -2:])
    assert_close(y[1], layer([x, a])[1])
    assert layer.compute_mask([x, a], [given, None]) is given
    assert layer.compute_mask([x, a], [None, None]) is None

    # Masked nodes are no part of the problem of the paper.
    def problem(a, mask):
        observer, couplings = observer_of(layer)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer([x, a], mask=[mask, None]) ** 2)
        gradient = tape.gradient(loss, tools.tf_variable(layer.kernel))
        return couplings.numpy(), gradient.numpy()

    changed = a.numpy()
    changed[0, -2:] = 0.1
    tools.assert_equal(problem(a, given), problem(changed, given))
    unmasked = [problem(each, None)[0] for each in (a, changed)]
    assert np.abs(unmasked[0] - unmasked[1]).max() > 0.1


@pytest.mark.once
def test_preprocess_matches_the_formula():
    rng = np.random.default_rng(0)
    a = np.float32(rng.random((5, 5)) < 0.5)  # directed
    with_loops = a + np.eye(5)
    root = np.diag(with_loops.sum(axis=1) ** -0.5)
    wanted = root @ with_loops @ root
    preprocess = kq.layers.BinaryGraphConv.preprocess
    assert_close(preprocess(a), wanted)
    assert_close(preprocess(a.astype(int)), wanted)
    assert_close(preprocess(np.stack([a, a]))[1], wanted)
    # A node of negative or zero degree gets weight zero instead of NaN.
    assert np.isfinite(preprocess(np.diag([-1.0, 0.0]))).all()
    sparse = pytest.importorskip("scipy.sparse")
    found = preprocess(sparse.coo_matrix(a))
    assert found.format == "csr" and found.dtype == np.float32
    assert_close(found.toarray(), wanted)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_mixed_precision(sparse):
    x, a = graph("single", sparse)
    wanted = conv()([x, a])
    found = conv(dtype=keras.mixed_precision.Policy("mixed_float16"))([x, a])
    assert found.dtype == "float16"
    np.testing.assert_allclose(tf.cast(found, "float32"), wanted, atol=0.03)


def functional(sparse=False, nodes=NODES, **arguments):
    keras.utils.set_random_seed(3)
    x = keras.Input((FEATURES,))
    a = keras.Input((nodes,), sparse=sparse)
    h = keras.layers.Dense(FEATURES, activation="tanh")(x)
    h = kq.layers.BinaryGraphConv(5, activation="hard_tanh", **arguments)(
        [h, a]
    )
    return keras.Model(
        [x, a], kq.layers.BinaryGraphConv(CHANNELS, **arguments)([h, a])
    )


def test_save_and_load(tmp_path):
    x, a = graph(sparse=True)
    given = {
        "use_bias": True,
        "kernel_initializer": keras.initializers.RandomNormal(seed=1),
        "bias_initializer": keras.initializers.Constant(0.5),
        "kernel_regularizer": keras.regularizers.L2(0.1),
        "bias_regularizer": keras.regularizers.L2(0.2),
        "activity_regularizer": keras.regularizers.L2(0.3),
        "kernel_constraint": kq.constraints.WeightClip(1.0),
        "bias_constraint": keras.constraints.NonNeg(),
        "output_scale": None,
        "check_adjacency": False,
    }
    model = functional(sparse=True, **given)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded([x, a]), model([x, a]))
    layer, config = loaded.layers[-1], loaded.layers[-1].get_config()
    assert config == model.layers[-1].get_config()
    default = kq.layers.BinaryGraphConv(CHANNELS).get_config()
    for name in given:
        if name != "use_bias":
            assert config[name] != default.get(name)
    # Keras receives all of them: three penalties and two constraints.
    found = kq.layers.BinaryGraphConv.from_config(config)
    found([x, a])
    kernel, bias = (tf.convert_to_tensor(w) for w in found.weights)
    penalties = [0.1 * tf.reduce_sum(kernel**2), 0.2 * tf.reduce_sum(bias**2)]
    losses = [float(value) for value in found.losses]
    assert len(losses) == 3
    for penalty in penalties:
        assert np.isclose(losses, float(penalty)).any()
    assert layer.kernel.constraint is not None
    assert layer.bias.constraint is not None


def test_exported_model_does_not_call_python(tmp_path):
    """A runtime without Python must be able to serve the model."""
    model = functional()
    x, a = graph()
    serve = tf.function(
        lambda x, a: model([x, a]),
        input_signature=[tf.TensorSpec(x.shape), tf.TensorSpec(a.shape)],
    )
    tf.saved_model.save(model, str(tmp_path), {"serve": serve})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serve"]
    graphs = [loaded.graph.as_graph_def()]
    operations = {node.op for node in graphs[0].node}
    for function in graphs[0].library.function:
        operations |= {node.op for node in function.node_def}
    assert not {"PyFunc", "EagerPyFunc"} & operations
    assert_close(next(iter(loaded(x=x, a=a).values())), model([x, a]))


@pytest.mark.once
def test_inference_observes_nothing():
    x, a = graph()
    layer = conv()
    layer([x, a])
    mark = statistics.mark_of(layer.kernel)
    mark.observer = observer = tools.KeptRows()
    layer([x, a], training=False)
    assert not observer.rows
    layer([x, a], training=True)
    assert_close(observer.rows[0], dense(a) @ x)


@pytest.mark.slow
def test_fit_without_spektral(monkeypatch):
    monkeypatch.setitem(sys.modules, "spektral", None)
    x, a = graph(sparse=True)
    y = np.arange(NODES) % CHANNELS
    model = functional(sparse=True)
    before = tools.kernels(model)
    model.compile(tools.optimizer(), tools.loss())
    data = tf.data.Dataset.from_tensors(((x, a), y))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*shuffle")
        model.fit(data.repeat(3), steps_per_epoch=3, verbose=0)
    for left, right in zip(before, tools.kernels(model)):
        assert np.abs(left - right).max() > 0.04
    assert model.predict(data, verbose=0).shape == (NODES, CHANNELS)


@pytest.mark.slow
@pytest.mark.once  # legacy Keras does not read `supports_jit`
@pytest.mark.filterwarnings("ignore:Model doesn't support")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_sparse_adjacency_disables_xla(sparse):
    x, a = graph(sparse=sparse)
    model = functional(sparse)
    model.compile(tools.optimizer(), tools.loss(), jit_compile=True)
    data = tf.data.Dataset.from_tensors(((x, a), np.arange(NODES) % CHANNELS))
    model.fit(data, verbose=0)
    assert model.jit_compile is not sparse


def test_mismatched_shapes_raise():
    for x_shape, a_shape, message in (
        ((7, 4), (7, 6), "must be square"),
        ((7, 4), (6, 6), "same number of nodes"),
        ((2, 7, 4), (2, 6, 6), "same number of nodes"),
        ((2, 7, 4), (3, 7, 7), "same number of graphs"),
        ((7, 4), (2, 7, 7), "ranks"),
        ((7, 4), (7,), "ranks"),
    ):
        received = f"{message}.*Received: x of shape"
        with pytest.raises(ValueError, match=received):
            conv()([tf.zeros(x_shape), tf.zeros(a_shape)])


@pytest.mark.once
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("mode", ["single", "batch"])
def test_mismatched_sizes_raise_at_run_time(mode, sparse):
    """The number of nodes, or of graphs, is known only at run time."""
    layer = conv()
    x, a = graph(mode, sparse)
    size = NODES if mode == "batch" else None
    shape = (None, size, size)[-len(a.shape) :]
    spec = tf.SparseTensorSpec(shape) if sparse else tf.TensorSpec(shape)
    shape = (None, size, FEATURES)[-len(x.shape) :]
    signature = [tf.TensorSpec(shape), spec]
    call = tf.function(lambda x, a: layer([x, a]), input_signature=signature)
    assert_close(call(x, a), layer([x, a]))
    for wrong in (x[:1], tf.concat([x, x], axis=0)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="same number of nodes and"
        ):
            call(wrong, a)


def in_graph(layer):
    call = lambda inputs: layer(inputs, training=True)
    return tf.function(call, autograph=False)  # AutoGraph takes seconds


@pytest.mark.once
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("graph_mode", [False, True], ids=["eager", "graph"])
def test_non_finite_adjacency_raises(sparse, graph_mode):
    x, a = graph()
    a = a.numpy()
    a[0, 0] = np.inf if sparse else np.nan
    a = tf.sparse.from_dense(a) if sparse else tf.constant(a)
    layer = conv()
    call = in_graph(layer) if graph_mode else layer
    error = tf.errors.InvalidArgumentError if graph_mode else ValueError
    with pytest.raises(error, match="must be finite.*Received: a with NaN"):
        call([x, a])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("graph_mode", [False, True], ids=["eager", "graph"])
def test_unnormalized_adjacency_warns_once(sparse, graph_mode):
    x, a = graph()
    raw = np.float32(a.numpy() > 0)
    raw = tf.sparse.from_dense(raw) if sparse else tf.constant(raw)
    layer = conv()
    call = in_graph(layer) if graph_mode else layer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call([x, dense(a)])  # normalized, so no warning
        layer([x, raw], training=False)
    with pytest.warns(UserWarning, match="is not normalized.*preprocess"):
        call([x, raw])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call([x, raw])


@pytest.mark.once
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_padding_does_not_hide_an_unnormalized_graph(sparse):
    """A chain of five nodes, padded to twenty."""
    a = np.zeros((2, 20, 20), "float32")
    chain = np.arange(4)
    a[:, chain, chain + 1] = a[:, chain + 1, chain] = 1
    a = tf.sparse.from_dense(a) if sparse else tf.constant(a)
    with pytest.warns(UserWarning, match="mean of its row sums is 1.6"):
        kq.layers.BinaryGraphConv(2)([tf.ones((2, 20, 3)), a])


def test_filters_count_as_normalized():
    """Kipf and Welling's filter and D^-1 A, on weighted graphs."""
    rng = np.random.default_rng(0)
    a = np.triu(rng.pareto(1.0, (30, 30)) * (rng.random((30, 30)) < 0.2), 1)
    a = (a + a.T).astype("float32")
    layer = kq.layers.BinaryGraphConv(2)
    degrees = np.maximum(a.sum(axis=1, keepdims=True), 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        directed = adjacency.gcn_filter(np.float32(rng.random((30, 30)) < 0.1))
        for normalized in (adjacency.gcn_filter(a), a / degrees, directed):
            layer([tf.ones((30, 3)), tf.constant(normalized, tf.float32)])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda layer: layer(0), "`channels`.*Received: channels=0"),
        (lambda layer: layer(2)(tf.zeros((7, 4))), r"called with `\[x, a\]`"),
        (lambda layer: layer(2)(keras.Input((4,))), r"called with `\[x, a\]`"),
        (
            lambda layer: layer(2)([keras.Input((7, 4)), keras.Input((6, 6))]),
            "same number of nodes",
        ),
        (
            lambda layer: layer(2)([keras.Input((4,)), keras.Input((7, 7))]),
            "ranks",
        ),
        (
            lambda layer: layer.preprocess([[0, 1], [1, 0]]),
            "rank 2 or 3.*a of type list",
        ),
        (
            lambda layer: layer.preprocess(np.zeros((2, 3))),
            "square.*Received: a of shape",
        ),
        (
            lambda layer: layer(2).build([(None, None), (None, None)]),
            "features of .* must be known",
        ),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call(kq.layers.BinaryGraphConv)


def test_scipy_matrices_raise():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match="must be a tensor.*csr_matrix"):
        conv().call([tf.zeros((7, 4)), sparse.csr_matrix((7, 7))])
