"""`export`: writes a saved model in a format for deployment."""

import pathlib
import warnings

import numpy as np
from tensorflow import keras

from keras_qpsbgd import export
from keras_qpsbgd._messages import reason
from keras_qpsbgd.cli import console
from keras_qpsbgd.cli.options import SUFFIXES
from keras_qpsbgd.export import container

# The first bytes of .keras files, which are zip files, and of HDF5 files.
KERAS_MAGIC = (b"PK\x03\x04", b"\x89HDF")
WRITERS = {
    "packed": export.packed,
    "onnx": export.onnx,
    "litert": export.litert,
    "savedmodel": export.saved_model,
}


def run(arguments):
    """Runs the command."""
    path = arguments.model
    try:
        model = _load(path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        return console.fail(
            "`MODEL` must be a saved Keras model (.keras or HDF5) or a packed "
            f"file. {path} cannot be loaded: {_reason(error)}"
        )
    out = pathlib.Path(
        arguments.output or path.with_suffix(SUFFIXES[arguments.to])
    )
    if out.exists() and out.resolve() == path.resolve():
        return console.fail(
            f"The output would replace MODEL ({path}). Choose another path "
            "with `--output`."
        )
    try:
        with warnings.catch_warnings():
            # Keras uses a deprecated NumPy name when it writes ONNX files.
            warnings.filterwarnings("ignore", ".*np.object", FutureWarning)
            WRITERS[arguments.to](model, out)
    except (ValueError, ImportError) as error:
        return console.fail(f"Nothing was written. {error}")
    except OSError as error:
        return console.fail(
            f"Nothing was written to {out} ({error.strerror or error})."
        )
    size = _size(out)
    floats = max(1, sum(4 * int(np.prod(each.shape)) for each in model.weights))
    print(
        f"Written to {out}: {size / 1000:,.1f} kB, {size / floats:.1%} of the "
        "weights as float32"
    )
    return 0


def _reason(error):
    """Returns why a file cannot be loaded, without repeating the path."""
    if isinstance(error.__cause__, container.InvalidFile):
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return reason(error)


def _load(path):
    with open(path, "rb") as file:
        start = file.read(8)
    if start == container.MAGIC:
        return export.load_packed(path)
    if not start.startswith(KERAS_MAGIC):
        raise ValueError("it is another kind of file")
    return keras.models.load_model(path, compile=False)


def _size(path):
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*"))
    return path.stat().st_size
