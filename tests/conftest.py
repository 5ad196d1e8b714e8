"""Configuration of the test suite, and fixtures for all tests.

`python -m pytest -n 2` skips the tests marked `slow`, which are longer versions
of others. `-m slow` runs only those. `TF_USE_LEGACY_KERAS=1`, which TensorFlow
reads on import, runs the suite with legacy Keras, except for the tests marked
`once`, which would repeat the same code.
"""

import gc
import os
import pathlib
import shutil
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # An empty cache, so that embeddings are computed once per test run.
    os.environ["KERAS_QPSBGD_CACHE"] = tempfile.mkdtemp()

import pytest
import slow_variants
import tensorflow as tf

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
WORKER = "PYTEST_XDIST_WORKER" in os.environ
TESTS = pathlib.Path(__file__).parent
# The longest files run first, so that both workers finish at about the same
# time. Other files run last.
LONGEST_FIRST = (
    "reliability/test_kills.py",
    "repository/test_docs.py",
    "backends/test_parallel_search.py",
    "optimizers/test_distributed.py",
    "reliability/test_properties.py",
    "reliability/test_misuse.py",
    "repository/test_examples.py",
    "research/test_experiments.py",
    "research/test_quantization.py",
    "optimizers/test_optimizer.py",
    "optimizers/test_saving.py",
    "callbacks/test_qubo_recorder.py",
    "analysis/test_full_gradient.py",
    "callbacks/test_callbacks.py",
    "backends/test_backends.py",
    "spektral/test_graph_models.py",
    "backends/dwave/test_qpu.py",
    "backends/test_fast_paths.py",
    "backends/host/test_faults.py",
    "optimizers/test_precision.py",
    "backends/host/test_parallel.py",
    "backends/dwave/test_cliques.py",
    "optimizers/test_failures.py",
    "layers/test_graph_conv.py",
    "spektral/test_spektral.py",
)

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


# The garbage collector visits all objects, and TensorFlow has a million of
# them. Exclude the imported ones, and collect the others less often.
gc.collect()
gc.freeze()
gc.set_threshold(100_000, 50, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--examples",
        type=int,
        help="number of examples for the slow property tests, drawn at random",
    )


def pytest_configure(config):
    for line in (
        "once: independent of the Keras version, not repeated in legacy Keras",
        "slow: longer version of a test, run with `-m slow`",
    ):
        config.addinivalue_line("markers", line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keeps the tests of a file together, because they share compiled code."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # keep the order set below
    return LoadFileScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects tests
def pytest_collection_modifyitems(config, items):
    if {item.path for item in items} == set(TESTS.rglob("test_*.py")):
        names = [item.nodeid for item in items]
        config.unused_slow_patterns = slow_variants.unused(names)
    for item in items:
        if slow_variants.is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    if LEGACY:
        left_out, kept = [], []
        for item in items:
            once = item.get_closest_marker("once") is not None
            (left_out if once else kept).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}

    def place(item):
        name = item.path.relative_to(TESTS).as_posix()
        return places.get(name, len(places))

    items.sort(key=place)


def pytest_sessionfinish(session):
    if not WORKER:
        shutil.rmtree(os.environ["KERAS_QPSBGD_CACHE"], ignore_errors=True)


@pytest.fixture(scope="session")
def mirrored():
    """A strategy with two replicas, on the two logical CPUs.

    All tests of a process share one strategy. TensorFlow numbers the collective
    operations of every strategy from the same start, so a second strategy fails
    ("Shape mismatch in the collective instance 100") if the shape of its first
    gradients differs from that of the first strategy.
    """
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    assert strategy.num_replicas_in_sync == 2
    return strategy


@pytest.fixture(autouse=True)
def same_start():
    """Starts every test with the same random state."""
    from tensorflow import keras

    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def clean_session():
    """Starts every file with an empty session. Clearing it takes 0.2 s."""
    from tensorflow import keras

    yield
    keras.backend.clear_session()
