"""Performs the runs of the experiment in parallel processes.

    OUT/runs.jsonl.gz                  records of finished commands
    OUT/runs.jsonl                     records of the command in progress
    OUT/models/<task>-<seed>.npz       weights of the float networks

Every record has a `key`, made of the task, the seed, the kind of run and its
settings. Runs whose key exists are not repeated, so that an interrupted command
can be resumed.
"""

import contextlib
import io
import json
import os
import pathlib
import time

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import disk
from keras_qpsbgd.comparison import engine
from keras_qpsbgd.comparison.records import Store
from keras_qpsbgd.comparison.records import read_json
from research.experiments.reproduce import write_meta
from research.quantization import quantizing
from research.quantization import tasks
from research.quantization.tasks import Binary
from research.quantization.tasks import Float

SETTINGS = "settings.json"
TUNING_SEED = 100


def open_store(out):
    """Returns the `Store` of the records in a folder."""
    return Store(pathlib.Path(out, "runs.jsonl"), ("key",))


def run(names, seeds, out, data_dir=None, quick=False, processes=None):
    """Performs all missing runs.

    Args:
        names: Names of tasks.
        seeds: Integer. Number of float networks per task.
        out: Folder of the experiment.
        data_dir: Folder of the data (optional).
        quick: Boolean. Short runs that only show that it works.
        processes: Integer (optional). Defaults to the number of cores.

    Raises:
        ValueError: If `out` has results of other settings.
    """
    out = pathlib.Path(out)
    _check_settings(out, quick)
    store = open_store(out)
    before = len(store)
    work = Work(out, data_dir, quick)
    pairs = [(name, s) for s in (TUNING_SEED, *range(seeds)) for name in names]
    os.environ.update(engine.environment(1))
    try:
        for title, jobs_of in (
            ("float networks", _float_jobs),
            ("quantization, and the choice of learning rates", _quantize_jobs),
            ("training", _train_jobs),
        ):
            print(f"\n{title}", flush=True)
            jobs = [job for pair in pairs for job in jobs_of(*pair, store)]
            engine.perform([jobs], work, store, processes)
    finally:
        store.pack()
        if len(store) > before:
            flags = ["--quick"] if quick else []
            command = ["python -m research quantize", *flags]
            write_meta(out, " ".join(command))


def _check_settings(out, quick):
    path = out / SETTINGS
    settings = {"quick": quick}
    if path.exists() and read_json(path) != settings:
        raise ValueError(
            f"The folder {out} has results of other options. Choose another "
            f"folder with `--output`. Received: quick={quick}"
        )
    disk.write(path, json.dumps(settings) + "\n")


# Jobs


def _job(name, seed, kind, **settings):
    key = "/".join(map(str, (name, seed, kind, *settings.values())))
    return {"key": key, "task": name, "seed": seed, "kind": kind, **settings}


def _float_jobs(name, seed, store):
    del store
    return [_job(name, seed, "float")]


def _quantize_jobs(name, seed, store):
    """The quantized networks, and the training runs of the tuning seed."""
    if seed == TUNING_SEED:
        return [
            _train_job(name, seed, bits, start, optimizer, rate)
            for bits, start, optimizer in _trainings(name)
            for rate in tasks.TASKS[name].grids[start, optimizer].rates
        ]
    task = tasks.TASKS[name]
    jobs = [
        _job(name, seed, "quantize", bits=bits, method=method)
        for bits in task.bits
        for method in quantizing.METHODS
    ]
    if 4 in task.bits and not task.is_graph:
        jobs.append(
            _job(name, seed, "keras", bits=4, method=quantizing.KERAS_INT4)
        )
    # Keras's GPTQ takes minutes, so only one network is quantized with it.
    if task.keras_gptq and seed == 0:
        jobs += [
            _job(name, seed, "keras", bits=bits, method=quantizing.KERAS_GPTQ)
            for bits in quantizing.KERAS_GPTQ_BITS
        ]
    return jobs


def _train_jobs(name, seed, store):
    """The training runs with the chosen rates."""
    if seed == TUNING_SEED:
        return []
    jobs = []
    for bits, start, optimizer in _trainings(name):
        chosen = {}
        for epochs in sorted(tasks.EPOCHS[start]):
            rate = chosen_rate(
                store.records, name, bits, start, optimizer, epochs
            )
            chosen[rate] = epochs
        jobs += [
            {
                **_train_job(name, seed, bits, start, optimizer, rate),
                "epochs": epochs,
            }
            for rate, epochs in chosen.items()
        ]
    return jobs


def _trainings(name):
    """Returns all combinations of bits, starts and optimizers."""
    task = tasks.TASKS[name]
    return [
        (bits, start, optimizer)
        for bits in task.tuned_bits
        for start in task.starts
        for optimizer in (tasks.ADAM, tasks.QPSBGD)
    ]


def _train_job(name, seed, bits, start, optimizer, rate):
    job = _job(
        name,
        seed,
        "train",
        bits=bits,
        start=start,
        optimizer=optimizer,
        rate=rate,
    )
    return {**job, "epochs": max(tasks.EPOCHS[start])}


def chosen_rate(found, task, bits, start, optimizer, epochs):
    """Returns the rate with the best validation accuracy on the tuning seed.

    Args:
        found: List of records.
        task: Name of the task.
        bits: Integer.
        start: `QUANTIZED` or `SCRATCH`.
        optimizer: Name of the optimizer.
        epochs: Integer. Number of epochs after which the accuracy counts.
    """
    rates = {
        record["rate"]: record["validation"][epochs - 1]
        for record in found
        if record["kind"] == "train"
        and record["seed"] == TUNING_SEED
        and record["task"] == task
        and record["bits"] == bits
        and record["start"] == start
        and record["optimizer"] == optimizer
    }
    # Of equals, always the same one, in any order of the records.
    return max(sorted(rates, key=str), key=rates.get)


# In the processes


class Work:
    """Performs runs. Keeps the networks of the last task and seed.

    Args:
        out: Folder of the experiment.
        data_dir: Folder of the data.
        quick: Boolean. Short runs that only show that it works.
    """

    def __init__(self, out, data_dir=None, quick=False):
        self._out = pathlib.Path(out)
        self._data_dir, self._quick = data_dir, quick
        self._networks = None

    def __call__(self, job):
        name, seed = job["task"], job["seed"]
        with contextlib.ExitStack() as stack:
            if tasks.TASKS[name].is_graph:
                stack.enter_context(kq.spektral.enable_keras3())
            if self._networks is None or self._networks.name != (name, seed):
                self._networks = _Networks(
                    self._out, name, seed, self._data_dir, self._quick
                )
            perform = getattr(self._networks, f"make_{job['kind']}")
            return perform(job)


class _Networks:
    """The networks of a task and a seed.

    Args:
        out: Folder of the experiment.
        name: Name of the task.
        seed: Integer. `TUNING_SEED` chooses learning rates on validation data;
            other seeds use the chosen ones.
        data_dir: Folder of the data.
        quick: Boolean.
    """

    def __init__(self, out, name, seed, data_dir, quick):
        self.name = name, seed
        self._path = out / "models" / f"{name}-{seed}.npz"
        self._task = tasks.TASKS[name]
        self._seed, self._quick = seed, quick
        self._data = tasks.load(name, data_dir, quick)
        self._model = None
        self._quantized = {}

    def _accuracies(self, model):
        found = {"validation": self._data.accuracy(model, "validation")}
        if self._seed != TUNING_SEED:
            found["test"] = self._data.accuracy(model, "test")
        return found

    def make_float(self, job):
        """Trains the float network and saves its weights."""
        del job
        model = self._new_model()
        epochs = 1 if self._quick else self._task.epochs
        rate = keras.optimizers.schedules.CosineDecay(
            self._task.rate, epochs * self._data.steps
        )
        _compile(model, keras.optimizers.Adam(rate))
        start = time.process_time()
        for _ in range(epochs):
            self._data.fit_epoch(model)
        seconds = time.process_time() - start
        content = io.BytesIO()
        np.savez(content, *model.get_weights())
        disk.write(self._path, content.getvalue())
        self._model = model
        return {"cpu": seconds, **self._accuracies(model)}

    def _new_model(self):
        keras.utils.set_random_seed(self._seed)
        return self._task.build(Float, self._data)

    def _float_model(self):
        """Returns the float network, read from its file or trained again."""
        if self._model is None and self._path.exists():
            self._model = self._new_model()
            with np.load(self._path) as found:
                weights = [found[name] for name in found.files]
            self._model.set_weights(weights)
        elif self._model is None:
            self.make_float(None)
        return self._model

    def make_quantize(self, job):
        """Quantizes with one method. `qubo` also measures the others."""
        bits, method = job["bits"], job["method"]
        ablation, proofs = [], []

        def observe(statistics):
            if method != "qubo":
                return
            error, qubo = quantizing.without_qubo(statistics, bits)
            ablation.append(error)
            proof = None
            if quantizing.is_provable(qubo):
                with contextlib.suppress(kq.backends.BackendUnavailable):
                    proof = quantizing.prove(qubo, self._seed)
            proofs.append(proof)

        quantized, report, seconds = quantizing.quantize(
            self._float_model(),
            self._data.calibration,
            bits,
            method,
            self._seed,
            observe,
        )
        rows = quantizing.layer_rows(report, method)
        for row, error, proof in zip(rows, ablation, proofs):
            row["errors"][quantizing.SCALES_ONLY] = error
            if proof is not None:
                row["proof"] = proof
        if method == "qubo":
            self._quantized[bits] = quantized
        return {
            "layers": rows,
            "compression": report.compression,
            "cpu": seconds,
            **self._accuracies(quantized),
        }

    def make_keras(self, job):
        """Quantizes with a method of Keras."""
        model = self._float_model()
        start = time.process_time()
        if job["method"] == quantizing.KERAS_INT4:
            found = quantizing.keras_int4(model)
        else:
            found = quantizing.keras_gptq(
                model, self._data.calibration, job["bits"]
            )
        seconds = time.process_time() - start
        return {"cpu": seconds, **self._accuracies(found)}

    def make_train(self, job):
        """Trains a quantized network, or one from scratch."""
        bits, start, rate = job["bits"], job["start"], job["rate"]
        keras.utils.set_random_seed(self._seed)
        if start == tasks.QUANTIZED:
            trained = self._quantized_model(bits)
        else:
            trained = self._task.build(Binary(bits), self._data)
        if job["optimizer"] == tasks.ADAM:
            used = keras.optimizers.Adam(rate)
        else:
            grid = self._task.grids[start, job["optimizer"]]
            real = keras.optimizers.Adam(grid.real_rate)
            used = kq.QPSBGD(rate, real_optimizer=real, seed=self._seed)
        weights = trained.get_weights()
        _compile(trained, used)
        curve = []
        begin = time.process_time()
        for _ in range(job["epochs"]):
            self._data.fit_epoch(trained)
            curve.append(self._accuracies(trained))
        seconds = time.process_time() - begin
        trained.set_weights(weights)  # the quantized model is used again
        curves = {key: [point[key] for point in curve] for key in curve[0]}
        return {"cpu": seconds, **curves}

    def _quantized_model(self, bits):
        if bits not in self._quantized:
            self._quantized[bits], _, _ = quantizing.quantize(
                self._float_model(),
                self._data.calibration,
                bits,
                "qubo",
                self._seed,
            )
        return self._quantized[bits]


def _compile(model, optimizer):
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Compilation by XLA takes longer than the training of small networks.
        jit_compile=False,
    )
