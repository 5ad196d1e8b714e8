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


def build_wheel(folder):
    """Builds a wheel from a copy without files of an earlier build."""
    clone = folder / "clone"
    earlier = (".*", "build", "results", "*.egg-info", "*.so", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*earlier))
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
        + ["--wheel-dir", str(folder), str(clone)],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("keras_qpsbgd-*.whl")
    return zipfile.ZipFile(wheel)


@pytest.mark.slow
def test_wheel_and_numpy_in_an_empty_folder(files, tmp_path):
    """As on a small device: the wheel without its dependencies, and NumPy."""
    folder, expected = files
    wheel = build_wheel(tmp_path)
    # The wheel contains the package and nothing else.
    names = [n for n in wheel.namelist() if ".dist-info/" not in n]
    sources = (ROOT / "keras_qpsbgd").rglob("*.py")
    wanted = {path.relative_to(ROOT).as_posix() for path in sources}
    # Kernels are compiled where there is a compiler, see setup.py.
    kernels = [n for n in names if "/inference/_kernels." in n]
    assert set(names) - set(kernels) == wanted | {"keras_qpsbgd/py.typed"}
    assert len(kernels) <= 1
    assert any(n.endswith("licenses/LICENSE") for n in wheel.namelist())
    target = tmp_path / "packages"
    wheel.extractall(target)
    packages = pathlib.Path(sysconfig.get_paths()["platlib"])
    for found in packages.glob("numpy*"):
        (target / found.name).symlink_to(found)
    # -S leaves out the packages of this environment.
    found = run([sys.executable, "-S"], folder, [target])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_kernels_for_compilers_without_vector_types(tmp_path, monkeypatch):
    """What Microsoft's compiler gets, compiled by the one that is here."""
    monkeypatch.setenv("CFLAGS", "-DPORTABLE")
    wheel = build_wheel(tmp_path)
    if not any("/inference/_kernels." in n for n in wheel.namelist()):
        pytest.skip("no C compiler")
    wheel.extractall(tmp_path / "packages")
    script = ROOT / "tests" / "helpers" / "installed_kernels.py"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}
    subprocess.run(
        [sys.executable, str(script)], check=True, env=environment, cwd=tmp_path
    )
