"""Callback that records the QUBOs of training and their solutions."""

import contextlib
import datetime
import importlib.metadata
import io
import os
import pathlib
import platform
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd._version import __version__
from keras_qpsbgd.analysis import run as runs
from keras_qpsbgd.backends import GraphBackend
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.callbacks.solver_progress import figures_of_epoch
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import blocks


class QuboRecorder(keras.callbacks.Callback):
    """Callback that records QUBOs and their solutions during `fit`.

    It records some updates of the chosen layers (see `every`): the couplings
    and the fields that the solver received, the states that moved the weights,
    all reads with their energies if the solver returns several, and what the
    solver reported. It also records the settings of the run and the logs of
    each epoch. For a solver on the host, it adds figures over all updates of
    the epoch to these logs: those of `SolverProgress`, the number of calls
    `solver_calls`, and the number of failed solves `solver_failures`.

    With the backend `"sign"`, which uses no couplings, the recorded couplings
    are zero. A layer with several blocks of couplings is recorded as one update
    per block, under the names `dense[0]`, `dense[1]` and so on.

    The record is an `analysis.Run`, in memory or in a file. At all times, the
    file is complete up to the last update, even if the process is killed. Load
    it with `analysis.load_run`.

    `fit` traces the training step again at the start and at the end of the
    recording, so a step without a recorder contains no recording code. XLA
    cannot call the host, so compile the model with `jit_compile=False` on a
    GPU. The recorded logs contain what other callbacks add only if these come
    before this one in the list.

    Args:
        path: String or path (optional). The file to write. An existing file is
            replaced when training starts, so use a new file to continue a run.
            `None` records in memory. Defaults to `None`.
        every: Integer. Records the updates 0, `every`, 2 * `every`, ...,
            counted by `optimizer.iterations`. Defaults to `10`.
        layers: List of strings (optional). The names of the binary layers to
            record. `None` records all of them. Layers with the same name have
            distinct names here, as in `QPSBGD.solver_report`. Defaults to
            `None`.
        reads: Boolean. Whether to record all reads of a solver. If `False`,
            records only the states that moved the weights. Defaults to `True`.

    Attributes:
        run: The `analysis.Run` recorded so far. Each access reads the whole
            record.

    Raises:
        ValueError: If an argument is invalid. `fit` raises it if the optimizer
            is not `QPSBGD`, if the model has no layer with one of the names, if
            the step is compiled with XLA, or if it has two recorders.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential([kq.layers.BinaryDense(1)])
        model.compile(kq.QPSBGD(0.02), "mse")
        recorder = kq.callbacks.QuboRecorder(every=2)
        model.fit(x, y, epochs=5, verbose=0, callbacks=[recorder])
        for update in recorder.run.updates:
            print(update.step, update.layer, update.energies)
        ```
    """

    def __init__(
        self,
        path: str | os.PathLike | None = None,
        every: int = 10,
        layers: Sequence[str] | None = None,
        reads: bool = True,
    ) -> None:
        super().__init__()
        check_number("every", every, at_least=1, whole=True)
        self.path = path
        self.every = every
        self.layers = layers
        self.reads = reads
        self._file: Any = None
        self._history: Any = None
        self._report: Any = None
        self._in_batch = False
        self._begun = False
        self._budget_spent = False
        self._lock = threading.Lock()  # TensorFlow calls `record` in a thread

    @property
    def run(self) -> runs.Run:
        if self._file is None:
            return runs.Run()
        if self.path is not None:
            return runs.load_run(self.path)
        with self._lock:
            content = self._file.getvalue()
        return runs.read_run(io.BytesIO(content[len(runs.HEADER) :]))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = _find_qpsbgd(self.model)
        other = optimizer.recorder
        if isinstance(other, QuboRecorder) and other._is_for(self.model):
            raise ValueError(
                "`fit` can have only one `QuboRecorder`. Received: two in "
                "`callbacks`"
            )
        if self.path is None:
            self._file = io.BytesIO()
        else:
            path = pathlib.Path(self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "wb")
        self._file.write(runs.HEADER)
        self._file.flush()
        self._history = getattr(self.model, "history", None)
        self._in_batch = False
        self._begun = False
        self._budget_spent = False
        if self.model.built:
            self._begin()
        optimizer.recorder = self
        self.model.make_train_function(force=True)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._report = _find_qpsbgd(self.model).solver_report()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._in_batch = True
        # In legacy Keras, `evaluate` in a callback replaces the `History`.
        self._history = getattr(self.model, "history", None)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._in_batch = False
        self._history = getattr(self.model, "history", None)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        optimizer = _find_qpsbgd(self.model)
        figures = {}
        if not isinstance(optimizer.backend, GraphBackend):
            total = optimizer.solver_report().since(self._report).total
            figures = {
                "solver_calls": total.calls,
                "solver_failures": total.failures,
                **figures_of_epoch(optimizer, self._report),
            }
        with self._lock:
            logs = {"epoch": epoch, **(logs or {}), **figures}
            runs.append(self._file, "epoch", logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        with self._lock:
            runs.append(self._file, "end", {})
            if self.path is not None:
                self._file.close()
        _find_qpsbgd(self.model).recorder = None
        self.model.make_train_function(force=True)

    def wants(self, step: Any, layer: str) -> Any:
        """Returns whether to record a layer. Called by the optimizer."""
        if not (self._in_batch and self._is_for(self.model)):
            return False
        # Legacy Keras builds some models in the first step.
        self._begin()
        # A layer with several blocks has a name for each block.
        names = {layer, blocks.layer_name(layer)}
        if self.layers is not None and names.isdisjoint(self.layers):
            return False
        return step % self.every == 0

    def record(
        self,
        step: int,
        layer: str,
        qubo: Qubo,
        states: np.ndarray,
        samples: np.ndarray | None = None,
        sample_energies: np.ndarray | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        """Records a layer. Called by the optimizer."""
        if not self.reads:
            samples = sample_energies = None
        # The update has the energies in `sample_energies`.
        info = {k: v for k, v in (info or {}).items() if k != "energies"}
        update = runs.Update(
            step, layer, qubo, states, samples, sample_energies, info
        )
        with self._lock:
            runs.append_update(self._file, update)

    def budget_spent(self, step: int) -> None:
        """Records that the QPU budget is spent. Called by the optimizer."""
        with self._lock:
            if self._budget_spent or not self._in_batch:
                return
            if self._is_for(self.model):
                self._budget_spent = True
                runs.append(self._file, "budget", {"step": step})

    def _is_for(self, model):
        """Returns whether this object records the current `fit` of a model.

        Keras does not call `on_train_end` after an exception, so the optimizer
        may keep this object. It must not record the updates of another `fit`,
        which has another `History`.
        """
        history = getattr(model, "history", None)
        return self.model is model and self._history is history

    def _begin(self):
        """Checks the names of the layers and writes the settings, once."""
        if self._begun:
            return
        variables = self.model.trainable_variables
        marks = filter(None, map(statistics.mark_of, variables))
        names = statistics.names_of(marks)
        known = list(names.values())
        unknown = [name for name in self.layers or () if name not in known]
        if unknown:
            raise ValueError(
                "`layers` must contain names of trainable binary layers. The "
                f"model has {known}. Received: layers={self.layers!r}"
            )
        with self._lock:
            runs.append(self._file, "settings", _settings(self, names))
        self._begun = True


def _find_qpsbgd(model):
    """Returns the optimizer, even if mixed precision has wrapped it."""
    optimizer = model.optimizer
    found = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(found, QPSBGD):
        raise ValueError(
            "The optimizer of the model must be a `QPSBGD`. Received: "
            f"optimizer={optimizer!r}"
        )
    return found


def _settings(recorder, names):
    """Returns the settings of a run as plain values."""
    optimizer = _find_qpsbgd(recorder.model)
    try:
        config = optimizer.get_config()  # never contains a token
    except (NotImplementedError, TypeError, ValueError):
        # Some solvers and schedules have no configuration.
        config = {
            "name": optimizer.name,
            "backend": {"name": optimizer.backend.name},
            "rule": optimizer.rule,
            "kappa": optimizer.kappa,
            "seed": optimizer.seed,
        }
    chosen = recorder.layers
    versions = {
        "keras_qpsbgd": __version__,
        "tensorflow": tf.__version__,
        "keras": _keras.version(),
        "python": platform.python_version(),
    }
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["dwave-system"] = importlib.metadata.version("dwave-system")
    return {
        "date": datetime.datetime.now().astimezone().isoformat("T", "seconds"),
        "versions": versions,
        "model": recorder.model.name,
        "optimizer": config,
        "layers": {
            name: {
                "num_variables": mark.num_variables,
                "num_columns": mark.num_columns,
                "kernel_shape": [int(size) for size in mark.kernel.shape],
                "recorded": chosen is None or name in chosen,
            }
            for mark, name in names.items()
        },
        "every": recorder.every,
        "reads": bool(recorder.reads),
    }
