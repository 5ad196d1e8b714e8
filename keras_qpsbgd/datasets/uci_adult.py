"""UCI Adult: 123 binary features, and incomes above or below 50,000 dollars.

The files are `a1a` and `a1a.t` from LIBSVM. Each line is one row: the class,
followed by the numbers of the features that are 1, as in `-1 3:1 11:1 14:1`.
"""

import os

import numpy as np

from keras_qpsbgd.datasets import files

NUM_FEATURES = 123


def adult(
    data_dir: str | os.PathLike | None = None, download: bool = False
) -> tuple:
    """Loads UCI Adult, with 1,605 training rows and 30,956 test rows.

    Args:
        data_dir: Path of the folder that contains `adult/a1a` and
            `adult/a1a.t`, or the same files compressed as `.gz` (optional).
            Defaults to the environment variable `KERAS_QPSBGD_DATA`, or the
            user cache if the variable is not set.
        download: Boolean. Whether to download missing files. Defaults to
            `False`.

    Returns:
        `(x_train, y_train), (x_test, y_test)`. `x_train` and `x_test` are
        float32 arrays of shape `(rows, 123)` with entries 0 and 1. `y_train`
        and `y_test` are int32 arrays, 1 for people who earn more than 50,000
        dollars (about a quarter) and 0 for the others.

    Raises:
        MissingFile: If a file is missing and `download` is `False`.
        DamagedFile: If a file differs from the published one.
        DownloadFailed: If a download fails.

    Example:
        ```python
        (x_train, y_train), (x_test, y_test) = keras_qpsbgd.datasets.adult()
        x_train.shape, x_test.shape  # ((1605, 123), (30956, 123))
        ```
    """
    return tuple(
        _rows(name, data_dir, download) for name in ("adult/a1a", "adult/a1a.t")
    )


def _rows(place, data_dir, download):
    path = files.find(place, [f"{place}.gz"], data_dir, download)
    # The checksum was verified, so the lines are not checked again.
    lines = files.read(path, place).decode("ascii").splitlines()
    x = np.zeros((len(lines), NUM_FEATURES), "float32")
    y = np.zeros(len(lines), "int32")
    for row, line in enumerate(lines):
        label, *entries = line.split()
        y[row] = int(label) > 0
        # Features are numbered from 1.
        x[row, [int(entry.split(":")[0]) - 1 for entry in entries]] = 1.0
    return x, y
