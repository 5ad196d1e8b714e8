"""The options of all commands.

The commands themselves are in the modules of the same names, which import
TensorFlow. They are loaded after the arguments have been checked, so that help
and errors appear at once.
"""

import argparse
import importlib
import re

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


def add_demo(commands):
    """Adds the command `demo`."""
    parser = _parser(
        commands,
        "demo",
        "train a binary network on handwritten digits (about a minute)",
        "Train a binary network on scikit-learn's handwritten digits with "
        "QP-SBGD and with BinaryConnect (Adam), compare the test accuracy, and "
        "draw the learning curves.",
    )
    _count(parser, "--epochs", "number of training epochs", EPOCHS)
    _count(parser, "--seeds", "number of training runs per method", SEEDS)
    parser.add_argument(
        "--output",
        type=console.picture,
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


def add_backends(commands):
    """Adds the command `backends`."""
    _parser(
        commands,
        "backends",
        "list all solvers and whether they can run on this machine",
        "List all solver backends, whether each of them can run on this "
        "machine, and what is missing if it cannot.",
    )


def add_qpu_cost(commands):
    """Adds the command `qpu-cost`."""
    parser = _parser(
        commands,
        "qpu-cost",
        "estimate the cost of training a network on a D-Wave QPU",
        "Embed the layers of a network on a D-Wave chip and estimate the QPU "
        "time of training it, with `QPSBGD` (`--steps`) or with `fit_columns` "
        "(`--sweeps`). No API token is needed, and no QPU is called. Times are "
        "estimated with Ocean's cost model and timing data that D-Wave has "
        "published. The output names the solver and the date of these data.",
    )
    parser.add_argument(
        "network",
        type=network,
        help="layer sizes such as 16-4-4-2, or the file of a saved model "
        "(.keras, .h5)",
    )
    length = parser.add_mutually_exclusive_group()
    _count(
        length,
        "--steps",
        "number of training steps, the updates of `QPSBGD`",
        1000,
    )
    _count(
        length,
        "--sweeps",
        "number of sweeps of `fit_columns`, instead of training steps",
    )
    _count(
        parser,
        "--dampings",
        "number of dampings of `fit_columns`, which share a call (default with "
        "`--sweeps`: that of `fit_columns`)",
    )
    parser.add_argument(
        "--budget-seconds",
        type=console.seconds,
        metavar="S",
        help="also show how many steps or sweeps fit into S seconds of QPU "
        "time",
    )
    _count(parser, "--num-reads", "number of anneals per QPU call", 100)
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
    _count(
        parser,
        "--block-size",
        "solve wider layers in blocks of N inputs (default: 64 for layers that "
        "do not fit on the chip; other layers are solved whole)",
    )
    parser.add_argument(
        "--output",
        type=console.picture,
        metavar="FILE",
        help="write a plot of the calls to FILE, with one color per layer",
    )


def add_report(commands):
    """Adds the command `report`."""
    parser = _parser(
        commands,
        "report",
        "write an HTML page about a recorded training run",
        "Write one self-contained HTML page about a training run that "
        "`callbacks.QuboRecorder` recorded: curves, QUBOs, energies, reads, "
        "solver statistics, and settings.",
    )
    parser.add_argument(
        "run_file",
        type=console.existing_path,
        metavar="RUN",
        help="the recorded file",
    )
    parser.add_argument(
        "--output",
        type=console.output_path,
        metavar="FILE",
        help="write the page to FILE (default: RUN with the suffix .html)",
    )


def add_export(commands):
    """Adds the command `export`."""
    parser = _parser(
        commands,
        "export",
        "write a saved model as a small file or for another runtime",
        "Write a saved model in a format for deployment. packed: a file with 1 "
        "to 4 bits per binary weight, for this package. onnx, litert: 2 or 4 "
        "bits per binary weight, for ONNX Runtime and LiteRT. savedmodel: a "
        "folder for TensorFlow. Only packed needs this package to run.",
    )
    parser.add_argument(
        "model",
        type=console.existing_path,
        metavar="MODEL",
        help="a .keras, HDF5 or packed file",
    )
    parser.add_argument(
        "--to", required=True, choices=SUFFIXES, help="the format to write"
    )
    parser.add_argument(
        "--output",
        type=console.output_path,
        metavar="PATH",
        help="write to PATH (default: MODEL with the suffix .kq, .onnx or "
        ".tflite, or without a suffix)",
    )


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
    return console.existing_path(text)


def _parser(commands, name, summary, description):
    """Adds a command, which loads its module when it runs."""
    parser = commands.add_parser(name, help=summary, description=description)

    def run(arguments):
        module = f"keras_qpsbgd.cli.{name.replace('-', '_')}"
        try:
            command = importlib.import_module(module)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "keras_qpsbgd"):
                raise
            return console.fail(
                f"This command requires {package}. Install it with `python -m "
                f"pip install {package.replace('_', '-')}`."
            )
        return command.run(arguments)

    parser.set_defaults(run=run)
    return parser


def _count(parser, name, text, default=None):
    """Adds an option with a positive integer."""
    if default is not None:
        text += " (default: %(default)s)"
    parser.add_argument(
        name, type=console.positive, metavar="N", default=default, help=text
    )
