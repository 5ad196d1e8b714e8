"""Command line interface: `python -m keras_qpsbgd ...`.

Each command is a module with a function `add`, which adds its parser.
"""

import argparse
import sys

from keras_qpsbgd.cli import backends
from keras_qpsbgd.cli import demo
from keras_qpsbgd.cli import export
from keras_qpsbgd.cli import qpu_check
from keras_qpsbgd.cli import qpu_cost
from keras_qpsbgd.cli import report


def main(argv=None):
    """Runs a command.

    Args:
        argv: List of strings (optional). Command line arguments. Defaults to
            the arguments of the process.

    Returns:
        The exit code.
    """
    return run(
        "python -m keras_qpsbgd",
        "Train binary neural networks (weights of +1 and -1) with QUBO solvers "
        "and quantum annealers.",
        (
            demo.add,
            backends.add,
            qpu_cost.add,
            qpu_check.add,
            report.add,
            export.add,
        ),
        argv,
    )


def run(prog, description, adders, argv=None):
    """Parses the arguments and runs one of several commands.

    Args:
        prog: String. Name of the program in help messages.
        description: String. Description of the program in help messages.
        adders: Functions that each add a command to the object returned by
            `add_subparsers`.
        argv: List of strings (optional). Command line arguments. Defaults to
            the arguments of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    commands = parser.add_subparsers(metavar="command", required=True)
    for add in adders:
        add(commands)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except argparse.ArgumentTypeError as error:
        print(error, file=sys.stderr)
        return 1
