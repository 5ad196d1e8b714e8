"""The text of the transformer: the documentation of Python's standard library.

    python -m research.quantization.text results/quantize/networks/text.xz

writes the language reference of `pydoc_data.topics` and the docstrings of the
standard library's modules, classes and functions, each text once and in a
random order. The stored file was written with Python 3.11. This module needs
neither TensorFlow nor JAX.
"""

import importlib
import inspect
import lzma
import pathlib
import sys
import warnings

import numpy as np

# The last share of the text is for tests, the share before it for validation.
TEST, VALIDATION = 0.08, 0.02
FIRST, LAST = 32, 126  # printable ASCII characters
NUM_TOKENS = LAST - FIRST + 2  # and the line break, token 0
# Modules that act when they are imported, or that may be missing.
LEFT_OUT = ("antigravity", "this", "idlelib", "tkinter", "turtle")


def load(path):
    """Returns the tokens for training, validation and tests.

    Args:
        path: Path of the compressed text.

    Returns:
        Tuple of three uint8 arrays.
    """
    content = lzma.decompress(pathlib.Path(path).read_bytes())
    tokens = np.frombuffer(content, np.uint8)
    tokens = np.where(tokens < FIRST, 0, tokens - (FIRST - 1)).astype(np.uint8)
    begin = round(len(tokens) * (1 - TEST - VALIDATION))
    end = round(len(tokens) * (1 - TEST))
    return tokens[:begin], tokens[begin:end], tokens[end:]


def windows(tokens, length):
    """Returns consecutive windows of `length + 1` tokens that overlap in one.

    The first `length` tokens of a window are inputs, the last ones targets.
    """
    count = (len(tokens) - 1) // length
    begin = length * np.arange(count)[:, None]
    return tokens[begin + np.arange(length + 1)].astype(np.int32)


def write(path):
    """Writes the text of this version of Python."""
    from pydoc_data.topics import topics

    found = dict.fromkeys(topics[name] for name in sorted(topics))
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in LEFT_OUT:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                module = importlib.import_module(name)
            except ImportError:  # of another system
                continue
        found.update(dict.fromkeys(_docstrings(module, name, set())))
    texts = list(found)
    order = np.random.default_rng(0).permutation(len(texts))
    text = "\n\n".join(texts[index] for index in order).encode(
        "ascii", "replace"
    )
    keep = bytes([*b"\n", *range(FIRST, LAST + 1)])
    text = text.translate(None, bytes(set(range(256)) - set(keep)))
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text, preset=9))


def _docstrings(found, module, seen):
    """Yields the docstrings of a module or class and of what it defines."""
    text = inspect.getdoc(found)
    if text:
        yield text
    for _, value in sorted(getattr(found, "__dict__", {}).items()):
        is_own = getattr(value, "__module__", module) == module
        if not callable(value) or not is_own or id(value) in seen:
            continue
        seen.add(id(value))
        if inspect.isclass(value):
            yield from _docstrings(value, module, seen)
        elif inspect.getdoc(value):
            yield inspect.getdoc(value)


if __name__ == "__main__":
    write(sys.argv[1])
