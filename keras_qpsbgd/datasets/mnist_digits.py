"""MNIST, read from the Keras archive or any archive with the same arrays."""

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
# For the arrays and their headers. Without a limit, a small archive could
# expand to terabytes.
MAX_BYTES = 2**26
# Of the arrays (see `checksum`), because archives of the same arrays differ.
SHA256 = "52cd6c10ae77107af32269dd9d10ca19c1b749e83235a0c75e2f0729ebeaf141"


def mnist(
    data_dir: str | os.PathLike | None = None, download: bool = False
) -> tuple:
    """Loads MNIST as `keras.datasets.mnist.load_data()` does.

    Unlike the Keras loader, it accepts any archive that contains the same
    arrays, and it does not delete an archive with a wrong checksum.

    Args:
        data_dir: Path of the folder that contains `mnist.npz` (optional).
            Defaults to the environment variable `KERAS_QPSBGD_DATA`, or the
            user cache if the variable is not set.
        download: Boolean. Whether to download the file if it is missing.
            Defaults to `False`.

    Returns:
        `(x_train, y_train), (x_test, y_test)` as uint8 arrays. `x_train` and
        `x_test` are images of shape `(60000, 28, 28)` and `(10000, 28, 28)`
        with pixel values from 0 to 255. `y_train` and `y_test` are the digits.

    Raises:
        MissingFile: If the file is missing and `download` is `False`.
        DamagedFile: If the file does not contain the MNIST arrays.
        DownloadFailed: If the download fails.

    Example:
        ```python
        (x_train, y_train), (x_test, y_test) = keras_qpsbgd.datasets.mnist()
        x_train.shape  # (60000, 28, 28)
        ```
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
            f"{path} must be an `.npz` archive with the arrays "
            f"{', '.join(KEYS)}. {files.what_to_do(path)} "
            f"Received: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    files.check(path, SHA256, checksum(arrays))
    x_train, y_train, x_test, y_test = arrays
    return (x_train, y_train), (x_test, y_test)


def _arrays(content):
    # NumPy also accepts member names without the suffix.
    names = {name for key in KEYS for name in (key, f"{key}.npy")}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [m for m in archive.infolist() if m.filename in names]
    size = sum(member.file_size for member in members)
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes uncompressed")
    kinds = {member.compress_type for member in members}
    # The types that `numpy.savez` and `numpy.savez_compressed` write.
    if kinds - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"compression types {sorted(kinds)}")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = [file[key] for key in KEYS]
    for key, array in zip(KEYS, arrays):
        if not isinstance(array, np.ndarray) or array.dtype != "uint8":
            dtype = getattr(array, "dtype", None)
            raise TypeError(f"{key} with dtype {dtype}")
    return arrays


def checksum(arrays):
    """Returns the SHA-256 of the dtypes, shapes and contents of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array))
    return total.hexdigest()
