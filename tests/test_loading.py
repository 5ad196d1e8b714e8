"""What `import keras_qpsbgd` loads, and what Keras knows afterwards."""

import os
import pathlib
import subprocess
import sys

import pytest

from keras_qpsbgd import _loading

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[1]


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


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


AFTER_IMPORT = """
import importlib.util
import sys
from keras_qpsbgd import _loading

called = []
_loading._register = lambda: called.append(list(sys.modules["keras"].seen))
importlib.util.find_spec("tensorflow")
assert not called and "tensorflow" not in sys.modules
import tensorflow
assert called == [["partly", "loaded"]]
assert not any(type(f) is _loading._AfterKeras for f in sys.meta_path)
"""


def test_classes_are_registered_when_the_first_import_ends(tmp_path):
    """With small modules that import one another as TensorFlow and Keras do."""
    (tmp_path / "tensorflow.py").write_text("import keras\nkeras.end()")
    (tmp_path / "keras.py").write_text(
        "seen = ['partly']\nimport tensorflow\n"
        "def end():\n    seen.append('loaded')"
    )
    paths = [str(tmp_path), str(ROOT)]
    run(AFTER_IMPORT, PYTHONPATH=os.pathsep.join(paths))


REGISTERED = """
import sys
for name in ("keras_qpsbgd>BinaryDense", "keras_qpsbgd>QPSBGD"):
    assert keras.utils.get_registered_object(name) is not None
assert "keras_qpsbgd.export" not in sys.modules
"""
# Looking for TensorFlow does not import it.
FIRST_STEP = f"""
import importlib.util
import keras_qpsbgd as kq
importlib.util.find_spec('tensorflow')
from tensorflow import keras
{REGISTERED}
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
def test_registered_classes_and_no_log(monkeypatch):
    """TensorFlow logs nothing if this package is imported first."""
    monkeypatch.delenv(_loading.LOG_LEVEL, raising=False)
    done = run(FIRST_STEP)
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
    assert (done.stdout, logged) == ("", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import keras_qpsbgd; import keras",
        # A module of the package imports TensorFlow.
        pytest.param(
            "from keras_qpsbgd.layers import BinaryDense\n"
            "from tensorflow import keras",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_classes_are_registered_after_other_imports(imports):
    """All other tests import TensorFlow before the package."""
    run(imports + REGISTERED)


def test_import_loads_nothing_else():
    code = (
        "import keras_qpsbgd, sys; print('tensorflow' in sys.modules, "
        "'numpy' in sys.modules, 'quantize' not in dir(keras_qpsbgd))"
    )
    assert run(code).stdout.split() == ["False"] * 3


def test_every_public_name_can_be_loaded():
    import keras_qpsbgd

    for name in keras_qpsbgd.__all__:
        assert getattr(keras_qpsbgd, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = keras_qpsbgd.nothing
