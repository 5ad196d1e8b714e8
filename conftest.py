"""Configuration and fixtures of all tests: `tests` and `research/tests`.

`python -m pytest -n 2` runs `tests` without those marked `slow` or
`exhaustive`. `-m slow` and `-m exhaustive` run only those. With
`TF_USE_LEGACY_KERAS=1`, which TensorFlow reads on import, the suite uses legacy
Keras, and leaves out the tests marked `once`, which would repeat the same code.
"""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
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
        help="number of examples for the property tests, drawn at random",
    )


def pytest_configure(config):
    for line in (
        "once: independent of the Keras version, not repeated in legacy Keras",
        "slow: a long test, run with `-m slow`",
        "exhaustive: a further case, not part of CI, run with `-m exhaustive`",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config, items):
    if LEGACY:
        left_out, kept = [], []
        for item in items:
            once = item.get_closest_marker("once") is not None
            (left_out if once else kept).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


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
