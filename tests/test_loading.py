"""What `import keras_qpsbgd` loads, and what Keras knows afterwards."""

import os
import subprocess
import sys

import pytest

from keras_qpsbgd import _loading

pytestmark = pytest.mark.once


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "files, given, level",
    [((), None, "3"), ((os.sep,), None, "1"), ((), "0", "0")],
)
def test_log_level_of_tensorflow(files, given, level, monkeypatch):
    """It is set while TensorFlow is imported, unless the user has set it."""
    monkeypatch.setattr(_loading, "GPU_FILES", files)
    monkeypatch.delenv(_loading.LOG_LEVEL, raising=False)
    if given is not None:
        monkeypatch.setenv(_loading.LOG_LEVEL, given)
    before = dict(os.environ)
    found = []

    class Loader:
        def exec_module(self, module):
            found.append(os.environ[_loading.LOG_LEVEL])

    _loading._AfterKeras().load(Loader(), None)
    assert found == [level]
    assert dict(os.environ) == before


FIRST_STEP = """
import keras_qpsbgd as kq
from tensorflow import keras
import numpy as np, os, tempfile

model = keras.Sequential([keras.Input((20,)), kq.layers.BinaryDense(2)])
model.compile(kq.QPSBGD(), "mse")
model.fit(np.ones((4, 20)), np.ones((4, 2)), verbose=0)
with tempfile.TemporaryDirectory() as folder:
    kq.export.saved_model(model, os.path.join(folder, "model"))
    kq.export.litert(model, os.path.join(folder, "model.tflite"))
assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
"""


@pytest.mark.slow
@pytest.mark.skipif(
    any(map(os.path.exists, _loading.GPU_FILES)),
    reason="TensorFlow may warn about the GPU",
)
def test_tensorflow_logs_nothing():
    environment = dict(os.environ)
    environment.pop(_loading.LOG_LEVEL, None)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP],
        capture_output=True,
        text=True,
        env=environment,
    )
    # TensorFlow logs these lines before it reads its log level.
    unavoidable = (
        "absl::InitializeLog",
        "Could not find cuda drivers",
        "oneDNN custom operations are on",
    )
    logged = [
        line
        for line in done.stderr.splitlines()
        if not any(text in line for text in unavoidable)
    ]
    assert (done.returncode, done.stdout, logged) == (0, "", [])


REGISTERED = """
import sys
for name in ("keras_qpsbgd>BinaryDense", "keras_qpsbgd>QPSBGD"):
    print(keras.utils.get_registered_object(name) is not None)
print("keras_qpsbgd.export" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import keras_qpsbgd; from tensorflow import keras",
        pytest.param(
            "from tensorflow import keras; import keras_qpsbgd",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import keras_qpsbgd; import keras", marks=pytest.mark.slow
        ),
        # A module of the package imports TensorFlow.
        pytest.param(
            "from keras_qpsbgd.layers import BinaryDense\n"
            "from tensorflow import keras",
            marks=pytest.mark.slow,
        ),
        # Looking for TensorFlow does not import it.
        pytest.param(
            "import importlib.util; import keras_qpsbgd\n"
            "importlib.util.find_spec('tensorflow')\n"
            "from tensorflow import keras",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_classes_are_registered_after_both_imports(imports):
    assert run(imports + REGISTERED) == ["True", "True", "False"]


def test_import_loads_nothing_else():
    code = (
        "import keras_qpsbgd, sys; print('tensorflow' in sys.modules, "
        "'numpy' in sys.modules, 'compare' in dir(keras_qpsbgd))"
    )
    assert run(code) == ["False", "False", "True"]


def test_every_public_name_can_be_loaded():
    import keras_qpsbgd

    for name in keras_qpsbgd.__all__:
        assert getattr(keras_qpsbgd, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = keras_qpsbgd.nothing


def test_removed_names_name_their_replacement():
    import numpy as np

    import keras_qpsbgd

    with pytest.raises(ImportError, match=r"Use `keras\.datasets`"):
        from keras_qpsbgd import datasets  # noqa: F401
    with pytest.raises(ImportError, match="Pass the gradients as they are"):
        _ = keras_qpsbgd.with_rows
    qubo = keras_qpsbgd.Qubo(np.eye(2), np.ones((2, 1)))
    with pytest.raises(AttributeError, match=r"Use `Qubo\.couplings`"):
        _ = qubo.normalized_rows
