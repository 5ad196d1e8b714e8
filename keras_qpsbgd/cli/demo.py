"""`demo`: trains a network on handwritten digits, and draws its accuracy.

- QP-SBGD: `QPSBGD` with the native backend trains the binary kernels, and Adam
  trains batch normalization.
- BinaryConnect: Adam trains everything, with straight-through gradients.

The images are the 1,797 digits of scikit-learn, with 8x8 pixels. The split is
fixed: 1,047 images for training, 450 for testing, and 300 that were used to
choose the learning rates.
"""

import math
import time

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


def run(arguments):
    """Runs the command."""
    start = time.perf_counter()
    try:
        training, testing = load()
    except ImportError as error:
        return console.fail(str(error))
    epochs, seeds = arguments.epochs, arguments.seeds
    print(
        f"Images of digits: {len(training[1])} for training, "
        f"{len(testing[1])} for testing\n"
        f"Network: 64-{HIDDEN}-10, weights of +1 and -1\n"
        f"Training: {epochs} epoch{'s' * (epochs > 1)}, "
        f"{seeds} seed{'s' * (seeds > 1)}\n"
        "The first step of a method compiles it, which takes a few seconds.\n"
    )
    rows, curves = [], {}
    for method in RATES:
        start_of_method = time.perf_counter()
        curves[method] = train(method, training, testing, epochs, seeds)
        seconds = (time.perf_counter() - start_of_method) / seeds
        accuracies = [curve[-1] for curve in curves[method]]
        rows.append((method, accuracy_text(accuracies), f"{seconds:.1f}"))
    head = ("method", "test accuracy", "seconds per run")
    print("\n" + "\n".join(_tables.table(head, rows, (17, 19))))
    if seeds > 1:
        print("+- is the standard error of the mean over seeds.")
    try:
        draw(curves, arguments.output)
    except ImportError as error:
        print(f"\nNo picture was drawn. {error}")
    else:
        print(f"\nAccuracies after each epoch: {arguments.output}")
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def load():
    """Returns the training data and the test data.

    Returns:
        Two tuples of images, scaled to [-1, 1], and classes.

    Raises:
        ImportError: If scikit-learn is not installed.
    """
    datasets = common.require("sklearn.datasets", "demo")
    model_selection = common.require("sklearn.model_selection", "demo")
    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 8.0 - 1.0).astype("float32")

    def split(x, y, size):
        return model_selection.train_test_split(
            x, y, test_size=size, stratify=y, random_state=0
        )

    x, x_test, y, y_test = split(x, y, TEST_IMAGES)
    x, _, y, _ = split(x, y, VALIDATION_IMAGES)
    return (x, y), (x_test, y_test)


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


def train(method, training, testing, epochs, seeds):
    """Trains from scratch with each seed.

    Compilation takes longer than training here, so all seeds share it.

    Returns:
        For each seed, a list of the test accuracy after each epoch.
    """
    x, y = training
    model = build_model()
    model.compile(
        optimizer=make_optimizer(method, epochs * math.ceil(len(x) / BATCH)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)
    state = [variable.numpy() for variable in model.optimizer.variables]
    curves = []
    for seed in range(seeds):
        keras.utils.set_random_seed(seed)
        model.set_weights(build_model().get_weights())
        for variable, value in zip(model.optimizer.variables, state):
            variable.assign(value)
        name = f"{method}, seed {seed}"
        console.show_status(f"{name} ...")
        history = model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=epochs,
            validation_data=testing,
            validation_batch_size=TEST_IMAGES,
            verbose=0,
        )
        curve = history.history["val_accuracy"]
        print(f"{name}: {curve[-1]:.1%} of the test images")
        curves.append(curve)
    return curves


def accuracy_text(accuracies):
    """Returns the mean and the standard error in percent."""
    mean = 100 * np.mean(accuracies)
    if len(accuracies) == 1:
        return f"{mean:.1f} %"
    error = 100 * np.std(accuracies, ddof=1) / math.sqrt(len(accuracies))
    return f"{mean:.1f} +- {error:.1f} %"


def draw(curves, path):
    """Draws the mean test accuracies after each epoch.

    Args:
        curves: Dictionary that maps each method to the results of `train`.
        path: File to write.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    axes = common.new_axes()
    for method, color in zip(curves, common.COLORS):
        percent = 100 * np.array(curves[method])
        mean, epochs = percent.mean(axis=0), np.arange(len(percent[0])) + 1
        axes.plot(epochs, mean, "o-", color=color, label=method, markersize=4)
        axes.fill_between(
            epochs,
            percent.min(axis=0),
            percent.max(axis=0),
            color=color,
            alpha=0.2,
            lw=0,
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("test accuracy [%]")
    axes.set_title(f"Digits, 64-{HIDDEN}-10 with binary weights", loc="left")
    axes.set_ylim(top=100)
    axes.locator_params(axis="x", integer=True)
    axes.grid(axis="y", color="#dddddd")
    axes.legend(loc="lower right", frameon=False)
    axes.figure.savefig(path, dpi=150)
