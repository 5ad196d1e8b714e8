"""Tests files, errors and the C module of `Predictor`."""

import re
import warnings

import exporting
import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.inference import Predictor
from keras_qpsbgd.inference import predictor
from keras_qpsbgd.inference import products

layers = keras.layers


def small(*chain):
    return keras.Sequential([layers.InputLayer((6,)), *chain])


def binary_model():
    return small(
        kq.layers.BinaryDense(9, activation="binary"),
        layers.BatchNormalization(),
        layers.Activation("binary"),
        kq.layers.BinaryDense(3, bits=2),
    )


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    model = binary_model()
    model.save(tmp_path / "model.keras")
    model.save(str(tmp_path / "model.h5"))
    kq.export.packed(model, tmp_path / "model.kq")
    x = np.random.default_rng(0).normal(size=(5, 6))
    expected = Predictor(model)(x)
    for path in (
        tmp_path / "model.keras",
        str(tmp_path / "model.h5"),
        tmp_path / "model.kq",
        "~/model.kq",
    ):
        np.testing.assert_array_equal(Predictor(path)(x), expected)


def test_files_that_are_no_models(tmp_path):
    kinds = "a packed, .keras or HDF5 file. Received: path_or_model="
    with pytest.raises(
        FileNotFoundError, match=f"{kinds}'no.keras', which does not exist"
    ):
        Predictor("no.keras")
    with pytest.raises(ValueError, match=f"{kinds}.*, which is a folder"):
        Predictor(tmp_path)
    path = tmp_path / "model.kq"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=f"{kinds}.*another kind of file"):
        Predictor(path)
    kq.export.packed(binary_model(), path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="truncated or altered.* Received: "):
        Predictor(path)


def with_steps(content, change):
    """Returns a file with changed steps and a correct checksum."""
    header, data = exporting.parts(content)
    change(header["predictor"])
    return exporting.joined(header, data)


STEP_CHANGES = {
    "no list": lambda p: p.update(steps=None),
    "no shape": lambda p: p.pop("input_shape"),
    "wrong shape": lambda p: p.update(input_shape=[None, -6]),
    "unknown": lambda p: p["steps"][0].update(step="system"),
    "no kernel": lambda p: p["steps"][0].pop("kernel"),
    "other array": lambda p: p["steps"][0].update(kernel={"array": 1}),
    "missing array": lambda p: p["steps"][0].update(kernel={"array": 99}),
    "windows": lambda p: p["steps"][0].update(windows={"size": [1, 1]}),
    "limits": lambda p: p["steps"][1].update(limits={"float32": "AAAAAA=="}),
    "no text": lambda p: p["steps"][1].update(limits={"float32": 3}),
    "activation": lambda p: p["steps"].append(
        {"step": "activation", "name": "eval"}
    ),
    "reshape": lambda p: p["steps"].append({"step": "reshape", "shape": [0]}),
    "pooling": lambda p: p["steps"].append(
        {"step": "max_pooling", "windows": 3, "keepdims": False}
    ),
}


@pytest.mark.once
def test_wrong_steps_in_a_file(tmp_path):
    path = tmp_path / "model.kq"
    kq.export.packed(binary_model(), path)
    content = path.read_bytes()
    path.write_bytes(with_steps(content, lambda predictor: None))
    Predictor(path)
    for name, change in STEP_CHANGES.items():
        path.write_bytes(with_steps(content, change))
        with pytest.raises(ValueError, match="its steps are wrong") as caught:
            Predictor(path)
        assert str(caught.value).endswith("model.kq'"), name


def test_all_unsupported_layers_are_named():
    model = keras.Sequential(
        [
            layers.InputLayer((6, 4)),
            layers.LSTM(3, name="memory"),
            kq.layers.BinaryDense(3, activation="elu", name="other"),
            layers.Dense(3, name="fine"),
        ]
    )
    with pytest.raises(ValueError) as error:
        Predictor(model)
    message = str(error.value)
    assert "`memory` (LSTM)" in message
    assert "`other` (BinaryDense: its activation is elu)" in message
    assert "fine" not in message
    assert "Received: " in message


class Doubled(layers.Dense):
    def call(self, inputs):
        return 2 * super().call(inputs)


@pytest.mark.parametrize(
    "layer, reason",
    [
        (Doubled(3), "Doubled"),
        (layers.ReLU(max_value=6.0), "`max_value`"),
        (layers.Lambda(lambda x: x), "Lambda"),
        (kq.layers.BinaryEinsumDense("ab,bc->ac", 3), "BinaryEinsumDense"),
        (layers.Conv2D(4, 2, groups=2), "`groups` is 2"),
        (layers.BatchNormalization(axis=1), "`axis` is 1"),
        (layers.Softmax(axis=1), "`axis` is 1"),
        (
            kq.layers.BinaryConv2D(4, 2, data_format="channels_first"),
            "'channels_first'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_layer(layer, reason):
    is_image = reason.startswith(("`groups`", "`axis`", "'channels"))
    shape = (4, 4, 4) if is_image else (6,)
    model = keras.Sequential([layers.InputLayer(shape), layer])
    with pytest.raises(ValueError, match=f"{reason}.*Received: "):
        Predictor(model)


def test_only_chains_are_supported():
    x = keras.Input((6,))
    y = layers.Dense(6, name="a")(x)
    branches = keras.Model(x, layers.Add()([y, layers.Dense(6)(y)]))
    twice = keras.Model(x, [y, layers.Dense(2)(y)])
    early = keras.Model(x, layers.Concatenate()([x, y]))
    for model in (branches, twice, early):
        with pytest.raises(
            ValueError, match="only supports chains.*Received: "
        ):
            Predictor(model)
    pair = keras.Model([x, keras.Input((6,))], y)
    with pytest.raises(ValueError, match="one input.*Received: "):
        Predictor(pair)


def test_models_that_are_not_ready():
    model = small(kq.layers.BinaryDense(2, bits=2))
    model.layers[-1].kernel.assign(np.full((6, 2), np.nan))
    with pytest.raises(ValueError, match="its kernel contains NaN"):
        Predictor(model)
    with pytest.raises(ValueError, match="has been built.*Received: "):
        Predictor(keras.Sequential([kq.layers.BinaryDense(2)]))
    with pytest.raises(ValueError, match="Received: path_or_model=3"):
        Predictor(3)

    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="Received: a model of type Own"):
        Predictor(Own())


def test_wrong_arguments(monkeypatch):
    model = binary_model()
    for threads in (0, -1, 1.5, True, "2", None):
        with pytest.raises(ValueError, match="`threads` .* Received: threads="):
            Predictor(model, threads)
    with pytest.raises(ValueError, match="Received: kernels='gpu'"):
        Predictor(model, kernels="gpu")
    assert Predictor(model).kernels == products.available()[0]
    monkeypatch.setattr(products, "_kernels", None)
    message = "`kernels` .*no C kernels.* pip .*Received: kernels='c"
    with pytest.raises(ValueError, match=message):
        Predictor(model, kernels="c")


@pytest.mark.once
@pytest.mark.parametrize("is_clone", [True, False])
def test_missing_c_kernels_warn(is_clone, tmp_path, monkeypatch):
    model, real = binary_model(), small(layers.Dense(3))
    inside = tmp_path / "keras_qpsbgd" / "inference" / "predictor.py"
    monkeypatch.setattr(predictor, "__file__", str(inside))
    if is_clone:
        (tmp_path / "setup.py").touch()
    monkeypatch.setattr(products, "_kernels", None)
    command = f"pip install -e {tmp_path}" if is_clone else "--force-reinstall"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictor(model, kernels="numpy")
        Predictor(real)  # its products are those of NumPy anyway
    with pytest.warns(UserWarning, match=re.escape(command)) as found:
        assert Predictor(model).kernels == "numpy"
    assert found[0].filename == __file__


def test_wrong_inputs():
    predictor = Predictor(binary_model())
    for x in (
        np.zeros((2, 5)),
        np.zeros(6),
        np.zeros((2, 6, 1)),
        np.float32(1),
        np.zeros((2, 6), complex),
        np.array([["a"] * 6]),
        np.array([[None] * 6]),
    ):
        with pytest.raises(ValueError, match="`x` must .* Received: "):
            predictor.predict(x)


@pytest.mark.once
def test_numpy_1_counts_bits_the_same_way(monkeypatch):
    model = binary_model()
    x = np.random.default_rng(0).normal(size=(5, 6))
    expected = Predictor(model, kernels="numpy")(x)
    monkeypatch.delattr(np, "bitwise_count")
    found = Predictor(model, kernels="numpy")(x)
    np.testing.assert_array_equal(found, expected)
