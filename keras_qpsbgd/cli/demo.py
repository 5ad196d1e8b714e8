"""`demo`: trains a network on handwritten digits with two methods.

- QP-SBGD: `QPSBGD` with the native backend trains the binary kernels, and Adam
  trains batch normalization.
- BinaryConnect: Adam trains everything, with straight-through gradients.

The images are the 1,797 digits of scikit-learn, with 8x8 pixels. The split is
fixed: 1,047 training, 300 validation and 450 test images.
"""

import math
import time
from typing import NamedTuple

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _tables
from keras_qpsbgd import layers
from keras_qpsbgd import optimizers
from keras_qpsbgd.analysis import common
from keras_qpsbgd.cli import console
from keras_qpsbgd.layers import constraints

BATCH = 64
HIDDEN = 64
VALIDATION_IMAGES = 300
TEST_IMAGES = 450
QPSBGD = "QP-SBGD"
BINARY_CONNECT = "BinaryConnect (Adam)"
# Tuned on the validation images with other seeds and the same grid for both
# methods: eight rates from 0.002 to 0.256, each twice the one before.
RATES = {QPSBGD: 0.032, BINARY_CONNECT: 0.128}
# For batch normalization with QP-SBGD. Not tuned.
REAL_RATE = 0.01
INSTALL = 'Install it with `python -m pip install "keras_qpsbgd[demo]"`.'


class Run(NamedTuple):
    """Results of one training run."""

    method: str
    seed: int
    validation_curve: list  # accuracy after each epoch
    test_accuracy: float
    seconds: float  # of training and validation; first run: also compilation


def run(arguments):
    """Runs the command."""
    start = time.perf_counter()
    try:
        digits = load()
    except ImportError:
        return console.fail(
            "The demo uses images from scikit-learn, which is not installed.\n"
            f"{INSTALL}"
        )
    epochs, seeds = arguments.epochs, arguments.seeds
    sizes = ", ".join(f"{len(y)} for {name}" for name, (_, y) in digits.items())
    print(
        f"Images of digits: {sizes}\n"
        f"Network: 64-{HIDDEN}-10, weights of +1 and -1\n"
        f"Training: {epochs} epoch{'s' * (epochs > 1)}, "
        f"{seeds} seed{'s' * (seeds > 1)}\n"
        "The first step of a method compiles it, which takes a few seconds.\n"
    )
    runs = []
    for method in RATES:
        runs += train(method, digits, epochs, seeds)
    print("\n" + table(runs))
    if seeds > 1:
        print("+- is the standard error of the mean over seeds.")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        try:
            plot(runs, arguments.output)
            print(f"\nLearning curves written to {arguments.output}")
        except ImportError:
            print(
                "\nThe learning curves were not plotted, because Matplotlib is "
                f"not installed.\n{INSTALL}"
            )
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def load():
    """Returns pairs of images, scaled to [-1, 1], and classes.

    Raises:
        ImportError: If scikit-learn is not installed.
    """
    from sklearn import datasets
    from sklearn import model_selection

    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 8.0 - 1.0).astype("float32")

    def split(x, y, size):
        return model_selection.train_test_split(
            x, y, test_size=size, stratify=y, random_state=0
        )

    x, x_test, y, y_test = split(x, y, TEST_IMAGES)
    x, x_validation, y, y_validation = split(x, y, VALIDATION_IMAGES)
    return {
        "training": (x, y),
        "validation": (x_validation, y_validation),
        "testing": (x_test, y_test),
    }


def build_model():
    """Builds the network: binary layers with batch normalization."""
    parts = [keras.layers.InputLayer((64,))]
    for units in (HIDDEN, 10):
        parts += [
            layers.BinaryDense(
                units,
                use_bias=False,
                kernel_constraint=constraints.WeightClip(1.0),
            ),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Activation("hard_tanh"),
        ]
    return keras.Sequential(parts[:-1])


def make_optimizer(method, steps):
    """Returns the optimizer of a method, with rates that decay to zero."""

    def cosine(rate):
        return keras.optimizers.schedules.CosineDecay(rate, steps)

    if method == BINARY_CONNECT:
        return keras.optimizers.Adam(cosine(RATES[method]))
    return optimizers.QPSBGD(
        learning_rate=cosine(RATES[method]),
        real_optimizer=keras.optimizers.Adam(cosine(REAL_RATE)),
        seed=0,
    )


def train(method, digits, epochs, seeds):
    """Trains from scratch with each seed.

    Compilation takes longer than training here, so all seeds share it.

    Returns:
        A list of `Run`.
    """
    x, y = digits["training"]
    model = build_model()
    model.compile(
        optimizer=make_optimizer(method, epochs * math.ceil(len(x) / BATCH)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)
    state = [variable.numpy() for variable in model.optimizer.variables]
    runs = []
    for seed in range(seeds):
        keras.utils.set_random_seed(seed)
        model.set_weights(build_model().get_weights())
        for variable, value in zip(model.optimizer.variables, state):
            variable.assign(value)
        name = f"{method}, seed {seed}"
        start = time.perf_counter()
        history = model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=epochs,
            validation_data=digits["validation"],
            validation_batch_size=VALIDATION_IMAGES,
            callbacks=[
                keras.callbacks.LambdaCallback(
                    on_epoch_begin=lambda epoch, _, name=name: (
                        console.show_status(f"{name}: epoch {epoch + 1}")
                    )
                )
            ],
            verbose=0,
        )
        seconds = time.perf_counter() - start
        _, accuracy = model.evaluate(
            *digits["testing"], batch_size=TEST_IMAGES, verbose=0
        )
        print(f"{name}: {accuracy:.1%} of the test images")
        curve = history.history["val_accuracy"]
        runs.append(Run(method, seed, curve, accuracy, seconds))
    return runs


def table(runs):
    """Returns the results as a table."""
    rows = []
    for method in RATES:
        found = [run for run in runs if run.method == method]
        mean, error = _mean_and_error([run.test_accuracy for run in found])
        accuracy = f"{mean:.1f} %"
        if len(found) > 1:
            accuracy = f"{mean:.1f} +- {error:.1f} %"
        seconds = np.mean([run.seconds for run in found])
        rows.append((method, accuracy, f"{seconds:.1f}"))
    head = ("method", "test accuracy", "seconds per run")
    return "\n".join(_tables.table(head, rows, (17, 19)))


def plot(runs, path):
    """Plots validation accuracy by epoch: means with standard error bands.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    axes = common.new_axes(width=6.4)
    for method, color, marker in zip(RATES, common.COLORS, "os"):
        curves = [run.validation_curve for run in runs if run.method == method]
        mean, error = _mean_and_error(curves)
        epochs = np.arange(1, len(mean) + 1)
        style = {"color": color, "marker": marker, "markersize": 4}
        axes.plot(epochs, mean, label=method, **style)
        axes.fill_between(
            epochs, mean - error, mean + error, color=color, alpha=0.2, lw=0
        )
    seeds = len({run.seed for run in runs})
    note = f"\nmean and standard error of {seeds} seeds" if seeds > 1 else ""
    axes.set(
        title=f"Handwritten digits, 64-{HIDDEN}-10 binary network{note}",
        xlabel="epoch",
        ylabel="validation accuracy [%]",
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    axes.figure.savefig(path, dpi=150)


def _mean_and_error(accuracies):
    """Returns mean and standard error over seeds, in percent."""
    values = 100 * np.asarray(accuracies)
    count = len(values)
    error = values.std(axis=0, ddof=min(count - 1, 1)) / math.sqrt(count)
    return values.mean(axis=0), error
