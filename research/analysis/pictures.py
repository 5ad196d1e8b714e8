"""The pictures of docs/examples.md and docs/inside."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from tensorflow import keras

from keras_qpsbgd import analysis
from keras_qpsbgd import backends
from keras_qpsbgd import callbacks
from keras_qpsbgd import cli
from keras_qpsbgd import layers
from keras_qpsbgd.optimizers import QPSBGD
from research.analysis import collect
from research.engine import figures

READS = 200
# Few sweeps, so that not every read is optimal.
ANNEALER = {
    "name": "simulated_annealing",
    "num_reads": READS,
    "num_sweeps": 5,
}
ROOT = pathlib.Path(__file__).parents[2]
COMPARE = "-m research compare examples/compare.py --methods native adam real"
# The pictures that examples write, and their commands.
EXAMPLES = {
    "example-demo": ("digits.png", "-m keras_qpsbgd demo"),
    "example-quantize": ("errors.png", "examples/quantize.py"),
    "example-karate": ("karate.png", "examples/karate.py"),
    "example-compare": ("compared/curves.png", COMPARE),
}


def draw(folder):
    """Draws all pictures.

    Args:
        folder: folder to write to.

    Returns:
        List of paths.

    Raises:
        OSError: If Chromium, which draws the page of a report, is not
            installed.
    """
    run = train()
    pictures = {
        "evolution": evolution(run),
        "reads": reads(run),
        "embedding": embedding(),
    }
    paths = []
    for name, figure in pictures.items():
        paths.append(pathlib.Path(folder, f"analysis-{name}.png"))
        figures.save(figure, paths[-1], dpi=90)
    paths.append(report(pathlib.Path(folder, "report.png")))
    return [*paths, *of_examples(folder)]


def of_examples(folder):
    """Runs the examples that write pictures, and copies the pictures."""
    paths = []
    for name, (picture, command) in EXAMPLES.items():
        paths.append(pathlib.Path(folder, f"{name}.png"))
        words = [
            str(ROOT / word) if word.startswith("examples/") else word
            for word in command.split()
        ]
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(
                [sys.executable, *words],
                cwd=place,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            shutil.copy(pathlib.Path(place, picture), paths[-1])
    return paths


def train(steps=60):
    """Trains a network 16-6-2 on the digits 1 and 7, and keeps its QUBOs."""
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    images, labels = load_digits(return_X_y=True)
    chosen = (labels == 1) | (labels == 7)
    x = PCA(16, random_state=0).fit_transform(images[chosen])
    x, y = x / x.std(), (labels[chosen] == 7).astype("int32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((16,)),
            layers.BinaryDense(6, activation="hard_tanh", name="hidden"),
            layers.BinaryDense(2, name="last"),
        ]
    )
    # A small `kappa`, because the couplings then make the QUBOs harder.
    collect.compiled(model, ANNEALER, 0.02, "averaged", kappa=0.5)
    rows = np.random.default_rng(0).integers(len(x), size=32 * steps)
    return collect.record(model, x[rows], y[rows], batch_size=32)


def evolution(run):
    figure = figures.blank(7.0, 3.8)
    found = analysis.qubo_evolution(run, "hidden")
    analysis.plot_qubo_evolution(found, figure.subplots())
    return figure


def reads(run):
    """Histogram and similarity of the same reads."""
    update, column = last(run)
    figure = figures.blank(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    optimum = backends.get("exact").solve(update.qubo).energies[column]
    # Energies of the reads are float32.
    best = min(optimum, update.sample_energies[:, column].min())
    histogram = analysis.energy_histogram(update, column, best=best)
    analysis.plot_energy_histogram(histogram, left)
    similarity = analysis.sample_similarity(update, 100, column)
    analysis.plot_sample_similarity(similarity, right)
    return figure


def last(run):
    """The last update, and the column with the largest fields."""
    update = run.of_layer("hidden")[-1]
    return update, int(np.abs(update.qubo.fields).sum(axis=0).argmax())


def embedding():
    figure = figures.blank(9.0, 4.4)
    analysis.plot_embedding(analysis.embedding(16), figure.subplots(1, 2))
    return figure


# The page of a report


def report(path, width=1200, height=2140):
    """Draws the page of a recorded run on a mock QPU, with Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise OSError(f"Install Chromium to draw {path}.")
    with tempfile.TemporaryDirectory() as folder:
        recorded = pathlib.Path(folder, "wine.run")
        page = pathlib.Path(folder, "wine.html")
        train_on_wine(recorded)
        cli.main(["report", str(recorded), "--output", str(page)])
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--window-size={width},{height}",
                f"--screenshot={path.resolve()}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )
    return path


def train_on_wine(path, budget_seconds=3.0):
    """Trains 13-8-3 on scikit-learn's wine data, and records the run."""
    from sklearn import datasets
    from sklearn import model_selection
    from sklearn import preprocessing

    keras.utils.set_random_seed(0)
    x, y = datasets.load_wine(return_X_y=True)
    x, x_test, y, y_test = model_selection.train_test_split(
        preprocessing.scale(x), y, test_size=60, stratify=y, random_state=0
    )
    model = keras.Sequential(
        [
            keras.layers.InputLayer((13,)),
            layers.BinaryDense(8, activation="hard_tanh", name="hidden"),
            layers.BinaryDense(3, name="output"),
        ]
    )
    backend = {
        "name": "dwave",
        "mock": True,
        "num_reads": 50,
        "qpu_budget_seconds": budget_seconds,
    }
    model.compile(
        QPSBGD(0.03, backend, on_failure="native", seed=0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        x,
        y,
        batch_size=32,
        epochs=25,
        validation_data=(x_test, y_test),
        callbacks=[
            callbacks.SolverProgress(),
            callbacks.QuboRecorder(path, every=2),
        ],
        verbose=0,
    )
