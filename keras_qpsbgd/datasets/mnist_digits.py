"""MNIST, from Keras's archive or from another one with the same arrays."""

import hashlib
import io
import zipfile
import zlib

import numpy as np

from keras_qpsbgd.datasets import files

KEYS = ("x_train", "y_train", "x_test", "y_test")
# Of the arrays, see `checksum`: archives of the same arrays differ.
SHA256 = "52cd6c10ae77107af32269dd9d10ca19c1b749e83235a0c75e2f0729ebeaf141"


def mnist(data_dir=None, download=False):
    """MNIST as `keras.datasets.mnist.load_data()` returns it.

    Unlike there, the archive may be any that holds the arrays, and a wrong one
    is not deleted.

    Args:
        data_dir: folder with `mnist.npz`. `None` takes the environment
            variable `KERAS_QPSBGD_DATA`, else the user's cache.
        download: whether to fetch the file if it is missing.

    Returns:
        `(x_train, y_train), (x_test, y_test)`, uint8; x are images of shape
        (60000, 28, 28) and (10000, 28, 28) with pixels from 0 to 255, y the
        digits.

    Example:

    >>> (x_train, y_train), (x_test, y_test) = keras_qpsbgd.datasets.mnist()
    >>> x_train.shape
    (60000, 28, 28)
    """
    path = files.find("mnist.npz", (), data_dir, download)
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = [file[key] for key in KEYS]
    except (
        AttributeError,  # a single array, on Python 3.10
        EOFError,
        KeyError,
        NotImplementedError,  # an unknown compression
        RuntimeError,  # encrypted
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise files.DamagedFile(
            f"{path} must be an `.npz` archive of the arrays "
            f"{', '.join(KEYS)}. {files.what_to_do(path)} Received: {error}"
        ) from error
    files.check(path, SHA256, checksum(arrays))
    x_train, y_train, x_test, y_test = arrays
    return (x_train, y_train), (x_test, y_test)


def checksum(arrays):
    """The sha256 of dtypes, shapes and contents."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array))
    return total.hexdigest()
