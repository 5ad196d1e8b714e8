"""Which code made a record.

A record has a hash of the code that made it as its `"code"`. If the code has
changed since, the pages say that the record is older than the code. Comments,
docstrings and the layout of the code do not count.
"""

import ast
import functools
import hashlib
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
# What every training with binary layers uses.
TRAINING = (
    "keras_qpsbgd/backends",
    "keras_qpsbgd/layers",
    "keras_qpsbgd/optimizers",
    "keras_qpsbgd/qubo",
)
_SOURCES = (".py", ".c", ".h")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


@functools.cache
def version(*paths):
    """Returns a hash of the code in files and folders of this repository."""
    found = hashlib.sha256()
    for path in paths:
        path = ROOT / path
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        if not files:
            raise ValueError(f"There is no such code. Received: {path}")
        for file in files:
            if file.suffix in _SOURCES:
                found.update(_content(file).encode())
    return found.hexdigest()[:16]


def _content(file):
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            del node.body[0]
    return ast.unparse(tree)


def note(older):
    """Returns a line that names what is older than the code, or `""`."""
    if not older:
        return ""
    return f"*Older than the code: {', '.join(older)}.*\n\n"
