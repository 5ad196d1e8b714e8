"""MNIST, from Keras's archive or from another one with the same arrays."""

import hashlib
import io
import os
import struct
import tokenize
import zipfile
import zlib

import numpy as np

from keras_qpsbgd.datasets import files

KEYS = ("x_train", "y_train", "x_test", "y_test")
# Of the arrays and their headers; a small archive can hold terabytes.
MOST_BYTES = 2**26
# Of the arrays, see `checksum`: archives of the same arrays differ.
SHA256 = "52cd6c10ae77107af32269dd9d10ca19c1b749e83235a0c75e2f0729ebeaf141"


def mnist(
    data_dir: str | os.PathLike | None = None, download: bool = False
) -> tuple:
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
    content = path.read_bytes()
    try:
        arrays = _arrays(content)
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        OSError,
        RuntimeError,  # encrypted
        TypeError,
        ValueError,
        struct.error,
        tokenize.TokenError,  # from the header of an array
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise files.DamagedFile(
            f"{path} must be an `.npz` archive of the arrays "
            f"{', '.join(KEYS)}. {files.what_to_do(path)} "
            f"Received: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    files.check(path, SHA256, checksum(arrays))
    x_train, y_train, x_test, y_test = arrays
    return (x_train, y_train), (x_test, y_test)


def _arrays(content):
    # NumPy looks for names without an ending, too.
    names = {name for key in KEYS for name in (key, f"{key}.npy")}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [m for m in archive.infolist() if m.filename in names]
    size = sum(member.file_size for member in members)
    if size > MOST_BYTES:
        raise ValueError(f"{size} bytes uncompressed")
    kinds = {member.compress_type for member in members}
    # What `numpy.savez` and `numpy.savez_compressed` write.
    if kinds - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"compressions {sorted(kinds)}")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = [file[key] for key in KEYS]
    for key, array in zip(KEYS, arrays):
        if not isinstance(array, np.ndarray) or array.dtype != "uint8":
            raise TypeError(f"{key} of {getattr(array, 'dtype', 'no dtype')}")
    return arrays


def checksum(arrays):
    """The sha256 of dtypes, shapes and contents."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array))
    return total.hexdigest()
