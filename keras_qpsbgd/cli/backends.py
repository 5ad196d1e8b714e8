"""`backends`: lists the solvers and whether they can run."""

import re
import textwrap

from keras_qpsbgd import backends
from keras_qpsbgd.cli import console


def run(arguments):
    """Runs the command."""
    del arguments
    rows = backends.available()
    names = max(len("backend"), *(len(row.name) for row in rows))
    indent = names + 2 + len("ready") + 2
    print(f"{'backend':<{names}}  ready  description, or what is missing")
    print("-" * console.WIDTH)
    for row in rows:
        ready = "yes" if row.available else "no"
        text = row.summary if row.available else row.missing
        lines = _wrap(text, console.WIDTH - indent)
        print(f"{row.name:<{names}}  {ready:<5}  {lines[0]}")
        for line in lines[1:]:
            print(" " * indent + line)
    return 0


def _wrap(text, width):
    """Wraps text, but keeps code in backticks on one line for copying."""
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\xa0"), text)
    lines = textwrap.wrap(
        text, width, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\xa0", " ") for line in lines] or [""]
