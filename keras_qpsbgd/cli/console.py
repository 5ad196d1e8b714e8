"""Output and argument types that several commands share."""

import argparse
import math
import pathlib
import sys

WIDTH = 80


def show_status(text):
    """Shows a status line in a terminal, which the next output replaces."""
    if sys.stdout.isatty():
        print(f"\r{text[: WIDTH - 1]:<{WIDTH - 1}}\r", end="", flush=True)


def fail(text):
    """Prints an error and returns the exit code of a command that failed."""
    print(text, file=sys.stderr)
    return 1


def positive(text):
    """Converts an argument to a positive integer."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be at least 1. Received: {text}"
        )
    return value


def seconds(text):
    """Converts an argument to a positive, finite number."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"must be positive and finite. Received: {text}"
        )
    return value


def existing_path(text):
    """Checks that an input exists, before the work begins."""
    path = pathlib.Path(text).expanduser()
    if not path.exists():
        raise argparse.ArgumentTypeError(
            f"must be an existing file. Received: {text}"
        )
    return path
