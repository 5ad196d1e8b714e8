"""The command line of the research: `python -m research ...`."""

import argparse
import sys

from research.bench import command as bench
from research.experiments import command as experiments


def main(argv=None):
    """Runs a command.

    Args:
        argv: list of arguments; `None` takes those of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m research",
        description="Experiments and benchmarks of keras_qpsbgd.",
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    experiments.add(commands)
    bench.add(commands)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except argparse.ArgumentTypeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
