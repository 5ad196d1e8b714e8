"""A plugin of pytest that enables the fixes before Spektral is imported."""

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
