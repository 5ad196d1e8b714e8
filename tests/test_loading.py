"""What `import keras_qpsbgd` loads, and what Keras knows afterwards."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.once


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
