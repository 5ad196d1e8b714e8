"""Which code made a record.

A record has a hash of the code that made it as its `"code"`. If the code has
changed since, the pages say that the record is older than the code. In Python,
comments, docstrings, the layout of the code and the messages of exceptions do
not count.
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
# Only solvers at D-Wave and the mock QPU use it. It counts only where it is
# named. No stored training uses it, except the method `columns-qpu` of the few
# solves.
ANNEALERS = (
    ROOT / "keras_qpsbgd/backends/dwave",
    ROOT / "keras_qpsbgd/backends/remote.py",
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
            if file.suffix in _SOURCES and (
                path in ANNEALERS or not _is_for_annealers(file)
            ):
                found.update(_content(file).encode())
    return found.hexdigest()[:16]


def _is_for_annealers(file):
    return not {file, *file.parents}.isdisjoint(ANNEALERS)


def _content(file):
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            del node.body[0]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
    return ast.unparse(tree)


def note(older):
    """Returns a line that names what is older than the code, or `""`."""
    if not older:
        return ""
    return f"*Older than the code: {', '.join(older)}.*\n\n"
