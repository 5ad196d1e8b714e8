"""Performs the runs of the experiment.

    OUT/runs.jsonl.gz    records of finished commands
    OUT/runs.jsonl       records of the command in progress
    OUT/networks/        the text, and the networks that a GPU trained

Runs that have a record are not repeated, so that an interrupted command can be
resumed. Low numbers of bits come first, and all tasks of a seed.
"""

import contextlib
import os
import pathlib

import keras_qpsbgd as kq
from research import code_version
from research.engine import engine
from research.engine.records import Store
from research.experiments.reproduce import write_meta
from research.quantization import methods
from research.quantization import tasks

FLOAT_BITS = 32
CODE = (
    "keras_qpsbgd/backends",
    "keras_qpsbgd/quantization",
    "research/quantization/methods.py",
    "research/quantization/tasks.py",
)


def open_store(out, code=None):
    """Returns the `Store` of the records in a folder."""
    names = ("task", "seed", "bits", "method")
    return Store(pathlib.Path(out, "runs.jsonl"), names, code=code)


def run(names, seeds, out, data_dir=None, quick=False, processes=None):
    """Performs all missing runs.

    Args:
        names: Names of tasks.
        seeds: Integer. Number of float networks per task.
        out: Folder of the experiment.
        data_dir: Folder of the data (optional).
        quick: Boolean. Short runs that only show that it works.
        processes: Integer (optional). Defaults to the number of cores.
    """
    store = open_store(out, code_version.version(*CODE))
    before = len(store)
    os.environ.update(engine.environment(1))
    jobs = [
        job
        for bits in tasks.BITS
        for seed in range(seeds)
        for name in names
        for job in jobs_of(name, seed, bits)
    ]
    try:
        engine.perform([jobs], Work(data_dir, quick), store, processes)
    finally:
        store.pack()
        if len(store) > before:
            flag = " --quick" if quick else ""
            write_meta(pathlib.Path(out), f"python -m research quantize{flag}")


def jobs_of(name, seed, bits):
    """Returns the jobs of a network and a number of bits."""
    wanted = [(bits, method) for method in methods.methods_of(bits)]
    if bits == tasks.BITS[0]:
        wanted.insert(0, (FLOAT_BITS, methods.FLOAT))
    if tasks.TASKS[name].has_norms:
        unfolded = methods.methods_of(bits, methods.UNFOLDED)
        wanted += [(bits, method) for method in unfolded]
    if bits == 4 and tasks.TASKS[name].keras_int4:
        wanted.append((bits, methods.KERAS_INT4))
    return [
        {"task": name, "seed": seed, "bits": bits, "method": method}
        for bits, method in wanted
    ]


class Work:
    """Performs jobs. Keeps the float networks.

    Args:
        data_dir: Folder of the data.
        quick: Boolean. Short runs that only show that it works.
    """

    def __init__(self, data_dir=None, quick=False):
        self._data_dir, self._quick = data_dir, quick
        self._models = {}

    def __call__(self, job):
        name, seed = job["task"], job["seed"]
        with contextlib.ExitStack() as stack:
            if tasks.TASKS[name].is_graph:
                stack.enter_context(kq.spektral.enable_keras3())
            data = tasks.load(name, self._data_dir, self._quick)
            if (name, seed) not in self._models:
                model = tasks.float_network(name, seed, data)
                self._models[name, seed] = model
            model = self._models[name, seed]
            if job["method"] == methods.FLOAT:
                return {
                    "test": data.measure(model),
                    "weights": int(model.count_params()),
                }
            quantized, values = methods.quantize(
                model, data.calibration, job["bits"], job["method"], seed
            )
            return {"test": data.measure(quantized), **values}
