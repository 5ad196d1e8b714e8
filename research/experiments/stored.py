"""Records of version 0.1, which had other rules.

They stay readable and are not mixed with new runs. A folder of such records
has no `rule` in its `settings.json`.
"""

import pathlib

from keras_qpsbgd.comparison import records

# Its label for the QUBO without couplings, which `signum` replaces.
SIGN = "QP-SBGD (sign)"
NOTE = (
    "These results were made with the rule of version 0.1 (`{rule}`). They are "
    "not yet run again with {now}."
)


def is_old(folder):
    """Returns whether a folder has records of version 0.1."""
    path = pathlib.Path(folder, "settings.json")
    return path.exists() and "rule" not in records.read_json(path)


def note(paper=False):
    """Returns the line that each table of such records has.

    Args:
        paper: Boolean. Whether they were made with `--paper`.
    """
    if paper:
        return NOTE.format(rule='gradient_scale="raw"', now='`rule="paper"`')
    now = "the averaged rule, the default since"
    return NOTE.format(rule='gradient_scale="max"', now=now)
