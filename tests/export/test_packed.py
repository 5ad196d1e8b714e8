"""`export.packed` and `load_packed`: round trips, sizes, refused models."""

import math
import pathlib
import re
import warnings

import dimod
import exporting
import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd import bits as bits_module
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "guides"


def round_trip(model, path, **arguments):
    kq.export.packed(model, path, **arguments)
    return kq.export.load_packed(path, **arguments)


def assert_same(model, path, inputs=None, **arguments):
    """Stores and loads a model, and compares the predictions bit by bit."""
    inputs = exporting.batch(model) if inputs is None else inputs
    expected = exporting.predict(model, inputs)
    loaded = round_trip(model, path, **arguments)
    np.testing.assert_array_equal(exporting.predict(loaded, inputs), expected)
    return loaded


@pytest.mark.parametrize("name, bits", exporting.CASES)
def test_round_trip_predicts_bitwise_the_same(name, bits, tmp_path):
    scale = exporting.SCALES[bits % len(exporting.SCALES)]
    model = exporting.MODELS[name](bits=bits, output_scale=scale)
    exporting.randomize(model)
    loaded = assert_same(model, tmp_path / "model.kq")
    # The kernels of the loaded model are weights of +1, -1 and between.
    for layer in _keras.all_layers(loaded):
        if isinstance(layer, kq.layers.BinaryLayer):
            levels = layer.kernel.numpy() * (2**bits - 1)
            np.testing.assert_allclose(
                levels, layer.binary_kernel, rtol=0, atol=1e-5
            )


def test_bfloat16_weights(tmp_path):
    model = keras.Sequential(
        [
            keras.layers.InputLayer((4,)),
            keras.layers.Dense(3, dtype="bfloat16"),
        ]
    )
    exporting.randomize(model)
    loaded = round_trip(model, tmp_path / "model.kq")
    before, after = model.weights[0], loaded.weights[0]
    assert after.dtype == before.dtype
    np.testing.assert_array_equal(
        tf.cast(before, "float32"), tf.cast(after, "float32")
    )


def test_model_still_works_after_it_was_stored(tmp_path):
    """Legacy Keras exchanges base classes of layers in a graph."""
    for model in (exporting.dense(), exporting.attention()):
        inputs = exporting.batch(model)
        expected = exporting.predict(model, inputs)
        kq.export.packed(model, tmp_path / "model.kq")
        np.testing.assert_array_equal(
            exporting.predict(model, inputs), expected
        )
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(inputs, expected, verbose=0)


def test_optimizer_without_a_configuration(tmp_path):
    """An optimizer with a sampler cannot be saved, and is not stored."""
    inner = keras.Sequential([keras.Input((4,)), kq.layers.BinaryDense(3)])
    model = keras.Sequential([keras.Input((4,)), inner])
    for each in (inner, model):
        each.compile(kq.QPSBGD(backend=dimod.ExactSolver()), "mse")
    kq.export.packed(model, tmp_path / "model.kq")
    x = np.eye(4, dtype="float32")
    loaded = kq.export.load_packed(tmp_path / "model.kq")
    np.testing.assert_array_equal(loaded(x), model(x))
    assert not _keras.is_compiled(loaded)
    with pytest.raises(ValueError, match="cannot be saved"):
        model.get_compile_config()


@pytest.mark.parametrize("first", ["normalization", "batch"])
def test_normalization_and_model_built_by_its_first_batch(first, tmp_path):
    layers = [kq.layers.BinaryDense(3)]
    if first == "normalization":
        scaling = keras.layers.Normalization()
        scaling.adapt(np.random.default_rng(0).normal(3, 2, size=(50, 4)))
        layers = [keras.layers.InputLayer((4,)), scaling, *layers]
    model = keras.Sequential(layers)
    inputs = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
    assert_same(model, tmp_path / "model.kq", inputs)


@pytest.mark.skipif(not _keras.KERAS_3, reason="legacy Keras calls TensorFlow")
def test_operations_of_functional_models(tmp_path):
    inputs = keras.Input((4,))
    outputs = kq.layers.BinaryDense(4)(inputs) * 2.0 + inputs
    model = keras.Model(inputs, outputs[:, 1:])
    assert_same(model, tmp_path / "model.kq")


def test_spektral_models(tmp_path):
    pytest.importorskip("spektral")
    import spektral.models

    with kq.spektral.enable_keras3():
        x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
        a = kq.layers.BinaryGraphConv.preprocess(np.eye(6, dtype="float32"))
        a = tf.sparse.from_dense(a[::-1])
        model = spektral.models.GCN(n_labels=3, channels=5)
        assert_same(model, tmp_path / "model.kq", [tf.constant(x), a])

        nodes, matrix = keras.Input((4,)), keras.Input((None,), sparse=True)
        hidden = spektral.layers.GCNConv(5, "relu")([nodes, matrix])
        outputs = kq.layers.BinaryGraphConv(3)([hidden, matrix])
        model = keras.Model([nodes, matrix], outputs)
        assert_same(model, tmp_path / "model.kq", [tf.constant(x), a])


class OwnLayer(kq.layers.BinaryLayer):
    def build(self, input_shape):
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1],))
        # The same shape and value as the kernel.
        self.offset = self.add_weight(name="offset", shape=(input_shape[-1],))
        self.mark_binary(self.kernel)

    def binary_call(self, inputs, binary_kernel):
        return inputs * binary_kernel + self.offset

    def call(self, inputs, training=None):
        return self.binary_product(inputs, training)


def test_own_layers(tmp_path):
    model = keras.Sequential([keras.layers.InputLayer((4,)), OwnLayer(bits=2)])
    with pytest.raises(ValueError, match="OwnLayer"):
        kq.export.packed(model, tmp_path / "model.kq")
    assert not list(tmp_path.iterdir())
    model.layers[0].offset.assign(model.layers[0].kernel)
    own = {"OwnLayer": OwnLayer}
    assert_same(model, tmp_path / "model.kq", custom_objects=own)
    with pytest.raises(ValueError, match="contains .*OwnLayer"):
        kq.export.load_packed(tmp_path / "model.kq")


class OwnModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = kq.layers.BinaryDense(3)

    def call(self, inputs):
        return self.layer(inputs)


def test_own_model_without_arguments(tmp_path):
    model = OwnModel()
    inputs = np.ones((2, 4), "float32")
    model(inputs)
    path = tmp_path / "model.kq"
    message = r"OwnModel.* \(the class of the model itself\)"
    with pytest.raises(ValueError, match=message):
        kq.export.packed(model, path)
    own = {"OwnModel": OwnModel}
    assert_same(model, path, inputs, custom_objects=own)
    with pytest.raises(ValueError, match=message):
        kq.export.load_packed(path)


class WithoutConfig(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.layer = kq.layers.BinaryDense(units)

    def call(self, inputs):
        return self.layer(inputs)


def refused_models():
    inputs = np.ones((2, 4), "float32")
    subclassed = WithoutConfig(3)
    subclassed(inputs)
    real = keras.Sequential(
        [keras.layers.InputLayer((4,)), kq.layers.BinaryDense(3, name="real")]
    )
    real.layers[0].use_real_kernel()
    broken = keras.Sequential(
        [keras.layers.InputLayer((4,)), kq.layers.BinaryDense(3, bits=2)]
    )
    broken.layers[0].kernel.assign(np.full((4, 3), np.nan))
    # Legacy Keras finds a configuration, so the class itself is refused.
    yield subclassed, "WithoutConfig|get_config` if its constructor has"
    yield real, "real kernels in real"
    yield broken, "NaN"
    yield keras.Sequential([kq.layers.BinaryDense(3)]), "has been built"
    yield (
        keras.Sequential(
            [
                keras.layers.InputLayer((4,)),
                keras.layers.Lambda(lambda x: x),
            ]
        ),
        "neither run stored code nor load files.*with keras.layers.Lambda",
    )
    yield "model.keras", r"`keras.models.load_model`.*model='model.keras'"
    yield pathlib.Path("model.kq"), "`keras_qpsbgd.export.load_packed`"
    yield None, "must be a Keras model. Received: model=None"


def test_refused_models_leave_the_file_as_it_is(tmp_path):
    path = tmp_path / "model.kq"
    path.write_text("before")
    for model, message in refused_models():
        with pytest.raises(ValueError, match=message):
            kq.export.packed(model, path)
        assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    model = exporting.dense()
    for path in (tmp_path, str(tmp_path), "new/"):
        with pytest.raises(ValueError, match="Received: path=.*is a folder"):
            kq.export.packed(model, path)
    with pytest.raises(ValueError, match="Received: path='', which is empty"):
        kq.export.packed(model, "")
    assert not list(tmp_path.iterdir())
    assert_same(model, "~/new/folder/model.kq")
    assert (tmp_path / "home" / "new" / "folder" / "model.kq").is_file()


def test_float_models_are_not_smaller(tmp_path):
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    model = keras.Sequential(
        [keras.layers.InputLayer((8,)), keras.layers.Dense(4, name="dense")]
    )
    with pytest.warns(UserWarning, match="no binary layer.*quantize") as found:
        assert_same(model, tmp_path / "model.kq", x)
    assert found[0].filename == __file__
    quantized, _ = kq.quantize(model, x, method="nearest", verbose=0)
    for smaller in (quantized, exporting.dense()):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            kq.export.packed(smaller, tmp_path / "model.kq")


@pytest.mark.once
def test_size_of_the_file():
    model = keras.Sequential([keras.layers.InputLayer((784,))])
    for units in (1024, 1024):
        model.add(kq.layers.BinaryDense(units))
        model.add(keras.layers.BatchNormalization())
    model.add(kq.layers.BinaryDense(10))
    content = saving.content_of(model)
    kernels = [784 * 1024, 1024 * 1024, 1024 * 10]
    stored = sum(
        len(data)
        for entry, data in container.decode(content)[1]
        if entry.bits is not None
    )
    assert stored * 31 <= 4 * sum(kernels)
    assert len(content) * 25 <= 4 * model.count_params()


@pytest.mark.once
@pytest.mark.parametrize("bits", range(1, 5))
@pytest.mark.parametrize("count", [0, 1, 1001])
def test_bit_stream(bits, count):
    limit = 2**bits - 1
    rng = np.random.default_rng(count)
    levels = 2 * rng.integers(limit + 1, size=count) - limit
    packed = bits_module.pack_levels(levels.astype("float32"), bits)
    assert len(packed) == math.ceil(count * bits / 8)
    # An integer whose digits in base 2**bits are the weights.
    number = sum(
        int(level + limit) // 2 << bits * i for i, level in enumerate(levels)
    )
    assert int.from_bytes(packed, "little") == number
    np.testing.assert_array_equal(
        bits_module.unpack_levels(packed, count, bits), levels
    )
    for wrong in ([limit + 1], [0], [limit + 2], [np.nan], [1.5]):
        with pytest.raises(ValueError, match=f"from -{limit} to {limit}. Rec"):
            bits_module.pack_levels(np.array(wrong), bits)


def code_of_the_documentation():
    """Returns the functions of the page."""
    page = (DOCS / "packed-format.md").read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert not re.search("import (?!hashlib|json|math|struct|numpy)", code)
    names = {}
    exec(code, names)
    return names


def test_documentation_reads_rounded_kernels(tmp_path):
    layer = keras.layers.DepthwiseConv2D(3, depth_multiplier=2, name="conv")
    model = keras.Sequential([keras.layers.InputLayer((5, 5, 3)), layer])
    variable = model.weights[0]
    rng = np.random.default_rng(0)
    levels = 2 * rng.integers(8, size=variable.shape) - 7
    variable.assign(levels * rng.random((1, 1, 3, 2)).astype("float32"))
    kq.export.packed(model, tmp_path / "model.kq")
    read = code_of_the_documentation()["read_packed"]
    header, arrays = read(tmp_path / "model.kq")
    assert header["arrays"][0]["axes"] == [2, 3]
    found = arrays[header["arrays"][0]["name"]]
    np.testing.assert_array_equal(found, variable)


@pytest.mark.parametrize("scale", exporting.SCALES)
def test_forward_pass_of_the_documentation(scale, tmp_path):
    """The code of the page computes the outputs with NumPy alone."""
    model = keras.Sequential(
        [
            keras.layers.InputLayer((7,)),
            kq.layers.BinaryDense(9, activation="binary", output_scale=scale),
            kq.layers.BinaryDense(8, bits=3, use_bias=False),
            keras.layers.BatchNormalization(epsilon=0.1, center=False),
            keras.layers.Activation("binary"),
            kq.layers.BinaryDense(5, activation="binary"),
            keras.layers.BatchNormalization(epsilon=0.2, scale=False),
            kq.layers.BinaryDense(3, bits=2, output_scale=scale),
        ]
    )
    exporting.randomize(model)
    # The first product of zeros is the bias, whose sign at 0 is +1.
    model.layers[0].bias.assign(np.zeros(9))
    inputs = np.concatenate([exporting.batch(model), np.zeros((1, 7))])
    inputs = inputs.astype("float32")
    path = tmp_path / "model.kq"
    kq.export.packed(model, path)
    names = code_of_the_documentation()
    header, arrays = names["read_packed"](path)
    np.testing.assert_array_equal(
        arrays[f"{model.layers[-1].name}/bias"], model.layers[-1].bias
    )
    found = names["predict"](header, arrays, inputs)
    np.testing.assert_allclose(
        found, exporting.predict(model, inputs), rtol=1e-5, atol=1e-5
    )
