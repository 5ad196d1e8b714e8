"""Blocks of results in README.md and docs/, written from the records.

A block is the text between two lines of a Markdown file:

    <!-- results:summary-table -->
    <!-- /results -->

`summary.BLOCKS` has the names of all blocks.
"""

import pathlib
import re

from keras_qpsbgd import disk

_START = re.compile(r"^<!-- results:", re.MULTILINE)
_END = re.compile(r"^<!-- /results -->$", re.MULTILINE)
_BLOCK = re.compile(
    r"^(<!-- results:(\S+) -->)$.*?^(<!-- /results -->)$",
    re.MULTILINE | re.DOTALL,
)


def files(root):
    """README.md and all Markdown files of docs/ in a checkout."""
    root = pathlib.Path(root)
    paths = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    return [path for path in paths if path.is_file()]


def update(path, block):
    """Writes the blocks of a file.

    Args:
        path: the file.
        block: function of a name and of the folder of the file; returns the
            text of the block, with links relative to that folder.

    Returns:
        True if the file changed.

    Raises:
        ValueError: see `fill`.
    """
    path = pathlib.Path(path)
    before = path.read_text(encoding="utf-8")
    after = fill(before, lambda name: block(name, path.parent))
    if after != before:
        disk.write(path, after)
    return after != before


def fill(text, block):
    """Fills the blocks of a text.

    Args:
        text: Markdown.
        block: function of a name; returns the text of the block.

    Returns:
        The text with all its blocks filled.

    Raises:
        ValueError: a block has no end, or an end has no start.
    """
    counts = [len(part.findall(text)) for part in (_START, _BLOCK, _END)]
    if len(set(counts)) > 1:
        raise ValueError(
            "Every line `<!-- results:NAME -->` must have a line "
            "`<!-- /results -->` after it. Received: "
            f"{counts[0]} starts, {counts[2]} ends, {counts[1]} whole blocks"
        )
    return _BLOCK.sub(
        lambda found: f"{found[1]}\n\n{block(found[2])}\n\n{found[3]}", text
    )
