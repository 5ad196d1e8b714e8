"""Trains the small tasks with `native`, Gurobi and the mock QPU.

Nothing is tuned: all solvers use the damping that the guide recommends to start
with.
"""

import dataclasses

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.comparison import engine
from research.few_solves import study
from research.few_solves.methods import Method
from research.few_solves.methods import columns
from research.few_solves.tasks import TASKS
from research.few_solves.training import Trainer
from research.fingerprint import fingerprint
from research.fingerprint import stamp

NAME = "annealer"
UPDATES = (1, 2, 3, 5, 10, 20)
# Number of seeds of each task. They are the first ones of the main study.
SEEDS = {"logistic": 10, "layer-16": 6, "pairs": 6}
DAMPING = 1.0
NUM_READS = 100
# Reads of which `fit_columns` computes the loss.
MAX_READS = 10
# What determines a run, see `fingerprint`.
CODE = (
    *study.CODE,
    "research.few_solves.annealer.VARIANTS",
    "research.few_solves.annealer._Trainer",
    "keras_qpsbgd.backends.host.gurobi.GurobiBackend",
)


class _CountedChip(MockQPU):
    """Counts the calls of the mock QPU."""

    calls = 0

    def sample(self, bqm, **parameters):
        self.calls += 1
        return super().sample(bqm, **parameters)


def _native():
    return kq.backends.get({"name": "native", "preset": "once"})


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

    def method(self):
        """Returns the `Method`, as in the main study."""
        solver = columns(self.backend, max_reads=self.max_reads)
        return Method(self.title, [[DAMPING]], columns=solver)


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
    store = stamp(study.open_store(out, NAME), fingerprint(CODE))
    methods = {
        name: variant.method()
        for name, variant in VARIANTS.items()
        if variant.backend
    }
    for name, count in SEEDS.items():
        seeds = range(2 if quick else count)
        task = dataclasses.replace(TASKS[name], methods=methods, counts=UPDATES)
        jobs = [
            {
                "key": key(name, method),
                "method": method,
                "configuration": [DAMPING],
                "seed": seed,
            }
            for method in methods
            for seed in seeds
        ]
        work = study.Work(task, data_dir, list(seeds), quick, _Trainer)
        print(f"\n{name}", flush=True)
        engine.perform([jobs], work, store)
    store.pack()


class _Trainer(Trainer):
    """Trains like the main study, and counts the use of the mock QPU."""

    def run(self, seed, splits, counts):
        """Returns the results of a seed by number of updates."""
        self._before = self._spent()
        return super().run(seed, splits, counts)

    def _spent(self):
        """Returns calls and seconds of the mock QPU so far."""
        backend = self._columns["backend"]
        if not isinstance(backend, DWaveBackend):
            return 0, 0.0
        return backend.sampler.calls, backend.budget.charged

    def _evaluated(self, splits):
        calls, seconds = self._spent()
        return {
            "calls": calls - self._before[0],
            "qpu_seconds": round(seconds - self._before[1], 6),
            **super()._evaluated(splits),
        }
