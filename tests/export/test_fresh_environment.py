"""Tests exported models in a new virtual environment without the package."""

import subprocess
import sys
import venv

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq

pytestmark = [pytest.mark.slow, pytest.mark.once]

# Fails if the package can be imported, then runs the model.
SCRIPT = """
import importlib.util
import sys

import numpy as np
import onnxruntime

assert importlib.util.find_spec("keras_qpsbgd") is None
assert importlib.util.find_spec("tensorflow") is None
folder = sys.argv[1]
session = onnxruntime.InferenceSession(folder + "/model.onnx")
x = np.load(folder + "/x.npy")
name = session.get_inputs()[0].name
np.save(folder + "/outputs.npy", session.run(None, {name: x})[0])
"""


def test_onnx_in_a_new_environment(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            kq.layers.BinaryDense(70, activation="binary"),
            keras.layers.BatchNormalization(),
            kq.layers.BinaryDense(5, bits=2),
        ]
    )
    x = np.random.default_rng(0).normal(size=(9, 64)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    kq.export.onnx(model, tmp_path / "model.onnx")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    if sys.platform == "win32":
        python = tmp_path / "env" / "Scripts" / "python.exe"
    install = [python, "-m", "pip", "install", "--quiet", "onnxruntime"]
    installed = subprocess.run(install, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"onnxruntime cannot be installed: {installed.stderr}")
    # Without the variables of this environment, such as PYTHONPATH.
    command = [python, "-I", "-c", SCRIPT, str(tmp_path)]
    subprocess.run(command, check=True, cwd=tmp_path)
    np.testing.assert_allclose(
        np.load(tmp_path / "outputs.npy"),
        model.predict(x, verbose=0),
        rtol=1e-4,
        atol=1e-5,
    )
