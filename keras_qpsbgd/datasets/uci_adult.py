"""UCI Adult as 123 binary features: who earns more than 50,000 dollars?

The files are `a1a` and `a1a.t` of LIBSVM: a row a line, the class and the
numbers of the features that are 1, as in `-1 3:1 11:1 14:1`.
"""

import os

import numpy as np

from keras_qpsbgd.datasets import files

NUM_FEATURES = 123


def adult(
    data_dir: str | os.PathLike | None = None, download: bool = False
) -> tuple:
    """UCI Adult, 1,605 rows to train on and 30,956 to test.

    Args:
        data_dir: folder with `adult/a1a` and `adult/a1a.t`, or the same with
            `.gz`. `None` takes the environment variable `KERAS_QPSBGD_DATA`,
            else the user's cache.
        download: whether to fetch the files if they are missing.

    Returns:
        `(x_train, y_train), (x_test, y_test)`; x are float32 of shape
        (rows, 123) with entries 0 and 1, y are int32, 1 for the quarter that
        earns more.

    Example:

    >>> (x_train, y_train), (x_test, y_test) = keras_qpsbgd.datasets.adult()
    >>> x_train.shape, x_test.shape
    ((1605, 123), (30956, 123))
    """
    return tuple(
        _rows(name, data_dir, download) for name in ("adult/a1a", "adult/a1a.t")
    )


def _rows(place, data_dir, download):
    path = files.find(place, [f"{place}.gz"], data_dir, download)
    # The checksum leaves nothing to check in the lines.
    lines = files.read(path, place).decode("ascii").splitlines()
    x = np.zeros((len(lines), NUM_FEATURES), "float32")
    y = np.zeros(len(lines), "int32")
    for row, line in enumerate(lines):
        label, *entries = line.split()
        y[row] = int(label) > 0
        # Features are counted from 1.
        x[row, [int(entry.split(":")[0]) - 1 for entry in entries]] = 1.0
    return x, y
