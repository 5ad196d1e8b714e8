"""`kq.quantize` against a forward pass in NumPy, for all kinds of models."""

import importlib
import json

import numpy as np
import pytest
import quantizing
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.quantization import kinds

L = keras.layers
MODULE = "keras_qpsbgd.quantization.layer_by_layer"


def quantize(model, x, **options):
    defaults = {
        "method": "nearest",
        "verbose": 0,
        "bits": 2,
        "validation_split": 0.0,
    }
    return kq.quantize(model, x, **{**defaults, **options})


class Recorder:
    """A `Statistics` that also keeps all rows."""

    found: list = []

    def __init__(self, kernel, bias):
        self._statistics = self.original(kernel, bias)
        self.rows = []
        type(self).found.append(self)

    def add(self, rows, quantized_rows):
        self.rows.append((rows.copy(), quantized_rows.copy()))
        self._statistics.add(rows, quantized_rows)

    def both(self):
        return [np.concatenate(rows) for rows in zip(*self.rows)]

    def __getattr__(self, name):
        return getattr(self._statistics, name)


@pytest.fixture
def recorded(monkeypatch):
    """Returns the rows that each layer received, in the order of layers."""
    module = importlib.import_module(MODULE)
    found: list = []
    fields = {"found": found, "original": module.Statistics}
    monkeypatch.setattr(
        module, "Statistics", type("Recorder", (Recorder,), fields)
    )
    return found


@pytest.mark.parametrize("bits", [1, 3])
def test_mlp_computes_with_levels_and_scales(bits, recorded):
    model, x = quantizing.mlp(), quantizing.data(300, 8)
    quantized, report = quantize(model, x, bits=bits)
    assert [layer.name for layer in report.layers] == [
        "first",
        "second",
        "head",
    ]
    first, norm, second, _, head = quantized.layers
    for layer in (first, second, head):
        assert type(layer) is kq.layers.BinaryDense and layer.bits == bits
        levels = np.asarray(layer.binary_kernel)
        assert set(np.abs(levels).ravel()) <= set(range(1, 2**bits, 2))
    assert second.bias is None and second.activation is keras.activations.tanh

    def normalize(layer, h):
        gamma, beta, mean, variance = (w.numpy() for w in layer.weights)
        return gamma * (h - mean) / np.sqrt(variance + layer.epsilon) + beta

    inputs = [x.astype(np.float64)]
    h = inputs[0] @ quantizing.kernel_of(first) + quantizing.bias_of(first)
    inputs.append(normalize(norm, np.maximum(h, 0.0)))
    inputs.append(np.tanh(inputs[-1] @ quantizing.kernel_of(second)))
    y = inputs[-1] @ quantizing.kernel_of(head) + quantizing.bias_of(head)
    np.testing.assert_allclose(
        quantizing.outputs(quantized, x)[0], y, atol=1e-4
    )

    # The rows of the float and of the quantized network, batch by batch.
    floats = [x]
    for part in (model.layers[:2], model.layers[2:3]):
        h = floats[-1]
        for layer in part:
            h = layer(h, training=False).numpy()
        floats.append(h)
    for found, rows, quantized_rows in zip(recorded, floats, inputs):
        assert [len(pair[0]) for pair in found.rows] == [128, 128, 44]
        np.testing.assert_allclose(found.both()[0], rows, atol=1e-4)
        np.testing.assert_allclose(found.both()[1], quantized_rows, atol=1e-4)


def test_nested_models_and_shared_layers(recorded):
    model, x = quantizing.nested(), quantizing.data(40, 8)
    quantized, report = quantize(model, x, bits=4)
    assert [layer.name for layer in report.layers] == [
        "middle/dense",
        "middle/inner/dense",
        "shared",
        "head",
    ]
    # Three layers are called twice per sample, and the head once.
    assert [len(found.both()[0]) for found in recorded] == [80, 80, 80, 40]
    # One scale per quantized layer, and no copies of shared layers.
    assert len(quantized.weights) == len(model.weights) + 4
    middle = quantized.get_layer("middle")
    inner = middle.get_layer("inner")

    def dense(layer, h):
        return h @ quantizing.kernel_of(layer) + quantizing.bias_of(layer)

    def call_middle(h):
        return h + np.maximum(
            dense(inner.layers[0], dense(middle.get_layer("dense"), h)), 0.0
        )

    h = x.astype(np.float64)
    shared = quantized.get_layer("shared")
    for _ in range(2):
        h = np.tanh(dense(shared, call_middle(h)))
    first, second = quantizing.outputs(quantized, x)
    np.testing.assert_allclose(first, h, atol=1e-4)
    head = quantized.get_layer("head")
    np.testing.assert_allclose(second, dense(head, h), atol=1e-4)


def test_a_layer_shared_with_a_nested_model_stays_shared():
    shared = L.Dense(8, name="shared")
    x = keras.Input((8,))
    inner = keras.Model(x, shared(x), name="inner")
    x = keras.Input((8,))
    model = keras.Model(x, shared(inner(shared(x))))
    quantized, report = quantize(model, quantizing.data(20, 8), bits=4)
    assert len(report.layers) == 1 and len(quantized.weights) == 3
    layer = quantized.get_layer("shared")
    assert layer is quantized.get_layer("inner").get_layer("shared")
    h = quantizing.data(20, 8).astype(np.float64)
    for _ in range(3):
        h = h @ quantizing.kernel_of(layer) + quantizing.bias_of(layer)
    found = quantizing.outputs(quantized, quantizing.data(20, 8))[0]
    np.testing.assert_allclose(found, h, atol=1e-4)


def test_several_inputs():
    model = quantizing.two_inputs()
    a, b = quantizing.data(20, 8), quantizing.data(20, 5, seed=1)
    results = [
        quantizing.outputs(quantize(model, data)[0], [a, b])[0]
        for data in (
            [a, b],
            (a, b),
            {"b": b, "a": a},
            tf.data.Dataset.from_tensors(({"a": a, "b": b}, np.zeros(20))),
        )
    ]
    for found in results[1:]:
        np.testing.assert_allclose(found, results[0], atol=1e-6)


def test_dictionaries_of_inputs_and_outputs():
    a, b = keras.Input((8,), name="a"), keras.Input((5,), name="b")
    y = L.Concatenate()([L.Dense(4, name="left")(a), b])
    model = keras.Model(
        {"a": a, "b": b}, {"y": L.Dense(3)(y), "z": L.Dense(2)(y)}
    )
    x = {"a": quantizing.data(20, 8), "b": quantizing.data(20, 5)}
    quantized, report = quantize(model, x)
    assert len(report.layers) == 3
    found = quantized(tf.nest.map_structure(tf.constant, x))
    assert found["y"].shape == (20, 3) and found["z"].shape == (20, 2)


def test_attention_becomes_binary():
    model, x = quantizing.attention(), quantizing.data(30, 5, 8)
    quantized, report = quantize(model, x)
    names = [layer.name for layer in report.layers]
    assert names == [
        "attention/query",
        "attention/key",
        "attention/value",
        "attention/attention_output",
        "mix",
        "head",
    ]
    assert not any(layer.frozen for layer in report.layers)
    layer = quantized.get_layer("attention")
    assert type(layer) is kq.layers.BinaryMultiHeadAttention
    assert type(quantized.get_layer("mix")) is kq.layers.BinaryEinsumDense


@pytest.mark.parametrize("layers", [["attention/key", "mix"], None])
def test_frozen_layers_stay_on_the_grid(layers, tmp_path):
    """Part of an attention layer, and an equation without a binary layer."""
    x = keras.Input((5, 8))
    y = x
    if layers:
        y = L.MultiHeadAttention(2, 4, name="attention")(x, x)
    y = L.EinsumDense("abc,dc->abd", (5, 6), bias_axes="d", name="mix")(y)
    y = L.Dense(3, name="head")(L.Flatten()(y))
    model, x = keras.Model(x, y), quantizing.data(30, 5, 8)
    quantized, report = quantize(model, x, layers=layers)
    frozen = {layer.name for layer in report.layers if layer.frozen}
    assert frozen == set(layers or ["mix"])
    assert "Frozen" in str(report)
    path = tmp_path / "model.keras"
    quantized.save(path)
    outputs = quantizing.outputs(quantized, x)[0]
    for candidate in (quantized, keras.models.load_model(path)):
        found = quantizing.outputs(candidate, x)[0]
        np.testing.assert_array_equal(found, outputs)
        kept = [candidate.get_layer("mix")]
        kernels = [kept[0].kernel.numpy().T]
        if layers:
            kept.append(candidate.get_layer("attention"))
            parts = _keras.attention_parts(kept[1])
            old = _keras.attention_parts(model.get_layer("attention"))
            same = [
                (a.kernel.numpy() == b.kernel.numpy()).all()
                for a, b in zip(old.values(), parts.values())
            ]
            assert same == [True, False, True, True]
            kernels.append(list(parts.values())[1].kernel.numpy())
        for kernel in kernels:
            # Two bits have levels -3, -1, 1 and 3 times a scale.
            matrix = np.abs(kernel.reshape(8, -1))
            levels = matrix / matrix.min(axis=0)
            assert set(levels.round(3).ravel()) <= {1.0, 3.0}
        candidate.compile("sgd", "mse", run_eagerly=True)
        before = [w.copy() for layer in kept for w in layer.get_weights()]
        candidate.fit(x, np.zeros((30, 3)), verbose=0)
        after = [w for layer in kept for w in layer.get_weights()]
        for old_weight, new_weight in zip(before, after):
            np.testing.assert_array_equal(old_weight, new_weight)


@pytest.mark.parametrize("sparse", [False, True])
def test_graph_network(sparse):
    spektral = pytest.importorskip("spektral")
    rng = np.random.default_rng(0)
    a = (rng.random((150, 150)) < 0.05).astype("float32")
    a = kq.layers.BinaryGraphConv.preprocess(np.maximum(a, a.T))
    x = quantizing.data(150, 6)
    with kq.spektral.enable_keras3():
        inputs = [keras.Input((6,)), keras.Input((150,), sparse=sparse)]
        conv = spektral.layers.GCNConv
        h = conv(8, activation="relu", name="first")(inputs)
        model = keras.Model(inputs, conv(3, name="last")([h, inputs[1]]))
        quantizing.with_random_biases(model)
        given = tf.sparse.from_dense(a) if sparse else a
        quantized, report = quantize(model, [x, given])
        first, last = (quantized.get_layer(n) for n in ("first", "last"))
        assert type(first) is kq.layers.BinaryGraphConv
        h = a @ x @ quantizing.kernel_of(first) + quantizing.bias_of(first)
        h = a @ np.maximum(h, 0.0)
        y = h @ quantizing.kernel_of(last) + quantizing.bias_of(last)
        found = quantized(
            [x, given] if sparse is False else [tf.constant(x), given]
        )
        np.testing.assert_allclose(found, y, atol=1e-4)
        if sparse:
            scipy_sparse = pytest.importorskip("scipy.sparse")
            same, _ = quantize(model, [x, scipy_sparse.csr_matrix(a)])
            np.testing.assert_array_equal(
                same.get_weights()[0], quantized.get_weights()[0]
            )


def test_the_given_model_is_not_changed():
    model, x = quantizing.nested(), quantizing.data(20, 8)

    def loss(y, predicted):  # a loss that cannot be saved
        return tf.reduce_mean((y - predicted) ** 2)

    model.get_layer("head").trainable = False
    model.compile("adam", [loss, loss], run_eagerly=True)
    model.fit(x, [np.zeros((20, 8)), np.zeros((20, 3))], verbose=0)
    optimizer = model.optimizer
    weights = [w.copy() for w in model.get_weights()]
    iterations = int(optimizer.iterations)
    config = json.dumps(model.get_config(), default=str, sort_keys=True)
    attributes = {layer: set(vars(layer)) for layer in model.layers}
    quantized, _ = quantize(model, x)
    for old, new in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(old, new)
    assert model.optimizer is optimizer
    assert int(optimizer.iterations) == iterations
    assert config == json.dumps(model.get_config(), default=str, sort_keys=True)
    assert attributes == {layer: set(vars(layer)) for layer in model.layers}
    assert not model.get_layer("head").trainable
    model.fit(x, [np.zeros((20, 8)), np.zeros((20, 3))], verbose=0)
    # The copy has the flags and the names, and no weights of the model.
    assert not quantized.get_layer("head").trainable
    assert quantized.get_layer("shared").trainable
    assert [layer.name for layer in quantized.layers] == [
        layer.name for layer in model.layers
    ]
    ours, theirs = map(
        set, (map(id, quantized.weights), map(id, model.weights))
    )
    assert ours.isdisjoint(theirs)


def test_frozen_inner_layers_keep_their_weights():
    """In legacy Keras, the order of the weights depends on the flags."""
    model, x = quantizing.attention(), quantizing.data(30, 5, 8)
    parts = _keras.attention_parts(model.get_layer("attention"))
    list(parts.values())[0].trainable = False
    model.get_layer("norm").trainable = False
    quantized, _ = quantize(model, x, layers="head", bits=4)
    copied = _keras.attention_parts(quantized.get_layer("attention"))
    for old, new in zip(parts.values(), copied.values()):
        assert old.trainable == new.trainable
        np.testing.assert_array_equal(old.kernel.numpy(), new.kernel.numpy())


def test_mixed_precision():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            L.Dense(6, activation="relu", dtype="mixed_float16"),
            L.Dense(3, dtype="float32"),
        ]
    )
    x = quantizing.data(40, 8)
    quantized, report = quantize(model, x, bits=4)
    assert quantized.layers[0].compute_dtype == "float16"
    assert tf.as_dtype(quantized.layers[0].kernel.dtype) == tf.float32
    assert report.layers[1].error < 0.1


def test_other_layers_are_copied():
    x = keras.Input((6,), dtype="int32")
    y = L.Embedding(10, 4, mask_zero=True, name="embedding")(x)
    y = L.SimpleRNN(5, name="rnn")(y)
    y = L.Lambda(lambda t: tf.abs(t))(y)
    y = kq.layers.BinaryDense(4, name="binary")(y)
    model = keras.Model(x, L.Dense(2, name="head")(y))
    data = np.random.default_rng(0).integers(0, 10, (20, 6))
    quantized, report = quantize(model, data, bits=4, layers=["head"])
    assert [layer.name for layer in report.layers] == ["head"]
    reasons = {layer.name: layer.reason for layer in report.unchanged}
    assert reasons["embedding"] == "unsupported type"
    assert reasons["rnn/kernel"] == "not chosen"
    assert reasons["binary"] == "already quantized"
    old = keras.Model(model.inputs, model.get_layer("binary").output)
    new = keras.Model(quantized.inputs, quantized.get_layer("binary").output)
    np.testing.assert_allclose(
        quantizing.outputs(old, data)[0], quantizing.outputs(new, data)[0]
    )


@pytest.mark.skipif(not _keras.KERAS_3, reason="needs `keras.ops`")
def test_operations_are_copied():
    x = keras.Input((8,))
    model = keras.Model(x, keras.ops.relu(L.Dense(4)(x)) * 2.0 + 1.0)
    quantized, _ = quantize(model, quantizing.data(20, 8))
    layer = next(v for v in quantized.layers if v.weights)
    h = quantizing.data(20, 8) @ quantizing.kernel_of(layer)
    y = 2.0 * np.maximum(h + quantizing.bias_of(layer), 0.0) + 1.0
    found = quantizing.outputs(quantized, quantizing.data(20, 8))[0]
    np.testing.assert_allclose(found, y, atol=1e-5)


@pytest.mark.parametrize(
    "layers, names",
    [
        ("^(first|head)$", ["first", "head"]),
        (["head", "first"], ["first", "head"]),
        (lambda layer: layer.name != "head", ["first", "second"]),
    ],
)
def test_layers_can_be_chosen(layers, names):
    model, x = quantizing.mlp(), quantizing.data(20, 8)
    quantized, report = quantize(model, x, layers=layers)
    assert [layer.name for layer in report.layers] == names
    unchanged = {layer.name: layer.reason for layer in report.unchanged}
    assert unchanged.pop("norm") == "normalization"
    others = dict.fromkeys({"first", "second", "head"} - set(names))
    assert unchanged == dict.fromkeys(others, "not chosen")
    for name in others:
        assert type(quantized.get_layer(name)) is L.Dense


def test_qubo_is_deterministic_with_a_seed(capsys):
    model, x = quantizing.mlp(), quantizing.data(64, 8)
    results = [
        quantize(model, x, method="qubo", bits=1, seed=3) for _ in range(2)
    ]
    for a, b in zip(*(quantized.get_weights() for quantized, _ in results)):
        np.testing.assert_array_equal(a, b)
    report = results[0][1]
    assert report.backend == "native" and report.calls > 0
    for layer in report.layers:
        assert layer.error <= min(layer.errors.values()) + 1e-9
    assert capsys.readouterr().out == ""
    quantize(model, x, verbose="auto")
    assert "3/3 head" in capsys.readouterr().out


def test_layers_inside_wrappers_are_frozen():
    x = keras.Input((6, 8, 8, 3))
    h = L.TimeDistributed(L.Conv2D(4, 3, strides=2), name="frames")(x)
    h = L.TimeDistributed(L.SeparableConv2D(4, 2), name="separable")(h)
    h = L.TimeDistributed(L.Flatten())(h)
    h = L.TimeDistributed(L.Dense(5, activation="relu"), name="time")(h)
    h = L.Bidirectional(L.LSTM(4, return_sequences=True), name="both")(h)
    h = L.GRU(4, name="gru")(h)
    model = quantizing.with_random_biases(keras.Model(x, L.Dense(2)(h)))
    images = quantizing.data(12, 6, 8, 8, 3)
    quantized, report = quantize(model, images, bits=4, method="descent+scales")
    names = [layer.name.partition("/")[0] for layer in report.layers[:-1]]
    expected = ["frames"] + 2 * ["separable"] + ["time"]
    assert names == [*expected, *4 * ["both"], *2 * ["gru"]]
    assert report.layers[-2].name == "gru/recurrent"
    assert all(layer.frozen for layer in report.layers[:-1])
    assert not report.unchanged
    assert report.float32_bytes == 4 * model.count_params()
    assert max(layer.error for layer in report.layers) < 0.05
    assert len(quantized.trainable_variables) == 3  # of the last layer
    found = quantizing.outputs(quantized, images)[0]
    expected = quantizing.outputs(model, images)[0]
    error = ((expected - found) ** 2).sum() / (expected**2).sum()
    assert error < 0.05


def test_rows_inside_wrappers(recorded):
    """The second kernel gets the rows of the quantized first kernel."""
    x = keras.Input((6, 3))
    h = L.TimeDistributed(L.Dense(4, name="dense"), name="time")(x)
    h = L.Bidirectional(L.LSTM(4, return_sequences=True), name="both")(h)
    model = quantizing.with_random_biases(keras.Model(x, h))
    data = quantizing.data(10, 6, 3)
    quantized, report = quantize(model, data, bits=2)
    assert report.layers[0].name == "time/dense"
    rows = [found.both() for found in recorded]
    np.testing.assert_array_equal(rows[0][0], data.reshape(-1, 3))
    inputs = [
        candidate.get_layer("time")(data).numpy().reshape(-1, 4)
        for candidate in (model, quantized)
    ]
    for forward in (rows[1], rows[3]):
        for found, wanted in zip(forward, inputs):
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    # The recurrent rows are the outputs of the step before, with zeros first.
    outputs = quantizing.outputs(model, data)[0]
    wanted = np.zeros((2, 10, 6, 4), "float32")
    wanted[0, :, 1:], wanted[1, :, :-1] = (
        outputs[:, :-1, :4],
        outputs[:, 1:, 4:],
    )
    for (found, quantized_rows), expected in zip((rows[2], rows[4]), wanted):
        np.testing.assert_allclose(found, expected.reshape(-1, 4), atol=1e-5)
        assert 1e-3 < abs(quantized_rows - found).max() < 0.5


def test_layers_that_do_not_fit_are_listed():
    inner = keras.Sequential([keras.Input((3,)), L.Dense(4)])
    x = keras.Input((6, 3), batch_size=10)
    h = L.TimeDistributed(inner, name="model")(x)
    h = L.GRU(4, return_sequences=True, reset_after=False, name="gru")(h)
    h = L.LSTM(4, stateful=True, return_sequences=True, name="stateful")(h)
    h = L.TimeDistributed(L.BatchNormalization(name="norm"), name="time")(h)
    if _keras.KERAS_3:  # legacy Keras cannot copy it
        binary = kq.layers.BinaryDense(4, name="dense")
        h = L.TimeDistributed(binary, name="binary")(h)
    model = keras.Model(x, h)
    _, report = quantize(model, quantizing.data(10, 6, 3))
    assert [layer.name for layer in report.layers] == ["gru/kernel"]
    reasons = {layer.name: layer.reason for layer in report.unchanged}
    if _keras.KERAS_3:
        assert reasons.pop("binary/dense") == "already quantized"
    assert reasons == {
        f"model/{inner.name}": "model inside another layer",
        "gru/recurrent": "`reset_after` is False",
        "stateful/kernel": "stateful",
        "stateful/recurrent": "stateful",
        "time/norm": "normalization",
    }


def test_kernels_can_be_chosen():
    x = keras.Input((6, 3))
    h = L.SeparableConv1D(4, 3, name="sep")(x)
    model = keras.Model(x, L.LSTM(4, name="lstm")(h))
    chosen = ["lstm/recurrent", "sep"]
    _, report = quantize(model, quantizing.data(10, 6, 3), layers=chosen)
    names = ["sep/depthwise", "sep/pointwise", "lstm/recurrent"]
    assert [layer.name for layer in report.layers] == names
    assert [layer.name for layer in report.unchanged] == ["lstm/kernel"]
    assert report.float32_bytes == 4 * model.count_params()


@pytest.mark.slow
def test_other_convolutions_are_frozen(recorded):
    x = keras.Input((8, 8, 3))
    h = L.Conv2D(8, 3, name="first")(x)
    h = L.DepthwiseConv2D(3, name="depthwise")(h)
    h = L.Conv2D(8, 1, groups=4, activation="relu", name="grouped")(h)
    h = L.Reshape((16, 8))(h)
    h = L.Conv1D(4, 3, name="line")(h)
    model = keras.Model(x, h)
    images = quantizing.data(40, 8, 8, 3)
    quantized, report = quantize(model, images, bits=4, method="qubo", seed=0)
    names = ["first", "depthwise", "grouped", "line"]
    assert [layer.name for layer in report.layers] == names
    assert [layer.frozen for layer in report.layers] == [False] + 3 * [True]
    assert not report.unchanged
    for name in names[1:]:
        layer = quantized.get_layer(name)
        assert not layer.trainable
        kernel = np.abs(kinds.kind_of(layer).kernel(layer)).round(6)
        columns = np.moveaxis(kernel, -2, -1).reshape(-1, kernel.shape[-2])
        assert max(len(np.unique(column)) for column in columns) <= 8
    expected, found = model(images).numpy(), quantized(images).numpy()
    error = ((expected - found) ** 2).sum() / (expected**2).sum()
    assert error < 0.05


@pytest.mark.parametrize(
    "bits, found",
    [
        ({"first": 3, "head": 1}, {"first": 3, "head": 1}),
        ({"first": 3, ".": 1}, {"first": 3, "second": 1, "head": 1}),
        ({"head": None, "d$": 2, ".": 4}, {"first": 4, "second": 2}),
    ],
)
def test_bits_per_layer(bits, found):
    model, x = quantizing.mlp(), quantizing.data(64, 8)
    quantized, report = quantize(model, x, bits=bits)
    assert {layer.name: layer.bits for layer in report.layers} == found
    for name, count in found.items():
        assert quantized.get_layer(name).bits == count
    left = {"first", "second", "head"} - set(found)
    assert {layer.name for layer in report.unchanged} == {*left, "norm"}
    assert "per weight" in str(report)


def test_an_interrupted_call_continues(tmp_path, monkeypatch):
    model, x = quantizing.mlp(), quantizing.data(64, 8)
    settings = {"method": "qubo", "seed": 0, "out": tmp_path / "run"}
    expected, _ = quantize(model, x, **settings | {"out": None})
    module = importlib.import_module(MODULE)
    solve, solved = module.quantize_layer, []

    def interrupted(statistics, **options):
        if len(solved) == 2:
            raise KeyboardInterrupt
        solved.append(options)
        return solve(statistics, **options)

    monkeypatch.setattr(module, "quantize_layer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantize(model, x, **settings)
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert files == ["first.npz", "second.npz"]
    solved.clear()
    (tmp_path / "run" / "second.npz").write_bytes(b"cut short")
    found, report = quantize(model, x, **settings)
    assert len(solved) == 2 and len(report.layers) == 3
    for first, second in zip(expected.get_weights(), found.get_weights()):
        np.testing.assert_array_equal(first, second)
    # Other data, weights or settings start again.
    for change in ({"bits": 1}, {"method": "gptq"}, {"x": x + 1}):
        solved.clear()
        options = {**settings, **change}
        with pytest.raises(KeyboardInterrupt):
            quantize(model, options.pop("x", x), **options)
        assert len(solved) == 2


def test_errors_on_held_out_data_and_warnings():
    model = quantizing.mlp()
    x = quantizing.data(300, 8)
    _, report = quantize(model, x, validation_split=0.2)
    assert all(0.5 < v.held_out / v.error < 2 for v in report.layers)
    _, report = quantize(model, x, validation_split=0.0)
    assert all(layer.held_out is None for layer in report.layers)
    with pytest.warns(UserWarning, match="has 8 inputs but receives only 3"):
        quantize(model, x[:3])
    wide = keras.Sequential([keras.Input((60,)), L.Dense(4, name="wide")])
    options = {"method": "descent+scales", "validation_split": 0.2}
    with pytest.warns(UserWarning, match="`wide` has an output error of .* h"):
        quantize(wide, quantizing.data(50, 60), **options)
    # More nodes of a graph are not to be had.
    inputs = [keras.Input((20,)), keras.Input((10,))]
    hidden = kq.layers.BinaryGraphConv(20)(inputs)
    graph = keras.Model(inputs, L.Dense(2, name="head")(hidden))
    nodes = [quantizing.data(10, 20), np.eye(10, dtype="float32")]
    with pytest.warns(UserWarning, match="Use more bits, or leave"):
        quantize(graph, nodes, validation_split=0.5)
