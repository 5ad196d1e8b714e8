"""`Predictor` with a packed file needs NumPy alone."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
# Refuses all packages except NumPy and this one, and measures the memory.
SCRIPT = """
import pathlib
import sys

ALLOWED = {"numpy", "keras_qpsbgd", *sys.stdlib_module_names}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocker())
from keras_qpsbgd.inference import Predictor
import numpy as np

folder = sys.argv[1]
predictor = Predictor(folder + "/model.kq")
np.save(folder + "/outputs.npy", predictor.predict(np.load(folder + "/x.npy")))
for wrong in ("unsupported.kq", "model.keras"):
    try:
        Predictor(folder + "/" + wrong)
    except (ValueError, ImportError) as error:
        assert "TensorFlow" in str(error), error
    else:
        raise AssertionError(wrong)
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"tensorflow", "keras", "tf_keras", "dimod", "scipy"}
status = pathlib.Path("/proc/self/status")
if status.exists():
    (peak,) = [
        line for line in status.read_text().splitlines() if "VmHWM" in line
    ]
    assert int(peak.split()[1]) < 100_000, peak
"""


@pytest.fixture
def files(tmp_path):
    """Writes packed files and inputs, and returns the predictions."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            kq.layers.BinaryConv2D(8, 3, padding="same", activation="binary"),
            keras.layers.MaxPooling2D(),
            kq.layers.BinaryConv2D(8, 3, bits=2, output_scale="channel"),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("binary"),
            keras.layers.Flatten(),
            kq.layers.BinaryDense(10, activation="softmax"),
        ]
    )
    x = np.random.default_rng(0).normal(size=(5, 12, 12, 1)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    kq.export.packed(model, tmp_path / "model.kq")
    model.save(tmp_path / "model.keras")
    inputs = keras.Input((4, 6))
    layer = kq.layers.BinaryMultiHeadAttention(2, 3)
    unsupported = keras.Model(inputs, layer(inputs, inputs))
    kq.export.packed(unsupported, tmp_path / "unsupported.kq")
    return tmp_path, kq.inference.Predictor(model)(x)


def run(python, folder, path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [*python, "-c", SCRIPT, str(folder)]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    return np.load(folder / "outputs.npy")


def test_no_other_package_is_imported(files):
    folder, expected = files
    found = run([sys.executable], folder, [ROOT])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_wheel_and_numpy_in_an_empty_folder(files, tmp_path):
    """As on a small device: the wheel without its dependencies, and NumPy."""
    folder, expected = files
    clone = tmp_path / "clone"  # without files of an earlier build
    for name in ("keras_qpsbgd", "setup.py", "setup.cfg", "pyproject.toml"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        clone.mkdir(exist_ok=True)
        copy(source, clone / name)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
        + ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(clone)],
        capture_output=True,
        text=True,
    )
    if built.returncode:
        pytest.skip(f"The wheel cannot be built: {built.stderr}")
    (wheel,) = tmp_path.glob("keras_qpsbgd-*.whl")
    target = tmp_path / "packages"
    zipfile.ZipFile(wheel).extractall(target)
    packages = pathlib.Path(sysconfig.get_paths()["platlib"])
    for found in packages.glob("numpy*"):
        (target / found.name).symlink_to(found)
    # -S leaves out the packages of this environment.
    found = run([sys.executable, "-S"], folder, [target])
    np.testing.assert_array_equal(found, expected)
