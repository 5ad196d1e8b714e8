"""A line for people who wait."""

import sys

WIDTH = 80


def say(text):
    """Shows a line that the next one replaces; a file does not get it."""
    if sys.stdout.isatty():
        print(f"\r{text[: WIDTH - 1]:<{WIDTH - 1}}\r", end="", flush=True)
