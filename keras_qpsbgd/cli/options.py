"""The options of all commands.

The commands themselves are in the modules of the same names, which import
TensorFlow. They are loaded after the arguments have been checked, so that help
and errors appear at once.
"""

import argparse
import importlib
import math
import os
import pathlib
import re
import sys

from keras_qpsbgd.cli import console

EPOCHS = 20
SEEDS = 3
# Suffixes of the formats of `export`. A SavedModel is a folder.
SUFFIXES = {
    "packed": ".kq",
    "onnx": ".onnx",
    "litert": ".tflite",
    "savedmodel": "",
}
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")


def add_demo(commands):
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
        default=EPOCHS,
        help="number of training epochs (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=console.positive,
        metavar="N",
        default=SEEDS,
        help="number of training runs per method (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=picture,
        default="digits.png",
        metavar="FILE",
        help="write a plot of the learning curves to FILE "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-plot",
        dest="output",
        action="store_const",
        const=None,
        help="do not plot the learning curves",
    )
    parser.set_defaults(run=_runs("demo"))


def add_backends(commands):
    """Adds the command `backends`."""
    parser = commands.add_parser(
        "backends",
        help="list all solvers and whether they can run on this machine",
        description=(
            "List all solver backends, whether each of them can run on this "
            "machine, and what is missing if it cannot."
        ),
    )
    parser.set_defaults(run=_runs("backends"))


def add_qpu_cost(commands):
    """Adds the command `qpu-cost`."""
    parser = commands.add_parser(
        "qpu-cost",
        help="estimate the cost of training a network on a D-Wave QPU",
        description=(
            "Embed the layers of a network on a D-Wave chip and estimate the "
            "QPU time of training it, with `QPSBGD` (`--steps`) or with "
            "`fit_columns` (`--sweeps`). No API token is needed, and no QPU is "
            "called. Times are estimated with Ocean's cost model and timing "
            "data that D-Wave has published. The output names the solver and "
            "the date of these data."
        ),
    )
    parser.add_argument(
        "network",
        type=network,
        help="layer sizes such as 16-4-4-2, or the file of a saved model "
        "(.keras, .h5)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        type=console.positive,
        default=1000,
        metavar="N",
        help="number of training steps, the updates of `QPSBGD` (default: "
        "%(default)s)",
    )
    length.add_argument(
        "--sweeps",
        type=console.positive,
        metavar="N",
        help="number of sweeps of `fit_columns`, instead of training steps",
    )
    parser.add_argument(
        "--dampings",
        type=console.positive,
        metavar="N",
        help="number of dampings of `fit_columns`, which share a call (default "
        "with `--sweeps`: that of `fit_columns`)",
    )
    parser.add_argument(
        "--budget-seconds",
        type=_seconds,
        metavar="S",
        help="also show how many steps or sweeps fit into S seconds of QPU "
        "time",
    )
    parser.add_argument(
        "--num-reads",
        type=console.positive,
        default=100,
        metavar="N",
        help="number of anneals per QPU call (default: %(default)s)",
    )
    parser.add_argument(
        "--annealing-time",
        type=float,
        metavar="T",
        help="annealing time in microseconds (default: the default of the "
        "chip, 20)",
    )
    parser.add_argument(
        "--topology",
        choices=["pegasus", "zephyr"],
        default="pegasus",
        help="topology of the chip (default: %(default)s)",
    )
    parser.add_argument(
        "--block-size",
        type=console.positive,
        metavar="N",
        help="solve wider layers in blocks of N inputs (default: 64 for layers "
        "that do not fit on the chip; other layers are solved whole)",
    )
    parser.add_argument(
        "--output",
        type=picture,
        metavar="FILE",
        help="write a plot of the calls to FILE, with one color per layer",
    )
    for removed, instead in (
        ("--plot", "--output"),
        ("--replicas", "--num-reads"),
    ):
        parser.add_argument(
            removed, action=console.RemovedOption, instead=instead
        )
    parser.set_defaults(run=_runs("qpu_cost"))


def add_report(commands):
    """Adds the command `report`."""
    parser = commands.add_parser(
        "report",
        help="write an HTML page about a recorded training run",
        description=(
            "Write one self-contained HTML page about a training run that "
            "`callbacks.QuboRecorder` recorded: curves, QUBOs, energies, "
            "reads, solver statistics, and settings."
        ),
    )
    parser.add_argument(
        "run_file", type=existing_path, metavar="RUN", help="the recorded file"
    )
    parser.add_argument(
        "--output",
        type=output_path,
        metavar="FILE",
        help="write the page to FILE (default: RUN with the suffix .html)",
    )
    parser.set_defaults(run=_runs("report"))


def add_export(commands):
    """Adds the command `export`."""
    parser = commands.add_parser(
        "export",
        help="write a saved model as a small file or for another runtime",
        description=(
            "Write a saved model in a format for deployment. packed: a file "
            "with 1 to 4 bits per binary weight, for this package. onnx, "
            "litert: 2 or 4 bits per binary weight, for ONNX Runtime and "
            "LiteRT. savedmodel: a folder for TensorFlow. Only packed needs "
            "this package to run."
        ),
    )
    parser.add_argument(
        "model",
        type=existing_path,
        metavar="MODEL",
        help="a .keras, HDF5 or packed file",
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=SUFFIXES,
        help="the format to write",
    )
    parser.add_argument(
        "--output",
        type=output_path,
        metavar="PATH",
        help="write to PATH (default: MODEL with the suffix .kq, .onnx or "
        ".tflite, or without a suffix)",
    )
    parser.set_defaults(run=_runs("export"))


def network(text):
    """Converts the argument `network` of `qpu-cost`.

    Returns:
        The list of layer sizes, or the path of a saved model.
    """
    if re.fullmatch(r"\d+(-\d+)+", text):
        sizes = [int(size) for size in text.split("-")]
        if min(sizes) < 1:
            raise argparse.ArgumentTypeError(
                f"must have at least one unit in every layer. Received: {text}"
            )
        return sizes
    if not text.endswith((".keras", ".h5")):
        raise argparse.ArgumentTypeError(
            "must be layer sizes such as 16-4-4-2, or the file of a saved "
            f"model (.keras, .h5). Received: {text}"
        )
    return existing_path(text)


def existing_path(text):
    """Checks that an input exists, before the work begins."""
    path = pathlib.Path(text).expanduser()
    if not path.exists():
        raise argparse.ArgumentTypeError(
            f"must be an existing file. Received: {text}"
        )
    return path


def output_path(text):
    """Checks the path of an output before the work begins.

    Raises:
        argparse.ArgumentTypeError: If the path cannot be written.
    """
    path = pathlib.Path(text).expanduser()
    folder = path.parent
    while not folder.exists():  # missing folders are created
        folder = folder.parent
    reason = None
    if not text:
        reason = "the path is empty"
    elif not folder.is_dir():
        reason = f"{folder} is not a folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "permission denied"
    if reason:
        raise argparse.ArgumentTypeError(
            f"must be a path that can be written ({reason}). Received: {text}"
        )
    return path


def picture(text):
    """Checks the path of a picture before the work begins."""
    path = output_path(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(
            f"must end with one of {', '.join(PICTURES)}. Received: {text}"
        )
    if path.is_dir():
        raise argparse.ArgumentTypeError(
            f"must be a file, not a folder. Received: {text}"
        )
    return path


def _runs(module):
    """Returns a function that loads a command and runs it."""

    def run(arguments):
        try:
            command = importlib.import_module(f"keras_qpsbgd.cli.{module}")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "keras_qpsbgd"):
                raise
            print(
                f"This command requires {package}. Install it with `python -m "
                f"pip install {package.replace('_', '-')}`.",
                file=sys.stderr,
            )
            return 1
        return command.run(arguments)

    return run


def _seconds(text):
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"must be positive and finite. Received: {text}"
        )
    return seconds
