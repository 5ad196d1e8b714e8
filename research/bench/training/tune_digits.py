"""Tune the learning rates of the demo on the validation images.

    python -m research.bench.training.tune_digits

All methods use the same grid of learning rates and the same seeds, which differ
from those of the demo. The test images are not used. Copy the rates with the
best mean validation accuracy after the last epoch to
`keras_qpsbgd/cli/demo.py`.
"""

import argparse

from keras_qpsbgd.cli import demo
from keras_qpsbgd.comparison import statistics

RATES = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256)
FIRST_SEED = 100


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=4,
        metavar="N",
        help="number of training runs per rate (default: %(default)s)",
    )
    seeds = parser.parse_args().seeds

    data = demo.load()
    print(
        "Validation accuracy in percent after the last of "
        f"{demo.EPOCHS} epochs,\nmean +- standard error of {seeds} seeds\n"
    )
    print(f"{'rate':>8}" + "".join(f"{method:>23}" for method in demo.METHODS))
    found = {method: {} for method in demo.METHODS}
    for rate in RATES:
        line = f"{rate:>8}"
        for method in demo.METHODS:
            training = demo.Training(method, data, rate=rate)
            accuracies = [
                training.run(seed, progress=False).validation_curve[-1]
                for seed in range(FIRST_SEED, FIRST_SEED + seeds)
            ]
            mean, error = statistics.mean_and_error(accuracies)
            found[method][rate] = mean
            cell = f"{100 * mean:.1f} +- {100 * error:.1f}"
            line += f"{cell:>23}"
        print(line, flush=True)
    print()
    for method in demo.METHODS:
        best = max(found[method], key=found[method].get)
        print(f"best rate of {method}: {best}")


if __name__ == "__main__":
    main()
