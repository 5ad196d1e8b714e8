"""Helpers of the commands: table width, status line, argument types."""

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
