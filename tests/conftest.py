"""Two logical CPUs for the replica tests, and the second run for legacy Keras.

The environment variable that chooses legacy Keras is read when TensorFlow is
imported, so that half of the suite runs in a child process, started here so
that it uses the second core; `test_legacy_keras.py` waits for it.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Embeddings are found anew, once for all tests, and not kept.
os.environ["KERAS_QPSBGD_CACHE"] = tempfile.mkdtemp()

import pytest
import tensorflow as tf

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
ROOT = pathlib.Path(__file__).parent.parent

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "once: needs no second run in legacy Keras"
    )


def pytest_collection_modifyitems(config, items):
    if LEGACY:
        once = [item for item in items if item.get_closest_marker("once")]
        config.hook.pytest_deselected(items=once)
        items[:] = [item for item in items if item not in once]
        return
    # Wait for the child at the very end.
    items.sort(key=lambda item: "test_legacy_keras" in item.nodeid)


@pytest.fixture(scope="session")
def legacy_run():
    """The suite under legacy Keras, running in a child process."""
    return _legacy


_legacy = None


def pytest_collection_finish(session):
    global _legacy
    wanted = any("test_legacy_keras" in item.nodeid for item in session.items)
    if LEGACY or not wanted or session.config.option.collectonly:
        return
    _legacy = subprocess.Popen(
        [sys.executable, "-m", "pytest", "tests", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pytest_sessionfinish(session):
    shutil.rmtree(os.environ["KERAS_QPSBGD_CACHE"], ignore_errors=True)
    if _legacy is not None and _legacy.poll() is None:
        _legacy.kill()


@pytest.fixture(autouse=True)
def clean_session():
    """Every test starts with the same random state and an empty session."""
    from tensorflow import keras

    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()
