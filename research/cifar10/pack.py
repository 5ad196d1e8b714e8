"""Packs CIFAR-10 into small files.

    python -m research.cifar10.pack FOLDER [--file CIFAR10_NPZ]

The images have 6 bits per channel, so that 40,000 images take only 43 MB.
`FOLDER` receives `images.xz` and `labels.npz`. Training and validation images
are different images of the training set of CIFAR-10, test images are from its
test set. Packing needs NumPy, and TensorFlow if no file is given. It takes a
few minutes.
"""

import argparse
import lzma
import pathlib
import sys
from typing import NamedTuple

import numpy as np

IMAGE = (32, 32, 3)
DROPPED_BITS = 2
WIDTH = 80


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
        description="Pack CIFAR-10 into small files.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=WIDTH),
    )
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument(
        "--file",
        type=pathlib.Path,
        metavar="CIFAR10_NPZ",
        help="file with the arrays x_train, y_train, x_test and y_test "
        "(default: Keras downloads the images)",
    )
    for name, count in (("train", 30000), ("validation", 5000), ("test", 5000)):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=count,
            metavar="IMAGES",
            help=f"number of images for {name} (default: %(default)s)",
        )
    arguments = parser.parse_args(arguments)
    counts = arguments.train, arguments.validation, arguments.test
    data = _read(arguments.file)
    train, test = len(data[1]), len(data[3])
    if min(counts) < 1 or sum(counts[:2]) > train or counts[2] > test:
        parser.error(
            f"there are {train:,} images for training and validation, and "
            f"{test:,} for testing. Received: {counts}"
        )
    pack(arguments.folder, data, *counts)
    for path in _paths(arguments.folder):
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


def pack(folder, data, train, validation, test):
    """Writes the files.

    Args:
        folder: `pathlib.Path`.
        data: Training images, training labels, test images and test labels.
        train: Integer. Number of training images.
        validation: Integer. Number of validation images, which are other
            images of the training set.
        test: Integer. Number of test images, the first of the test set.
    """
    x_train, y_train, x_test, y_test = data
    chosen = np.random.default_rng(0).permutation(len(y_train))
    chosen = chosen[: train + validation]
    images = np.concatenate([x_train[chosen], x_test[:test]])
    labels = np.concatenate([y_train[chosen].ravel(), y_test[:test].ravel()])
    differences = encode(images >> DROPPED_BITS)
    folder.mkdir(parents=True, exist_ok=True)
    image_path, label_path = _paths(folder)
    image_path.write_bytes(lzma.compress(differences.tobytes()))
    counts = np.array([train, validation, test])
    np.savez(label_path, labels=labels.astype(np.uint8), counts=counts)


def load(folder):
    """Reads the files.

    Args:
        folder: `pathlib.Path`.

    Returns:
        A dictionary with `Images` for `"train"`, `"validation"` and `"test"`.
    """
    image_path, label_path = _paths(folder)
    with np.load(label_path) as file:
        labels, counts = file["labels"].astype(np.int32), file["counts"]
    content = lzma.decompress(image_path.read_bytes())
    height, width, channels = IMAGE
    differences = np.frombuffer(content, np.uint8)
    images = decode(differences.reshape(channels, -1, height, width))
    ends = np.cumsum(counts)[:-1]
    parts = zip(np.split(images, ends), np.split(labels, ends))
    return dict(
        zip(("train", "validation", "test"), (Images(*p) for p in parts))
    )


def _paths(folder):
    return folder / "images.xz", folder / "labels.npz"


def encode(images):
    """Returns the differences of the pixels from their predictions.

    Red and blue are relative to green. A pixel is predicted from its neighbors
    above and on the left, by the median edge detector of JPEG-LS.

    Args:
        images: Array of uint8 with shape (images, 32, 32, 3) and values up to
            63.

    Returns:
        An array of uint8 with shape (3, images, 32, 32), modulo 256.
    """
    pixels = images.astype(np.int16).transpose(3, 0, 1, 2).copy()
    pixels[0] -= pixels[1]
    pixels[2] -= pixels[1]
    differences = pixels.copy()
    left, above = pixels[..., 1:, :-1], pixels[..., :-1, 1:]
    corner = pixels[..., :-1, :-1]
    differences[..., 1:, 1:] -= _predicted(left, above, corner)
    differences[..., 1:, 0] -= pixels[..., :-1, 0]
    differences[..., 0, 1:] -= pixels[..., 0, :-1]
    return differences.astype(np.uint8)


def decode(differences):
    """Returns the images. The inverse of `encode`."""
    # The same pixel of all images is contiguous, because pixels take turns.
    differences = differences.view(np.int8).transpose(2, 3, 0, 1)
    pixels = differences.astype(np.int16, order="C")
    pixels[:, 0] = np.cumsum(pixels[:, 0], axis=0)
    pixels[0] = np.cumsum(pixels[0], axis=0)
    for row in range(1, len(pixels)):
        for column in range(1, pixels.shape[1]):
            pixels[row, column] += _predicted(
                pixels[row, column - 1],
                pixels[row - 1, column],
                pixels[row - 1, column - 1],
            )
    pixels[:, :, 0] += pixels[:, :, 1]
    pixels[:, :, 2] += pixels[:, :, 1]
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2), np.uint8)


def _predicted(left, above, corner):
    low, high = np.minimum(left, above), np.maximum(left, above)
    return np.clip(left + above - corner, low, high)


if __name__ == "__main__":
    sys.exit(main())
