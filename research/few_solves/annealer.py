"""Trains the small tasks with `native`, Gurobi and the mock QPU.

Nothing is tuned: all solvers use the damping that the guide recommends to start
with.
"""

import dataclasses

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.comparison import engine
from research.few_solves import study
from research.few_solves.tasks.catalogue import TASKS

NAME = "annealer"
UPDATES = (1, 2, 3, 5, 10, 20)
QUICK_UPDATES = 2
# Number of seeds of each task. They are the first ones of the main study.
SEEDS = {"logistic": 10, "layer-16": 6, "pairs": 6}
DAMPING = 1.0
# Rate of the binary Newton rule of version 0.1.
RATE = 0.2
NUM_READS = 100
# Reads of which `fit_columns` computes the loss.
MAX_READS = 10


class _CountedChip(MockQPU):
    """Counts the calls of the mock QPU."""

    calls = 0

    def sample(self, bqm, **parameters):
        self.calls += 1
        return super().sample(bqm, **parameters)


def _native():
    return kq.backends.get({"name": "native", "preset": "accurate"})


def _gurobi():
    return kq.backends.get("gurobi")


def _qpu():
    return DWaveBackend(sampler=_CountedChip(), num_reads=NUM_READS)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to train.

    Attributes:
        title: String. Its name on the page.
        reference: String. Key of the variant that it is compared with, or
            `""`.
        backend: Function that returns a new backend (optional). `None` means
            that the rule was removed, and only its records are left.
        max_reads: Integer. The argument of `fit_columns`.
    """

    title: str
    reference: str
    backend: object = None
    max_reads: int = 1


VARIANTS = {
    "newton-native": Variant("Newton, native", ""),
    "newton-gurobi": Variant("Newton, Gurobi", "newton-native"),
    "newton-qpu": Variant("Newton, QPU", "newton-native"),
    "mean-native": Variant("Newton, mean, native", ""),
    "mean-qpu": Variant("Newton, mean, QPU", "mean-native"),
    "columns-native": Variant("columns, native", "", _native),
    "columns-gurobi": Variant("columns, Gurobi", "columns-native", _gurobi),
    "columns-qpu": Variant("columns, QPU", "columns-native", _qpu),
    "columns-reads-qpu": Variant(
        f"columns, {MAX_READS} reads, QPU",
        "columns-native",
        _qpu,
        max_reads=MAX_READS,
    ),
}


def key(task, variant):
    """Returns the key of the records of one task and variant."""
    return f"{task}_{variant}"


def run(out, data_dir, quick=False):
    """Performs all runs, and skips those whose records exist.

    Args:
        out: Folder of the records.
        data_dir: Folder of the data, or `None`.
        quick: Boolean. Whether to use few seeds and updates.
    """
    jobs = [
        {
            "key": key(task, name),
            "task": task,
            "variant": name,
            "seed": seed,
        }
        for task, count in SEEDS.items()
        for name, variant in VARIANTS.items()
        for seed in range(2 if quick else count)
        if variant.backend
    ]
    store = study.open_store(out, NAME)
    engine.perform([jobs], _Work(data_dir, quick), store)
    store.pack()


class _Work:
    """Performs runs. Keeps the data of the last task and the last network."""

    def __init__(self, data_dir, quick):
        self._data_dir, self._quick = data_dir, quick
        self._task = self._data = None
        self._key = self._trainer = None

    def __call__(self, job):
        task = TASKS[job["task"]]
        if job["task"] != self._task:
            seeds = range(2 if self._quick else SEEDS[job["task"]])
            self._data = task.load(self._data_dir, list(seeds), self._quick)
            self._task = job["task"]
        if job["key"] != self._key:
            variant = VARIANTS[job["variant"]]
            self._trainer = _Trainer(task.network(None), variant)
            self._key = job["key"]
        last = QUICK_UPDATES if self._quick else max(UPDATES)
        seed = job["seed"]
        found = self._trainer.run(seed, self._data[seed], last)
        return {"results": {str(k): result for k, result in found.items()}}


class _Trainer:
    """Trains a network that is built and traced once, for all seeds.

    Args:
        model: The network.
        settings: A `Variant`.
    """

    def __init__(self, model, settings):
        self._settings = settings
        self._backend = settings.backend()
        self._model = model
        if model.layers[-1].units == 1:
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
        else:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss)

    def run(self, seed, splits, last):
        """Returns the results of a seed by number of updates."""
        self._model.set_weights(self._initial_weights(seed))
        self._calls, self._seconds = self._spent()
        return self._sweeps(splits, last)

    def _initial_weights(self, seed):
        """Returns the same random kernels as the main study."""
        rng = np.random.default_rng([seed, 23])
        return [
            rng.uniform(-1.0, 1.0, array.shape)
            if array.ndim == 2
            else np.zeros(array.shape)
            for array in self._model.get_weights()
        ]

    def _sweeps(self, splits, last):
        results = {}

        def evaluate(sweep, loss):
            del loss
            if sweep in UPDATES:
                results[sweep] = self._evaluated(splits)

        kq.fit_columns(
            self._model,
            *_samples(splits["train"]),
            sweeps=last,
            dampings=DAMPING,
            backend=self._backend,
            max_reads=self._settings.max_reads,
            on_sweep=evaluate,
            verbose=0,
        )
        # It ends when three sweeps change nothing.
        for sweep in UPDATES:
            if sweep <= last and sweep not in results:
                results[sweep] = self._evaluated(splits)
        return results

    def _spent(self):
        """Returns calls and seconds of the mock QPU so far."""
        if not isinstance(self._backend, DWaveBackend):
            return 0, 0.0
        return self._backend.sampler.calls, self._backend.budget.charged

    def _evaluated(self, splits):
        """Returns loss and accuracy, and the use of the mock QPU."""
        calls, seconds = self._spent()
        found = {
            "calls": calls - self._calls,
            "qpu_seconds": round(seconds - self._seconds, 6),
        }
        for name in ("train", "test"):
            x, y = _samples(splits[name])
            outputs = self._model(x, training=False)
            if outputs.shape[1] == 1:
                predicted = outputs.numpy()[:, 0] > 0
                loss = self._model.loss(
                    y.reshape(-1, 1).astype("float32"), outputs
                )
            else:
                predicted = outputs.numpy().argmax(axis=1)
                loss = self._model.loss(y, outputs)
            found[f"{name}_loss"] = round(float(loss), 6)
            found[f"{name}_accuracy"] = round(float((predicted == y).mean()), 6)
        return found


def _samples(split):
    return split.inputs[0][split.rows], split.y[split.rows]
