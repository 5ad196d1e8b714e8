"""Pages of results: written text with generated tables.

A generated table is the text between two lines of a Markdown file:

    <!-- results:cora/cora -->
    <!-- /results -->

A page that does not exist yet gets all its tables under their names.
"""

import pathlib
import re
import textwrap

from keras_qpsbgd import disk

WIDTH = 100
# No line breaks within `81.4 +- 0.2 %`, `p = 0.010` and `BinaryConnect (SGD)`.
_TOGETHER = re.compile(
    r" (?=\+-|%|pp\b|[<>]=? |= |\(\w+\))|(?<=\+-) |(?<= [=<]) |(?<= [<>]=) "
)
_SPACE = "\N{NO-BREAK SPACE}"
_START = re.compile(r"^<!-- results:", re.MULTILINE)
_END = re.compile(r"^<!-- /results -->$", re.MULTILINE)
_BLOCK = re.compile(
    r"^(<!-- results:(\S+) -->)$.*?^(<!-- /results -->)$",
    re.MULTILINE | re.DOTALL,
)


def files(root):
    """README.md, RESULTS.md and all Markdown files of docs/ in a checkout."""
    root = pathlib.Path(root)
    paths = [root / "README.md", root / "RESULTS.md"]
    paths.append(root / "results" / "paper" / "RESULTS.md")
    paths += sorted(root.glob("docs/**/*.md"))
    return [path for path in paths if path.is_file()]


def write(path, title, blocks, parts=None):
    """Writes the blocks of a page, which is created if it does not exist.

    Args:
        path: Path of the page.
        title: String. Heading of a new page.
        blocks: Dictionary. Maps names of blocks to their texts.
        parts: List of strings (optional). The parts of a new page, with a line
            `<!-- results:NAME -->` for each block. Defaults to all blocks.

    Returns:
        The path.
    """
    path = pathlib.Path(path)
    if not path.exists():
        parts = parts or [part for name in blocks for part in empty(name)]
        disk.write(path, "\n\n".join([f"# {title}", *parts]) + "\n")
    update(path, blocks)
    return path


def empty(name, title=None):
    """Returns a heading and an empty block."""
    block = f"<!-- results:{name} -->\n<!-- /results -->"
    return [f"## {title or name}", block]


def update(path, blocks):
    """Writes the blocks of an existing file.

    Args:
        path: Path of the file.
        blocks: Dictionary. Maps names of blocks to their texts.

    Returns:
        True if the file changed.

    Raises:
        ValueError: see `fill`.
    """
    path = pathlib.Path(path)
    before = path.read_text(encoding="utf-8")
    after = fill(before, blocks)
    if after != before:
        disk.write(path, after)
    return after != before


def fill(text, blocks):
    """Returns a text with all its blocks filled.

    Args:
        text: Markdown.
        blocks: Dictionary. Maps names of blocks to their texts.

    Raises:
        ValueError: If a block has no end, if an end has no start, or if there
            is no block of a name.
    """
    counts = [len(part.findall(text)) for part in (_START, _BLOCK, _END)]
    if len(set(counts)) > 1:
        raise ValueError(
            "Every line `<!-- results:NAME -->` must have a line "
            "`<!-- /results -->` after it. Received: "
            f"{counts[0]} starts, {counts[2]} ends, {counts[1]} whole blocks"
        )

    def filled(found):
        if found[2] not in blocks:
            raise ValueError(
                f"The name of a block must be one of {', '.join(blocks)}. "
                f"Received: {found[2]}"
            )
        return f"{found[1]}\n\n{blocks[found[2]]}\n\n{found[3]}"

    return _BLOCK.sub(filled, text)


def paragraph(text):
    """Wraps a paragraph."""
    wrapped = textwrap.fill(
        _TOGETHER.sub(_SPACE, text),
        WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace(_SPACE, " ")


def joined(items):
    """Returns `a, b and c`."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
