"""Helpers of the commands: table width, status line, argument types."""

import argparse
import os
import pathlib
import sys

WIDTH = 80
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg")


def show_status(text):
    """Shows a status line in a terminal, which the next output replaces."""
    if sys.stdout.isatty():
        print(f"\r{text[: WIDTH - 1]:<{WIDTH - 1}}\r", end="", flush=True)


def positive(text):
    """Converts an argument to a positive integer."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be at least 1. Received: {text}"
        )
    return value


def picture_file(text):
    """Converts an argument to the path of a picture that can be written.

    The path is checked when the arguments are parsed, before the work. The
    folder may be missing, but it must be possible to create it.
    """
    path = pathlib.Path(text).expanduser()
    existing = path.parent
    while not existing.exists():
        existing = existing.parent
    problem = ""
    if path.suffix.lower() not in PICTURES:
        problem = f"must end with one of {', '.join(PICTURES)}"
    elif path.is_dir():
        problem = "must not be a folder"
    elif not existing.is_dir() or not os.access(existing, os.W_OK):
        problem = f"must be in a folder that can be written, not {existing}"
    elif path.exists() and not os.access(path, os.W_OK):
        problem = "must be a file that can be written"
    if problem:
        raise argparse.ArgumentTypeError(f"{problem}. Received: {text}")
    return path


class RemovedOption(argparse.Action):
    """An option that was removed: an error that names its replacement.

    Args:
        instead: String. What to use instead.
    """

    def __init__(self, option_strings, dest, instead, **arguments):
        arguments.update(nargs="?", help=argparse.SUPPRESS)
        super().__init__(
            option_strings, dest, default=argparse.SUPPRESS, **arguments
        )
        self.instead = instead

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(
            f"{option_string} was removed. Use {self.instead}. Received: "
            f"{option_string} {values or ''}".rstrip()
        )
