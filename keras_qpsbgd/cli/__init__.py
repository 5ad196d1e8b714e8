"""Command line interface: `python -m keras_qpsbgd ...`.

`options` defines the options of all commands. Each command is a module with a
function `run`.
"""

import argparse
import sys

from keras_qpsbgd._version import __version__
from keras_qpsbgd.cli import options


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
            options.add_demo,
            options.add_backends,
            options.add_qpu_cost,
            options.add_report,
            options.add_export,
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
    parser.add_argument(
        "--version", action="version", version=f"keras_qpsbgd {__version__}"
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    for add in adders:
        add(commands)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except argparse.ArgumentTypeError as error:
        print(error, file=sys.stderr)
        return 1
