"""Packs CIFAR-10 into a small file.

    python -m research.cifar10.pack FOLDER [--file CIFAR10_NPZ]

The images have 6 bits per channel, and differences of neighbors are stored,
which compress better: `FOLDER` receives `images.npz` with 45 MB. Training and
validation images are different images of the training set of CIFAR-10, test
images are from its test set. Packing needs NumPy, and TensorFlow if no file is
given.
"""

import argparse
import lzma
import pathlib
import sys
from typing import NamedTuple

import numpy as np

IMAGE = (32, 32, 3)
FILE = "images.npz"
DROPPED_BITS = 2
TRAIN, VALIDATION, TEST = 30_000, 5_000, 5_000


class Images(NamedTuple):
    """Images with 6 bits per channel and their labels.

    Attributes:
        x: Array of uint8 with shape (images, 32, 32, 3) and values up to 63.
        y: Array of int32 with shape (images,).
    """

    x: np.ndarray
    y: np.ndarray


def main(arguments=None):
    """Packs the images. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.cifar10.pack",
        description="Pack CIFAR-10 into a small file.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument(
        "--file",
        type=pathlib.Path,
        metavar="CIFAR10_NPZ",
        help="file with the arrays x_train, y_train, x_test and y_test "
        "(default: Keras downloads the images)",
    )
    arguments = parser.parse_args(arguments)
    path = pack(arguments.folder, _read(arguments.file))
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def _read(path):
    """Returns images and labels for training, then those for testing."""
    if path is None:
        from tensorflow import keras

        train, test = keras.datasets.cifar10.load_data()
        return *train, *test
    with np.load(path) as file:
        return [file[k] for k in ("x_train", "y_train", "x_test", "y_test")]


def pack(folder, data):
    """Writes the file and returns its path.

    Args:
        folder: `pathlib.Path`.
        data: Training images, training labels, test images and test labels.
            Validation images are other images of the training set. Test images
            are the first of the test set.
    """
    x_train, y_train, x_test, y_test = data
    chosen = np.random.default_rng(0).permutation(len(y_train))
    parts = {
        "train": (x_train, y_train, chosen[:TRAIN]),
        "validation": (x_train, y_train, chosen[TRAIN:][:VALIDATION]),
        "test": (x_test, y_test, np.arange(TEST)),
    }
    arrays = {}
    for name, (x, y, rows) in parts.items():
        arrays[f"{name}_x"] = _compressed(x[rows] >> DROPPED_BITS)
        arrays[f"{name}_y"] = y[rows].ravel().astype(np.int32)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    np.savez(path, **arrays)
    return path


def _compressed(x):
    """Compresses the differences of neighboring pixels and of the colors."""
    planes = np.ascontiguousarray(x.transpose(3, 0, 1, 2))
    planes[[0, 2]] -= planes[1]  # modulo 256
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    return np.frombuffer(lzma.compress(planes.tobytes()), np.uint8)


def _images(content):
    """Reverses `_compressed`."""
    planes = np.frombuffer(lzma.decompress(content.tobytes()), np.uint8)
    height, width, colors = IMAGE
    planes = planes.reshape(colors, -1, height, width)
    for axis in (2, 3):
        planes = np.cumsum(planes, axis=axis, dtype=np.uint8)
    planes[[0, 2]] += planes[1]
    return np.ascontiguousarray(planes.transpose(1, 2, 3, 0))


def load(folder):
    """Reads the file.

    Args:
        folder: `pathlib.Path`.

    Returns:
        A dictionary with `Images` for `"train"`, `"validation"` and `"test"`.
    """
    with np.load(folder / FILE) as file:
        return {
            name: Images(_images(file[f"{name}_x"]), file[f"{name}_y"])
            for name in ("train", "validation", "test")
        }


if __name__ == "__main__":
    sys.exit(main())
