"""Stores the result of each layer in a folder, to resume a run.

The file of a layer contains its levels, scales and report, and a fingerprint of
everything they depend on. A file with a different fingerprint is ignored and
replaced.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import zipfile
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd import disk
from keras_qpsbgd.quantization.numerics.layer import LayerResult

ARRAYS = ("levels", "scales", "bias_change")


class FinishedLayers:
    """Reads and writes the results of the layers of one quantization.

    Layers must be read or written in order, because the result of a layer
    depends on the layers before it.

    Args:
        folder: Path of the folder (optional). `None` stores nothing.
        settings: Dictionary of plain values that all results depend on.
        model: The given model.
        batches: List of batches of inputs.

    Raises:
        ValueError: If `folder` is a file.
    """

    def __init__(
        self,
        folder: Any,
        settings: dict[str, Any],
        model: Any,
        batches: list[Any],
    ) -> None:
        self._folder = None
        if folder is None:
            return
        self._folder = pathlib.Path(os.path.expanduser(os.fspath(folder)))
        if self._folder.exists() and not self._folder.is_dir():
            raise ValueError(
                "`out` must be the path of a folder. "
                f"Received: out={os.fspath(folder)!r}, which is a file"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        self._state = hashlib.sha256()
        text = json.dumps(settings, sort_keys=True, default=repr)
        self._state.update(text.encode())
        for weight in model.get_weights():
            self._state.update(np.ascontiguousarray(weight).data)
        for batch in batches:
            for leaf in tf.nest.flatten(batch, expand_composites=True):
                values = np.ascontiguousarray(leaf.numpy())
                if values.dtype == object:  # strings
                    values = values.astype(bytes)
                self._state.update(values.data)

    def read(self, name: str, bits: int) -> LayerResult | None:
        """Returns the stored result of the next layer, or `None`."""
        if self._folder is None:
            return None
        self._state.update(f"{name}/{bits}".encode())
        try:
            with np.load(self._path(name), allow_pickle=False) as file:
                content = json.loads(str(file["content"]))
                if content.pop("fingerprint") != self._state.hexdigest():
                    return None
                arrays = {key: file[key] for key in ARRAYS}
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            return None  # missing or incomplete
        return self._noted(LayerResult(**arrays, **content))

    def write(self, name: str, result: LayerResult) -> None:
        """Stores the result of the layer that was last passed to `read`."""
        if self._folder is None:
            return
        content = {
            field.name: getattr(result, field.name)
            for field in dataclasses.fields(result)
            if field.name not in ARRAYS
        }
        content["fingerprint"] = self._state.hexdigest()
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            content=json.dumps(content),
            **{key: getattr(result, key) for key in ARRAYS},
        )
        disk.write(self._path(name), buffer.getvalue())
        self._noted(result)

    def _noted(self, result):
        """Includes a result in all later fingerprints."""
        self._state.update(np.ascontiguousarray(result.levels).data)
        self._state.update(np.ascontiguousarray(result.scales).data)
        return result

    def _path(self, name):
        # The name may contain slashes.
        return self._folder / f"{name.replace('/', '.')}.npz"
