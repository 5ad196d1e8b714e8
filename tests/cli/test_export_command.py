"""The command `export`."""

import exporting
import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd import cli

FORMATS = ["packed", "litert", "savedmodel"]
if _keras.KERAS_3:
    FORMATS.append("onnx")


@pytest.fixture
def saved(tmp_path):
    model = keras.Sequential(
        [
            keras.layers.InputLayer((100,)),
            kq.layers.BinaryDense(80, activation="relu"),
            kq.layers.BinaryDense(3),
        ]
    )
    exporting.randomize(model)
    path = tmp_path / "model.keras"
    model.save(path)
    return model, path


@pytest.mark.parametrize("target", FORMATS)
def test_formats_and_sizes(saved, target, tmp_path, capsys):
    if target == "onnx":
        pytest.importorskip("tf2onnx")
    model, path = saved
    out = tmp_path / f"out.{target}"
    command = ["export", str(path), "--to", target, "--output", str(out)]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert f"Written to {out}" in printed
    floats = 4 * model.count_params()
    if target == "savedmodel":
        inputs = exporting.batch(model)
        loaded = tf.saved_model.load(str(out))
        np.testing.assert_allclose(
            loaded.serve(inputs), model(inputs), rtol=1e-5, atol=1e-5
        )
    else:
        share = out.stat().st_size / floats
        assert share < 0.5
        assert f"{share:.1%}" in printed
        assert f"{out.stat().st_size / 1000:,.1f} kB" in printed


def test_packed_file_as_source_and_default_names(saved, capsys):
    model, path = saved
    assert cli.main(["export", str(path), "--to", "packed"]) == 0
    packed = path.with_suffix(".kq")
    inputs = exporting.batch(model)
    np.testing.assert_array_equal(
        kq.export.load_packed(packed)(inputs), model(inputs)
    )
    assert cli.main(["export", str(packed), "--to", "litert"]) == 0
    assert path.with_suffix(".tflite").exists()
    assert cli.main(["export", str(packed), "--to", "packed"]) == 1
    assert capsys.readouterr().err == (
        f"The output would replace MODEL ({packed}). Choose another path with "
        "`--output`.\n"
    )


def test_unsupported_layers_are_named_and_nothing_is_written(tmp_path, capsys):
    x, a = keras.Input((6, 4)), keras.Input((6, 6))
    layer = kq.layers.BinaryGraphConv(3, name="conv")
    model = keras.Model([x, a], layer([keras.layers.Masking()(x), a]))
    path = tmp_path / "model.keras"
    model.save(path)
    out = tmp_path / "out"
    out.write_text("before")
    for target in FORMATS[1:]:
        command = ["export", str(path), "--to", target, "--output", str(out)]
        assert cli.main(command) == 1
        error = capsys.readouterr().err
        assert error.startswith("Nothing was written.")
        assert "conv (BinaryGraphConv: node mask)" in error
    assert out.read_text() == "before"
    assert {each.name for each in tmp_path.iterdir()} == {"model.keras", "out"}


def test_wrong_files(tmp_path, capsys):
    wrong = tmp_path / "wrong.keras"
    wrong.write_bytes(b"no model")
    packed = tmp_path / "wrong.kq"
    packed.write_bytes(b"\x93KQPACK\n" + b"\0" * 100)
    for path in (wrong, packed, tmp_path):
        assert cli.main(["export", str(path), "--to", "litert"]) == 1
        error = capsys.readouterr().err
        assert "saved Keras model (.keras or HDF5) or a packed file" in error
        assert str(path) in error and "Received" not in error
    # The file is checked before its name.
    assert cli.main(["export", str(packed), "--to", "packed"]) == 1
    assert "cannot be loaded: its checksum" in capsys.readouterr().err


def test_wrong_outputs(saved, tmp_path, capsys):
    _, path = saved
    command = ["export", str(path), "--to", "packed", "--output"]
    assert cli.main([*command, str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Nothing was written.") and "is a folder" in error
    assert [each.name for each in tmp_path.iterdir()] == ["model.keras"]


def test_home_folder(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    command = "export ~/model.keras --to packed --output ~/a/b.kq"
    for _ in range(2):  # an existing file is replaced
        assert cli.main(command.split()) == 0
    assert (tmp_path / "a" / "b.kq").is_file()
