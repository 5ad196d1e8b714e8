"""Two logical CPUs for the replica tests, and the second run for legacy Keras.

The environment variable that chooses legacy Keras is read when TensorFlow is
imported, so that half of the suite runs in a child process, for which
`test_legacy_keras.py` waits. With `-n 2` (pytest-xdist) the child keeps one of
the two workers waiting and its core busy; without, it is started first, so that
it uses the second core.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Embeddings are found anew, once for all tests, and not kept.
    os.environ["KERAS_QPSBGD_CACHE"] = tempfile.mkdtemp()

import pytest
import tensorflow as tf

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
WORKER = "PYTEST_XDIST_WORKER" in os.environ
ROOT = pathlib.Path(__file__).parent.parent
LONG_FILES = (
    "test_backends",
    "test_calls",
    "test_distributed",
    "test_dwave",
    "test_equalities",
    "test_experiments",
    "test_fuzzed_files",
    "test_graph_examples",
    "test_graph_models",
    "test_kills",
    "test_loops",
    "test_misuse",
    "test_optimizer",
    "test_origins",
    "test_project",
    "test_properties",
    "test_saving",
)

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


def pytest_addoption(parser):
    parser.addoption(
        "--slow", action="store_true", help="run the long versions, too"
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "once: needs no second run in legacy Keras"
    )
    config.addinivalue_line("markers", "slow: long versions, run with --slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files stay together, as their tests share what is compiled."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # the order is ours, see below
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="needs --slow"))
    if LEGACY:
        once = [item for item in items if item.get_closest_marker("once")]
        config.hook.pytest_deselected(items=once)
        items[:] = [item for item in items if item not in once]
        return
    # The child takes long: a worker starts with it, one process ends with it.
    # Of the other files the long ones come first, so that both workers end at
    # about the same time.
    items.sort(
        key=lambda item: (
            ("test_legacy_keras" in item.nodeid) ^ WORKER,
            item.path.stem not in LONG_FILES,
        )
    )


@pytest.fixture(scope="session")
def legacy_run(pytestconfig):
    """The suite under legacy Keras, running in a child process."""
    return _legacy or _start_legacy(pytestconfig)


_legacy = None


def _start_legacy(config):
    global _legacy
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests",
        "-p",
        "no:cacheprovider",
    ]
    if config.getoption("--slow"):
        command.append("--slow")
    _legacy = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return _legacy


def pytest_collection_finish(session):
    wanted = any("test_legacy_keras" in item.nodeid for item in session.items)
    if LEGACY or WORKER or not wanted or session.config.option.collectonly:
        return
    _start_legacy(session.config)


def pytest_sessionfinish(session):
    if _legacy is not None and _legacy.poll() is None:
        _legacy.kill()
    if not WORKER:
        shutil.rmtree(os.environ["KERAS_QPSBGD_CACHE"], ignore_errors=True)


@pytest.fixture(scope="session")
def mirrored():
    """Two replicas, on the two logical CPUs.

    One strategy for all tests of a process: TensorFlow numbers the collective
    operations of every strategy from the same start, and a second strategy
    fails ("Shape mismatch in the collective instance 100") where its first
    gradients have another shape than those of the first one had.
    """
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    assert strategy.num_replicas_in_sync == 2
    return strategy


@pytest.fixture(autouse=True)
def same_start():
    """Every test starts with the same random state."""
    from tensorflow import keras

    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def clean_session():
    """Every file starts with an empty session; emptying it takes 0.2 s."""
    from tensorflow import keras

    yield
    keras.backend.clear_session()
