"""`demo`: trains a network on handwritten digits and compares methods."""

import sys
import time

from keras_qpsbgd.cli import digits


def run(arguments):
    """Runs the command."""
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
    if arguments.output:
        _plot(runs, arguments.output)
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def _plot(runs, path):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        digits.plot(runs, path)
    except ImportError:
        print(
            "\nThe learning curves were not plotted, because Matplotlib is not "
            "installed.\nInstall it with "
            '`python -m pip install "keras_qpsbgd[demo]"`.'
        )
    else:
        print(f"\nLearning curves written to {path}")
