"""The command line: `python -m keras_qpsbgd ...`."""

import argparse
import re
import sys
import textwrap
import time

WIDTH = 80


def main(argv=None):
    """Runs a command.

    Args:
        argv: list of arguments; `None` takes those of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_qpsbgd",
        description="Train networks of +1 and -1 weights by quantum annealing.",
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    _add_demo(commands)
    _add_backends(commands)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


def _add_demo(commands):
    parser = commands.add_parser(
        "demo",
        help="train a binary network on handwritten digits (a minute)",
        description=(
            "Trains one binary network on scikit-learn's handwritten digits "
            "with QP-SBGD, with BinaryConnect (Adam) and with its binary "
            "weights frozen, and compares their test accuracy."
        ),
    )
    parser.add_argument(
        "--epochs",
        type=_positive,
        help="passes over the training images (default: 20)",
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
        help="trainings per method (default: 3)",
    )
    parser.add_argument(
        "--output",
        default="digits.png",
        help="where to put the learning curves (default: %(default)s)",
    )
    parser.add_argument(
        "--no-plot", action="store_true", help="draw no learning curves"
    )
    parser.set_defaults(run=_demo)


def _demo(arguments):
    from keras_qpsbgd.experiments import digits

    start = time.perf_counter()
    try:
        data = digits.load()
    except digits.MissingPackage as error:
        print(error, file=sys.stderr)
        return 1
    epochs = arguments.epochs or digits.EPOCHS
    seeds = arguments.seeds or digits.SEEDS
    print(
        f"Handwritten digits, 10 classes: {len(data.train[0])} images to train "
        f"on, {len(data.validation[0])} to validate, {len(data.test[0])} to "
        "test.\n"
        f"A 64-{digits.HIDDEN}-10 network with weights of +1 and -1, "
        f"{epochs} epochs, {seeds} seed{'s' * (seeds > 1)}."
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
        _plot(digits, runs, arguments.output)
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def _plot(digits, runs, path):
    try:
        digits.plot(runs, path)
    except ImportError:
        print(
            "\nNo picture: matplotlib is not installed "
            '(`python -m pip install "keras_qpsbgd[demo]"`).'
        )
    else:
        print(f"\nLearning curves written to {path}")


def _add_backends(commands):
    parser = commands.add_parser(
        "backends",
        help="list the solvers and whether they can run here",
        description="Lists the solvers and whether they can run here.",
    )
    parser.set_defaults(run=_backends)


def _backends(arguments):
    from keras_qpsbgd import backends

    del arguments
    rows = backends.available()
    names = max(len("backend"), *(len(row.name) for row in rows))
    indent = names + 2 + len("ready") + 2
    print(f"{'backend':<{names}}  ready  what it is, or what is missing")
    print("-" * WIDTH)
    for row in rows:
        ready = "yes" if row.available else "no"
        text = row.summary if row.available else row.missing
        lines = _wrap(text, WIDTH - indent)
        print(f"{row.name:<{names}}  {ready:<5}  {lines[0]}")
        for line in lines[1:]:
            print(" " * indent + line)
    return 0


def _wrap(text, width):
    """Lines of text; what stands in backticks stays on one, to be copied."""
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\xa0"), text)
    lines = textwrap.wrap(
        text, width, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\xa0", " ") for line in lines] or [""]


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be at least 1. Received: {text}"
        )
    return value
