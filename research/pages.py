"""Pages of results: written text with generated tables.

A generated table is the text between two lines of a Markdown file:

    <!-- results:cora/cora -->
    <!-- /results -->

Tables that a page does not have yet are added to its end, under their names.
"""

import pathlib
import re

from keras_qpsbgd import disk

NAME = "README.md"  # of the page of a folder
# The pages of these folders have blocks of their own.
STUDIES = ("appendix", "few-solves", "gaps", "quantize")

_START = re.compile(r"^<!-- results:", re.MULTILINE)
_END = re.compile(r"^<!-- /results -->$", re.MULTILINE)
_BLOCK = re.compile(
    r"^(<!-- results:(\S+) -->)$.*?^(<!-- /results -->)$",
    re.MULTILINE | re.DOTALL,
)


def files(root):
    """README.md, the pages of results, models/ and docs/ in a checkout."""
    root = pathlib.Path(root)
    paths = [root / NAME, root / "RESULTS.md"]
    paths.append(root / "models" / NAME)
    paths += sorted(root.glob("docs/**/*.md"))
    paths += [
        path
        for path in sorted(root.glob(f"results/**/{NAME}"))
        if path.parent.name not in STUDIES
    ]
    return [path for path in paths if path.is_file()]


def write(path, title, blocks, pictures=None):
    """Writes the blocks of a page, and adds those that it does not have.

    Args:
        path: Path of the page. It is created if it does not exist.
        title: String. Heading of a new page.
        blocks: Dictionary. Maps names of blocks to their texts.
        pictures: Dictionary (optional). Maps names of blocks to links to
            pictures, which are added after new blocks.

    Returns:
        The path.
    """
    path = pathlib.Path(path)
    text = f"# {title}\n"
    if path.exists():
        text = path.read_text(encoding="utf-8")
    for name in blocks:
        start = f"<!-- results:{name} -->"
        if start not in text:
            text += f"\n## {name}\n\n{start}\n<!-- /results -->\n"
            if name in (pictures or {}):
                text += f"\n![{name}]({pictures[name]})\n"
    after = fill(text, blocks)
    if not path.exists() or after != path.read_text(encoding="utf-8"):
        disk.write(path, after)
    return path


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


def joined(items):
    """Returns `a, b and c`."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
