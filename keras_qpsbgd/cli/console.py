"""Helpers for the commands: table width, status line, argument types."""

import argparse
import sys

WIDTH = 80


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


class RemovedOption(argparse.Action):
    """An option that was removed. Its error names the replacement.

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
