"""The record of a training run: its QUBOs, solutions and logs.

`callbacks.QuboRecorder` creates it, in memory or in a file. `analysis` and the
report page read it. A file is a header followed by records. Each record is a
length, a checksum and a NumPy archive (`.npz`). If the process is killed, the
file can be read up to its last complete record.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import struct
import zlib
from typing import Any
from typing import BinaryIO
from typing import Optional

import numpy as np

from keras_qpsbgd.qubo import Qubo

HEADER = b"keras_qpsbgd run 1\n"
_FRAME = struct.Struct("<QI")  # length and CRC-32 of the payload


@dataclasses.dataclass
class Update:
    """The QUBO of one layer in one update, and its solution.

    Attributes:
        step: Integer. Number of updates before this one.
        layer: String. Name of the layer.
        qubo: The `Qubo` that the solver received, after scaling.
        states: Array (n, m) of +1 and -1, and 0 where a weight was held.
        samples: Array (reads, n, m) of all reads, or `None` if the backend
            returns a single state.
        sample_energies: Array (reads, m) of the energies of all reads.
        info: Dictionary of plain values that the backend reported.
    """

    step: int
    layer: str
    qubo: Qubo
    states: np.ndarray
    samples: Optional[np.ndarray] = None
    sample_energies: Optional[np.ndarray] = None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def energies(self) -> np.ndarray:
        """Energies (m,) of the states. Held weights count as +1."""
        return self.qubo.energy(np.where(self.states == 0, 1, self.states))


@dataclasses.dataclass
class Run:
    """A recorded training run.

    Attributes:
        settings: Dictionary of package versions, the configuration of the
            optimizer and the sizes of the layers.
        updates: List of `Update`, in the order of training.
        epochs: List of dictionaries, the logs of each epoch.
        complete: Boolean. `False` if training did not end, or if the file was
            cut off.
        budget_spent_at: Integer (optional). The first step that the QPU budget
            did not cover.
    """

    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    updates: list[Update] = dataclasses.field(default_factory=list)
    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    complete: bool = False
    budget_spent_at: Optional[int] = None

    @property
    def layers(self) -> list[str]:
        """Names of the recorded layers, in the order of their first update."""
        return list(dict.fromkeys(update.layer for update in self.updates))

    def of_layer(self, layer: str) -> list[Update]:
        """Returns the updates of one layer.

        Args:
            layer: String. Name of the layer, or of one of its blocks, such as
                `"dense[0]"`.

        Raises:
            ValueError: If the layer was not recorded, or if it has several
                blocks, each with a QUBO of its own.
        """
        blocks = [n for n in self.layers if n.startswith(f"{layer}[")]
        if blocks:
            raise ValueError(
                f"`layer` must be one of {blocks}, because the layer has a "
                f"QUBO for each of these blocks. Received: layer={layer!r}"
            )
        if layer not in self.layers:
            raise ValueError(
                f"`layer` must be one of {self.layers}. Received: "
                f"layer={layer!r}"
            )
        return [update for update in self.updates if update.layer == layer]


def append(
    file: BinaryIO,
    kind: str,
    meta: dict[str, Any],
    arrays: dict[str, Any] | None = None,
) -> None:
    """Appends a record to a file.

    Args:
        file: A binary file that is open for writing and starts with `HEADER`.
        kind: String. `"settings"`, `"update"`, `"epoch"`, `"budget"` or
            `"end"`.
        meta: Dictionary of plain values.
        arrays: Dictionary of arrays (optional). Defaults to `None`.
    """
    text = json.dumps({"kind": kind, **_plain(meta)})
    content = np.frombuffer(text.encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, meta=content, **arrays or {})
    payload = buffer.getvalue()
    file.write(_FRAME.pack(len(payload), zlib.crc32(payload)))
    file.write(payload)
    # Once flushed, the record survives if the process is killed.
    file.flush()


def append_update(file: BinaryIO, update: Update) -> None:
    """Appends an update to a file."""
    qubo = update.qubo
    arrays = {
        "couplings": qubo.couplings,
        "fields": qubo.fields,
        "offset": qubo.offset,
        "states": update.states.astype(np.int8),
    }
    if update.samples is not None:
        arrays["samples"] = update.samples.astype(np.int8)
        arrays["sample_energies"] = update.sample_energies
    meta = {"step": update.step, "layer": update.layer, "info": update.info}
    append(file, "update", meta, arrays)


def load_run(path: str | os.PathLike) -> Run:
    """Loads a file written by `callbacks.QuboRecorder`.

    The file may be incomplete, because training is still running or was killed.
    The run then ends with the last complete record.

    Args:
        path: Path of the file.

    Returns:
        A `Run`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not a recorded run.
    """
    with open(path, "rb") as file:
        if file.read(len(HEADER)) != HEADER:
            raise ValueError(
                "`path` must be a file written by `callbacks.QuboRecorder`. "
                f"Received: path={os.fspath(path)!r}"
            )
        return read_run(file)


def read_run(file: BinaryIO) -> Run:
    """Reads the records that follow the header of a file."""
    run = Run()
    for meta, arrays in _records(file):
        kind = meta.pop("kind")
        if kind == "settings":
            run.settings = meta
        elif kind == "epoch":
            run.epochs.append(meta)
        elif kind == "update":
            run.updates.append(_update(meta, arrays))
        elif kind == "budget":
            run.budget_spent_at = meta["step"]
        elif kind == "end":
            run.complete = True
    return run


def _records(file):
    """Yields complete records and stops at the first damaged one."""
    while True:
        frame = file.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            return
        length, checksum = _FRAME.unpack(frame)
        payload = file.read(length)
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        yield json.loads(arrays.pop("meta").tobytes()), arrays


def _update(meta, arrays):
    qubo = Qubo(arrays["couplings"], arrays["fields"], arrays["offset"])
    return Update(
        meta["step"],
        meta["layer"],
        qubo,
        arrays["states"],
        arrays.get("samples"),
        arrays.get("sample_energies"),
        meta["info"],
    )


def _plain(value):
    """Converts NumPy values to values that JSON can store."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
