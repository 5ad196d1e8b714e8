"""Make the picture of a report page: a small network on a mock QPU.

    python -m research.analysis.report_page --output docs/images

Trains a 13-8-3 network on scikit-learn's wine data with Ocean's mock QPU,
writes the recorded run and its page to a temporary folder, or to the folder of
`--run`, and takes the picture `report.png` with headless Chromium.
"""

import argparse
import pathlib
import shutil
import subprocess
import tempfile

from sklearn import datasets
from sklearn import model_selection
from sklearn import preprocessing
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import cli


def train(path, epochs=25):
    """Trains the network and records every second update."""
    keras.utils.set_random_seed(0)
    x, y = datasets.load_wine(return_X_y=True)
    x, x_test, y, y_test = model_selection.train_test_split(
        preprocessing.scale(x), y, test_size=60, stratify=y, random_state=0
    )
    model = keras.Sequential(
        [
            keras.layers.InputLayer((13,)),
            kq.layers.BinaryDense(8, activation="hard_tanh", name="hidden"),
            kq.layers.BinaryDense(3, name="output"),
        ]
    )
    backend = {"name": "dwave", "mock": True, "num_reads": 50}
    model.compile(
        kq.QPSBGD(0.03, backend, seed=0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        x,
        y,
        batch_size=32,
        epochs=epochs,
        validation_data=(x_test, y_test),
        callbacks=[
            kq.callbacks.SolverProgress(),
            kq.callbacks.QuboRecorder(path, every=2),
        ],
        verbose=0,
    )


def picture(page, path, width=1200, height=1980):
    """Takes a picture of a page with headless Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Install Chromium to take the picture.")
    subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
            f"--screenshot={path}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="docs/images", help="folder")
    parser.add_argument("--run", help="folder for the run and its page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(arguments.run or temporary).resolve()
        train(folder / "wine.run")
        page = folder / "wine.html"
        cli.main(["report", str(folder / "wine.run"), "--output", str(page)])
        out = pathlib.Path(arguments.output).resolve() / "report.png"
        picture(page, out)
        print(f"Picture written to {out}")


if __name__ == "__main__":
    main()
