"""How the suite runs, and what all its tests share.

`python -m pytest -n 2` leaves out the tests marked `slow`, which are longer
versions of others; `-m slow` runs those alone. TF_USE_LEGACY_KERAS=1, which is
read when TensorFlow is imported, runs all of it with legacy Keras, less the
tests marked `once`, which would do the same again.
"""

import gc
import os
import pathlib
import shutil
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Embeddings are found anew, once for all tests, and not kept.
    os.environ["KERAS_QPSBGD_CACHE"] = tempfile.mkdtemp()

import pytest
import slow_variants
import tensorflow as tf

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
WORKER = "PYTEST_XDIST_WORKER" in os.environ
TESTS = pathlib.Path(__file__).parent
# The longest first, so that both workers end at about the same time. Files that
# are missing here come last.
LONGEST_FIRST = (
    "recording/test_equalities.py",
    "reliability/test_kills.py",
    "recording/test_loops.py",
    "recording/test_origins.py",
    "reliability/test_properties.py",
    "reliability/test_misuse.py",
    "repository/test_examples.py",
    "research/test_experiments.py",
    "optimizers/test_optimizer.py",
    "optimizers/test_saving.py",
    "recording/test_replicas.py",
    "backends/test_backends.py",
    "spektral/test_graph_models.py",
    "backends/dwave/test_qpu.py",
    "backends/test_fast_paths.py",
    "backends/host/test_faults.py",
    "optimizers/test_precision.py",
    "backends/host/test_parallel.py",
    "backends/dwave/test_embedding.py",
    "recording/test_rounding_noise.py",
    "optimizers/test_failures.py",
    "layers/test_graph_conv.py",
    "spektral/test_spektral.py",
)

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


# Python looks for garbage in all objects, and TensorFlow has a million of them:
# what is imported is left out, and the rest looked at less often.
gc.collect()
gc.freeze()
gc.set_threshold(100_000, 50, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--examples",
        type=int,
        help="so many examples of the slow properties, new ones each time",
    )


def pytest_configure(config):
    for line in (
        "once: the same in legacy Keras, where it is not run again",
        "slow: a longer version of a test, run with `-m slow`",
    ):
        config.addinivalue_line("markers", line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files stay together, as their tests share what is compiled."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # the order is ours, see below
    return LoadFileScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config, items):
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
