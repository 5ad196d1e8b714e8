"""Options and errors that several commands share."""

import argparse
import functools

from keras_qpsbgd.backends import BackendUnavailable
from keras_qpsbgd.cli.console import positive

RESUMED = "If it is interrupted, run the same command again to resume."


def add_output(parser, default):
    """Adds the folder of the results."""
    parser.add_argument(
        "--output",
        default=default,
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )


def add_data(parser):
    """Adds the folder of the data sets."""
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the data sets (default: KERAS_QPSBGD_DATA, else the "
        "cache, where they are downloaded to)",
    )


def add_quick(parser):
    """Adds the option for a short run."""
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs that only show that it works",
    )


def add_seeds(parser, default, of):
    """Adds the number of seeds."""
    parser.add_argument(
        "--seeds",
        type=positive,
        default=default,
        metavar="N",
        help=of if default is None else f"{of} (default: %(default)s)",
    )


def add_processes(parser):
    """Adds the number of processes."""
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="parallel processes of one thread each (default: one per core)",
    )


def check_names(argument, received, known):
    """Raises an error if a name is not known."""
    unknown = [name for name in received if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"`{argument}` must be one of {', '.join(known)}. "
            f"Received: {' '.join(unknown)}"
        )


def reported(run):
    """Returns a command that prints expected errors without a traceback."""

    @functools.wraps(run)
    def command(arguments):
        try:
            return run(arguments)
        except KeyboardInterrupt:
            print("\nStopped. Run the same command again to resume.")
            return 130
        except (
            BackendUnavailable,
            ImportError,
            OSError,
            RuntimeError,
            ValueError,
        ) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return command
