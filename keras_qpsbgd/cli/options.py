"""The options of all commands.

The commands themselves are in the modules of the same names, which import
TensorFlow. They are loaded after the arguments have been checked, so that help
and errors appear at once.
"""

import argparse
import importlib
import pathlib
import re

from keras_qpsbgd.cli import console

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
        "The test accuracy of QP-SBGD is compared with that of BinaryConnect "
        "(Adam). A picture shows the accuracies after each epoch.",
    )
    _count(parser, "--epochs", "number of training epochs", 20)
    _count(parser, "--seeds", "number of training runs per method", 3)
    _output(parser, "draw the accuracies in FILE", "digits.png")


def add_backends(commands):
    """Adds the command `backends`."""
    _parser(
        commands,
        "backends",
        "list all solvers, and what is missing if one cannot run here",
    )


def add_qpu_cost(commands):
    """Adds the command `qpu-cost`."""
    parser = _parser(
        commands,
        "qpu-cost",
        "estimate the cost of training a network on a D-Wave QPU",
        "Training uses `QPSBGD` (`--steps`) or `fit_columns` (`--sweeps`). No "
        "API token is needed, and no QPU is called. Times are estimated with "
        "Ocean's cost model and timing data that D-Wave has published.",
    )
    parser.add_argument(
        "network", type=network, help="layer sizes such as 16-4-4-2"
    )
    length = parser.add_mutually_exclusive_group()
    _count(length, "--steps", "number of updates of `QPSBGD`", 1000)
    _count(length, "--sweeps", "number of sweeps of `fit_columns`")
    _count(
        parser,
        "--dampings",
        "number of dampings of `fit_columns`, which share a call (default: "
        "that of `fit_columns`)",
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
        "--topology",
        choices=["pegasus", "zephyr"],
        default="pegasus",
        help="topology of the chip (default: %(default)s)",
    )
    _output(parser, "write a plot of the calls to FILE, one color per layer")


def add_report(commands):
    """Adds the command `report`."""
    parser = _parser(
        commands,
        "report",
        "write an HTML page about a recorded training run",
        "`callbacks.QuboRecorder` records runs. The page is one file with "
        "curves, QUBOs, energies, reads, and settings.",
    )
    parser.add_argument(
        "run_file",
        type=console.existing_path,
        metavar="RUN",
        help="the recorded file",
    )
    _output(
        parser, "write the page to FILE (default: RUN with the suffix .html)"
    )


def add_export(commands):
    """Adds the command `export`."""
    parser = _parser(
        commands,
        "export",
        "write a saved model as a small file or for another runtime",
        "packed: 1 to 4 bits per binary weight, for this package. onnx, "
        "litert: 2 or 4 bits per binary weight, for ONNX Runtime and LiteRT. "
        "savedmodel: a folder for TensorFlow.",
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
    _output(
        parser,
        "write to FILE (default: MODEL with the suffix .kq, .onnx or .tflite, "
        "or without a suffix)",
    )


def network(text):
    """Converts layer sizes to pairs of inputs and outputs."""
    sizes = [int(size) for size in re.findall(r"\d+", text)]
    if not re.fullmatch(r"\d+(-\d+)+", text) or min(sizes) < 1:
        raise argparse.ArgumentTypeError(
            "must be layer sizes of at least 1, such as 16-4-4-2. "
            f"Received: {text}"
        )
    return list(zip(sizes, sizes[1:]))


def _parser(commands, name, summary, details=""):
    """Adds a command, which loads its module when it runs."""
    description = f"{summary[0].upper()}{summary[1:]}. {details}"
    parser = commands.add_parser(name, help=summary, description=description)

    def run(arguments):
        module = f"keras_qpsbgd.cli.{name.replace('-', '_')}"
        return importlib.import_module(module).run(arguments)

    parser.set_defaults(run=run)
    return parser


def _count(parser, name, text, default=None):
    """Adds an option with a positive integer."""
    if default is not None:
        text += " (default: %(default)s)"
    parser.add_argument(
        name, type=console.positive, metavar="N", default=default, help=text
    )


def _output(parser, text, default=None):
    """Adds the option `--output`."""
    parser.add_argument(
        "--output",
        type=lambda path: pathlib.Path(path).expanduser(),
        default=default,
        metavar="FILE",
        help=text + (f" (default: {default})" if default else ""),
    )
