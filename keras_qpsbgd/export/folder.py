"""SavedModel folders."""

import contextlib
import io
import os
import pathlib
import secrets
import shutil
from typing import Any

from keras_qpsbgd.export import stock

# The file that every SavedModel has.
MAIN_FILE = "saved_model.pb"


def saved_model(model: Any, path: Any) -> None:
    """Writes a model as a SavedModel folder, which does not need this package.

    The folder contains `inference_model(model)`. It is written next to `path`
    and renamed at the end, so an existing SavedModel is never half-overwritten.

    Args:
        model: Keras model, as for `inference_model`.
        path: Path of the folder. If it exists, it must be a SavedModel, which
            is replaced. Missing parent folders are created, and `~` is
            expanded.

    Raises:
        ValueError: If a layer is not supported, or if `path` is anything other
            than a SavedModel.

    Example:
        ```python
        import tensorflow as tf

        kq.export.saved_model(model, "digits")
        loaded = tf.saved_model.load("digits")  # keep it: it owns the weights
        loaded.serve(x)
        ```
    """
    stock.check(model)
    given = os.fspath(path)
    path = pathlib.Path(os.path.expanduser(given))
    exists = os.path.lexists(path)
    if not given or exists and not (path / MAIN_FILE).is_file():
        raise ValueError(
            "`path` must be a new folder or a SavedModel. "
            f"Received: path={given!r}"
        )
    replacement = stock.inference_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    number = secrets.token_hex(8)
    new, old = (
        path.with_name(f".{path.name}-{number}.{kind}")
        for kind in ("new", "old")
    )
    try:
        export(replacement, str(new))
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.replace(old, path)
            raise
    finally:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)


def export(model: Any, path: str) -> None:
    """Exports a model of stock layers, without the messages of Keras."""
    with contextlib.redirect_stdout(io.StringIO()):
        model.export(path)
