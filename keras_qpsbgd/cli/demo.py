"""`demo`: trains a network on handwritten digits and compares methods."""

import sys
import time

from keras_qpsbgd.cli import console
from keras_qpsbgd.cli import digits


def add(commands):
    """Adds the command `demo`."""
    parser = commands.add_parser(
        "demo",
        help="train a binary network on handwritten digits (about a minute)",
        description=(
            "Train a binary network on scikit-learn's handwritten digits with "
            "three methods and compare the test accuracy: QP-SBGD, "
            "BinaryConnect (Adam), and frozen binary weights."
        ),
    )
    parser.add_argument(
        "--epochs",
        type=console.positive,
        metavar="N",
        default=digits.EPOCHS,
        help="number of training epochs (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=console.positive,
        metavar="N",
        default=digits.SEEDS,
        help="number of training runs per method (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        default="digits.png",
        metavar="FILE",
        help="write a plot of the learning curves to FILE "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-plot",
        action="store_true",
        help="do not plot the learning curves",
    )
    parser.set_defaults(run=_run)


def _run(arguments):
    start = time.perf_counter()
    try:
        data = digits.load()
    except digits.MissingPackage as error:
        print(error, file=sys.stderr)
        return 1
    epochs, seeds = arguments.epochs, arguments.seeds
    print(
        "Data: handwritten digits, 10 classes\n"
        f"Images: {len(data.train[0])} for training, "
        f"{len(data.validation[0])} for validation, "
        f"{len(data.test[0])} for testing\n"
        f"Network: 64-{digits.HIDDEN}-10, weights of +1 and -1\n"
        f"Training: {epochs} epoch{'s' * (epochs > 1)}, "
        f"{seeds} seed{'s' * (seeds > 1)}"
    )
    runs = []
    for method in digits.METHODS:
        training = digits.Training(method, data, epochs)
        for seed in range(seeds):
            print(f"\n{method}, seed {seed}", flush=True)
            runs.append(training.run(seed))
    print("\n" + digits.table(runs))
    if seeds > 1:
        print("+- is the standard error of the mean over seeds.")
    if not arguments.no_plot:
        _plot(runs, arguments.output)
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def _plot(runs, path):
    try:
        digits.plot(runs, path)
    except ImportError:
        print(
            "\nThe learning curves were not plotted, because Matplotlib is not "
            "installed.\nInstall it with "
            '`python -m pip install "keras_qpsbgd[demo]"`.'
        )
    else:
        print(f"\nLearning curves written to {path}")
