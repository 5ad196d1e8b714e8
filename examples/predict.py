"""Classify pictures with a packed network, without TensorFlow.

Classify the pictures of digits in `models/pictures`:

    python examples/predict.py

Classify your own pictures, or measure the accuracy on all test images:

    python examples/predict.py models/mnist-relu.kq digit.png
    python examples/predict.py models/mnist-relu.kq --test mnist.npz

The script needs NumPy, and Pillow to read pictures. It works with every network
in `models/`, and with others that take pixels from -1 to 1.
"""

import argparse
import json
import pathlib

import numpy as np

from keras_qpsbgd.inference import Predictor

MODELS = pathlib.Path(__file__).parents[1] / "models"


def read(path, shape):
    """Returns a picture as an array of the given shape, from -1 to 1."""
    from PIL import Image

    height, width, channels = shape
    with Image.open(path) as picture:
        picture = picture.convert("L" if channels == 1 else "RGB")
        pixels = np.asarray(picture.resize((width, height)), "float32")
    return pixels.reshape(shape) / 127.5 - 1


def main():
    parser = argparse.ArgumentParser(
        description="Classify pictures with a packed network.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        type=pathlib.Path,
        default=MODELS / "mnist-relu.kq",
        help="a file of kq.export.packed (default: models/mnist-relu.kq)",
    )
    parser.add_argument(
        "pictures",
        nargs="*",
        type=pathlib.Path,
        help="files of pictures, such as PNG. MNIST's digits are white on "
        "black (default: the test images in models/pictures)",
    )
    parser.add_argument(
        "--test",
        type=pathlib.Path,
        metavar="FILE",
        help="measure the accuracy on the arrays x_test and y_test of this "
        "file. keras.datasets.mnist.load_data() downloads MNIST to "
        "~/.keras/datasets/mnist.npz. For CIFAR-10, store the arrays of "
        "keras.datasets.cifar10.load_data() with numpy.savez",
    )
    arguments = parser.parse_args()
    files = [arguments.model, *arguments.pictures, arguments.test]
    for path in files:
        if path and not path.is_file():
            parser.error(f"there is no such file. Received: {path}")

    predictor = Predictor(arguments.model)
    _, *shape = predictor.input_shape
    if arguments.test:
        with np.load(arguments.test) as file:
            x, y = file["x_test"], file["y_test"].ravel()
        if x[0].size != np.prod(shape):
            parser.error(
                f"{arguments.model} needs images of shape {tuple(shape)}. "
                f"Received: {x.shape[1:]}"
            )
        x = x.reshape(-1, *shape).astype("float32") / 127.5 - 1
        right = (predictor.predict(x).argmax(axis=1) == y).mean()
        print(f"accuracy on {len(y):,} test images: {right:.4f}")
        return

    data, *_ = arguments.model.stem.split("-")
    pictures = arguments.pictures or sorted(
        (MODELS / "pictures").glob(f"{data}-*.png")
    )
    if not pictures:
        parser.error(
            f"there are no pictures for {arguments.model}: pass at least one"
        )
    logits = predictor.predict(
        np.stack([read(path, shape) for path in pictures])
    )
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    # The record of the network has the names of the classes.
    record = arguments.model.with_suffix(".json")
    names = range(logits.shape[1])
    if record.exists():
        names = json.loads(record.read_text())["classes"]
    for path, row in zip(pictures, probabilities):
        best = row.argmax()
        print(f"{path.name}: {names[best]} ({row[best]:.1%})")


if __name__ == "__main__":
    main()
