"""Packs CIFAR-10 into two files.

    python -m research.cifar10.pack FOLDER [--file CIFAR10_NPZ]

`FOLDER` receives `images-0.npz` and `images-1.npz` with 53 MB each. They have
all 60,000 images. Differences of neighbors are stored, which compress better.
Packing needs NumPy, and TensorFlow if no file is given.
"""

import argparse
import bz2
import concurrent.futures
import pathlib
import sys
from typing import NamedTuple

import numpy as np

IMAGE = (32, 32, 3)
FILES = ("images-0.npz", "images-1.npz")
PART = 5_000  # images that are compressed together
VALIDATION = 5_000


class Images(NamedTuple):
    """Images and their labels.

    Attributes:
        x: Array of uint8 with shape (images, 32, 32, 3).
        y: Array of int32 with shape (images,).
    """

    x: np.ndarray
    y: np.ndarray


def main(arguments=None):
    """Packs the images. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.cifar10.pack",
        description="Pack CIFAR-10 into two files.",
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
    for path in pack(arguments.folder, _read(arguments.file)):
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
    """Writes the files and returns their paths.

    Args:
        folder: `pathlib.Path`.
        data: Training images, training labels, test images and test labels.
    """
    x_train, y_train, x_test, y_test = data
    x = np.concatenate([x_train, x_test])
    y = np.concatenate([y_train, y_test]).ravel().astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in FILES]
    for path, rows in zip(paths, np.array_split(np.arange(len(y)), 2)):
        parts = np.array_split(rows, -(-len(rows) // PART))
        arrays = {f"x{i}": _compressed(x[part]) for i, part in enumerate(parts)}
        np.savez(path, y=y[rows], test=rows >= len(y_train), **arrays)
    return paths


def _compressed(x):
    """Compresses the differences of neighboring pixels and of the colors."""
    planes = np.ascontiguousarray(x.transpose(3, 0, 1, 2))
    planes[[0, 2]] -= planes[1]  # modulo 256
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    return np.frombuffer(bz2.compress(planes.tobytes()), np.uint8)


def _images(content):
    """Reverses `_compressed`."""
    planes = np.frombuffer(bz2.decompress(content.tobytes()), np.uint8)
    height, width, colors = IMAGE
    planes = planes.reshape(colors, -1, height, width)
    for axis in (2, 3):
        planes = np.cumsum(planes, axis=axis, dtype=np.uint8)
    planes[[0, 2]] += planes[1]
    return np.ascontiguousarray(planes.transpose(1, 2, 3, 0))


def load(folder, validation):
    """Reads the files.

    Args:
        folder: `pathlib.Path`.
        validation: Integer. Number of training images that are kept for
            validation, always the same ones.

    Returns:
        A dictionary with `Images` for `"train"`, `"validation"` and `"test"`.
    """
    x, y, test = [], [], []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for name in FILES:
            with np.load(folder / name) as file:
                y.append(file["y"])
                test.append(file["test"])
                parts = [key for key in file.files if key.startswith("x")]
                x += pool.map(_images, [file[key] for key in parts])
    x, y, test = map(np.concatenate, (x, y, test))
    known = np.flatnonzero(~test)
    chosen = np.random.default_rng(0).permutation(len(known))
    rows = {
        "train": known[np.sort(chosen[validation:])],
        "validation": known[chosen[:validation]],
        "test": np.flatnonzero(test),
    }
    return {k: Images(x[r], y[r].astype(np.int32)) for k, r in rows.items()}


if __name__ == "__main__":
    sys.exit(main())
