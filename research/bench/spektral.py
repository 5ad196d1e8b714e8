r"""How much of Spektral works with and without `enable_keras3`.

This module is a plugin of pytest that enables the fixes before Spektral is
imported. In a clone of Spektral, this command runs its tests with the Keras
version of the environment (`TF_USE_LEGACY_KERAS=1` for legacy Keras), and
without the fixes if `--fixes` is left out. One of the files downloads data:

    PYTHONPATH=PATH_OF_THIS_CLONE python -m pytest -W ignore \
        -p research.bench.spektral --fixes tests \
        --ignore tests/test_datasets.py --continue-on-collection-errors

Two problems in those tests are not caused by Spektral. Keras 3 rejects models
that are called with a mix of NumPy arrays and sparse tensors, and SciPy has
removed `.A`:

    sed -i -E 's/\bmodel\((input_data|\[x, a, e\])\)/model(tensors(\1))/' \
        $(find tests -name '*.py')
    sed -i '1i from research.bench.spektral import tensors' \
        $(grep -rl 'model(tensors' tests)
    sed -i -E 's/([]A-Za-z0-9_])\.A\b/\1.toarray()/g' \
        $(find tests -name '*.py')
"""

import numpy as np
import tensorflow as tf


def pytest_addoption(parser):
    parser.addoption(
        "--fixes", action="store_true", help="call `enable_keras3` first"
    )


def pytest_configure(config):
    if config.getoption("--fixes"):
        from keras_qpsbgd.spektral import enable_keras3

        enable_keras3()


def tensors(data):
    """Converts the arrays in a list of inputs."""
    return [
        tf.convert_to_tensor(part) if isinstance(part, np.ndarray) else part
        for part in data
    ]
