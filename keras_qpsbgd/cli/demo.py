"""`demo`: trains a network on handwritten digits and compares methods.

One network is trained with three methods:

- QP-SBGD: `QPSBGD` with the native backend trains the binary kernels, and Adam
  trains batch normalization.
- BinaryConnect: Adam trains everything, with straight-through gradients.
- Frozen: the binary kernels stay random, and Adam trains batch normalization.
  Any accuracy above this baseline comes from the trained binary weights.

The images are the 1,797 digits of scikit-learn, with 8x8 pixels. The split is
fixed: 1,047 training, 300 validation and 450 test images.
"""

import dataclasses
import math
import sys
import time

import numpy as np
from tensorflow import keras

from keras_qpsbgd import layers
from keras_qpsbgd import optimizers
from keras_qpsbgd.analysis import common
from keras_qpsbgd.cli.options import EPOCHS
from keras_qpsbgd.layers import constraints
from research.engine import figures
from research.engine.statistics import mean_and_error

BATCH = 64
HIDDEN = 64
NUM_CLASSES = 10
VALIDATION_IMAGES = 300
TEST_IMAGES = 450
LOWEST_SHOWN = 60  # percent, where the axis of the figure starts

# Tuned on the validation images with other seeds and the same grid for all
# methods: eight rates from 0.002 to 0.256, each twice the one before.
QPSBGD_RATE = 0.032
ADAM_RATE = 0.128
FROZEN_RATE = 0.064
# For batch normalization with QP-SBGD. Not tuned.
REAL_RATE = 0.01

QPSBGD = "QP-SBGD"
BINARY_CONNECT = "BinaryConnect (Adam)"
FROZEN = "frozen binary weights"
METHODS = (QPSBGD, BINARY_CONNECT, FROZEN)
RATES = {QPSBGD: QPSBGD_RATE, BINARY_CONNECT: ADAM_RATE, FROZEN: FROZEN_RATE}

COLORS = {
    QPSBGD: figures.REFERENCE_COLOR,
    BINARY_CONNECT: figures.COLORS[0],
    FROZEN: common.GRAY,
}
# For grayscale prints.
MARKERS = {QPSBGD: "o", BINARY_CONNECT: "s", FROZEN: "^"}


def run(arguments):
    """Runs the command."""
    start = time.perf_counter()
    try:
        data = load()
    except ImportError:
        print(
            "The demo uses images from scikit-learn, which is not installed.\n"
            "Install it with\n\n"
            '    python -m pip install "keras_qpsbgd[demo]"',
            file=sys.stderr,
        )
        return 1
    epochs, seeds = arguments.epochs, arguments.seeds
    print(
        "Data: handwritten digits, 10 classes\n"
        f"Images: {len(data.train[0])} for training, "
        f"{len(data.validation[0])} for validation, "
        f"{len(data.test[0])} for testing\n"
        f"Network: 64-{HIDDEN}-10, weights of +1 and -1\n"
        f"Training: {epochs} epoch{'s' * (epochs > 1)}, "
        f"{seeds} seed{'s' * (seeds > 1)}\n"
        "The first step of each method compiles it, which takes a few seconds."
    )
    runs = []
    for method in METHODS:
        training = Training(method, data, epochs)
        for seed in range(seeds):
            print(f"\n{method}, seed {seed}", flush=True)
            runs.append(training.run(seed))
    print("\n" + table(runs))
    if seeds > 1:
        print("+- is the standard error of the mean over seeds.")
    if arguments.output:
        _plot(runs, arguments.output)
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def _plot(runs, path):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plot(runs, path)
    except ImportError:
        print(
            "\nThe learning curves were not plotted, because Matplotlib is not "
            "installed.\nInstall it with "
            '`python -m pip install "keras_qpsbgd[demo]"`.'
        )
    else:
        print(f"\nLearning curves written to {path}")


@dataclasses.dataclass
class Digits:
    """Pairs `(x, y)` of images, scaled to [-1, 1], and classes."""

    train: tuple
    validation: tuple
    test: tuple


@dataclasses.dataclass
class Run:
    """Results of one training run."""

    method: str
    seed: int
    validation_curve: list  # accuracy after each epoch
    test_accuracy: float
    seconds: float  # of training and validation; first run: also compilation


def load():
    """Returns the digits in their fixed split.

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
    return Digits((x, y), (x_validation, y_validation), (x_test, y_test))


def build_model(frozen=False):
    """Builds the 64-64-10 network: binary layers with batch normalization."""

    def binary_dense(units):
        return layers.BinaryDense(
            units,
            use_bias=False,
            kernel_constraint=constraints.WeightClip(1.0),
        )

    model = keras.Sequential(
        [
            keras.layers.InputLayer((64,)),
            binary_dense(HIDDEN),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Activation("hard_tanh"),
            binary_dense(NUM_CLASSES),
            keras.layers.BatchNormalization(momentum=0.9),
        ]
    )
    for layer in model.layers:
        if frozen and isinstance(layer, layers.BinaryLayer):
            layer.trainable = False
    return model


def make_optimizer(method, rate, steps, backend="native", real_rate=REAL_RATE):
    """Returns the optimizer of a method, with rates that decay to zero."""

    def cosine(rate):
        return keras.optimizers.schedules.CosineDecay(rate, steps)

    if method == QPSBGD:
        return optimizers.QPSBGD(
            learning_rate=cosine(rate),
            backend=backend,
            real_optimizer=keras.optimizers.Adam(cosine(real_rate)),
            seed=0,
        )
    return keras.optimizers.Adam(cosine(rate))


class Training:
    """One method, compiled once and trained from scratch for every seed.

    Compilation takes longer than training here, so all seeds share it.

    Args:
        method: One of `METHODS`.
        digits: The `Digits` returned by `load`.
        epochs: Integer. Number of epochs. Defaults to `20`.
        rate: Float (optional). Initial learning rate. Defaults to the rate of
            the method in `RATES`.
    """

    def __init__(self, method, digits, epochs=EPOCHS, rate=None):
        self.method = method
        self.digits = digits
        self.epochs = epochs
        rate = RATES[method] if rate is None else rate
        steps = epochs * math.ceil(len(digits.train[0]) / BATCH)
        self.model = build_model(frozen=method == FROZEN)
        self.model.compile(
            optimizer=make_optimizer(method, rate, steps),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        self.model.optimizer.build(self.model.trainable_variables)
        self._state = [v.numpy() for v in self.model.optimizer.variables]

    def run(self, seed, progress=True):
        """Trains from scratch.

        Args:
            seed: Integer. Determines the initial weights and the order of the
                images.
            progress: Boolean. Whether to show a progress bar. Defaults to
                `True`.

        Returns:
            A `Run`.
        """
        self._reset(seed)
        start = time.perf_counter()
        history = self.model.fit(
            *self.digits.train,
            batch_size=BATCH,
            epochs=self.epochs,
            validation_data=self.digits.validation,
            validation_batch_size=VALIDATION_IMAGES,
            callbacks=[EpochBar(self.epochs)] if progress else [],
            verbose=0,
        )
        seconds = time.perf_counter() - start
        _, accuracy = self.model.evaluate(
            *self.digits.test, batch_size=TEST_IMAGES, verbose=0
        )
        return Run(
            method=self.method,
            seed=seed,
            validation_curve=history.history["val_accuracy"],
            test_accuracy=accuracy,
            seconds=seconds,
        )

    def _reset(self, seed):
        keras.utils.set_random_seed(seed)
        fresh = build_model(frozen=self.method == FROZEN)
        self.model.set_weights(fresh.get_weights())
        variables = self.model.optimizer.variables
        for variable, value in zip(variables, self._state, strict=True):
            variable.assign(value)


class EpochBar(keras.callbacks.Callback):
    """Keras progress bar over epochs: one line per training run."""

    def __init__(self, epochs):
        super().__init__()
        self._shown = ["loss", "accuracy", "val_accuracy"]
        self._bar = keras.utils.Progbar(
            epochs,
            # A file only gets the final state.
            verbose=1 if sys.stdout.isatty() else 2,
            stateful_metrics=self._shown,
            unit_name="epoch",
        )

    def on_epoch_end(self, epoch, logs=None):
        values = [(name, logs[name]) for name in self._shown]
        self._bar.update(epoch + 1, values)


def table(runs):
    """Returns the results as a table with at most 80 columns."""
    lines = [f"{'method':<24}{'test accuracy':>17}{'seconds per run':>19}"]
    lines.append("-" * len(lines[0]))
    for method in METHODS:
        of_method = [run for run in runs if run.method == method]
        mean, error = mean_and_error([run.test_accuracy for run in of_method])
        seconds = np.mean([run.seconds for run in of_method])
        accuracy = f"{100 * mean:.1f} %"
        if not np.isnan(error):
            accuracy = f"{100 * mean:.1f} +- {100 * error:.1f} %"
        lines.append(f"{method:<24}{accuracy:>17}{seconds:>19.1f}")
    return "\n".join(lines)


def plot(runs, path):
    """Plots validation accuracy by epoch: means with standard error bands.

    Args:
        runs: List of `Run`.
        path: File to write.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    from matplotlib.ticker import MaxNLocator

    figure = figures.blank(6.4, 4.0)
    axes = figure.subplots()
    low, high = LOWEST_SHOWN, 100
    for method in METHODS:
        curves = [run.validation_curve for run in runs if run.method == method]
        mean, error = mean_and_error(100 * np.asarray(curves))
        epochs = np.arange(1, len(mean) + 1)
        color = COLORS[method]
        axes.plot(
            epochs,
            mean,
            color=color,
            linestyle="--" if method == FROZEN else "-",
            marker=MARKERS[method],
            markersize=4,
            label=method,
            # QP-SBGD on top of the other curves.
            zorder=4 if method == QPSBGD else 3,
        )
        # The first epochs may be below the axis.
        rest = slice(len(mean) // 10, None)
        error = np.nan_to_num(error[rest])  # not known for one seed
        band = mean[rest] - error, mean[rest] + error
        axes.fill_between(epochs[rest], *band, color=color, alpha=0.2, lw=0)
        low, high = min(low, *band[0]), max(high, *band[1])
    seeds = len({run.seed for run in runs})
    note = f"mean and standard error of {seeds} seeds" if seeds > 1 else ""
    title = f"Handwritten digits, 64-{HIDDEN}-{NUM_CLASSES} binary network"
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_title(note, loc="right", fontsize=8, color="#555555")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy [%]")
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figures.save(figure, path)
