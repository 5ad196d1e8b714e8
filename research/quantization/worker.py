"""The process that performs all missing runs of a task and a seed.

python -m research.quantization.worker JSON_ARGUMENTS
"""

import contextlib
import json
import os
import sys
import threading
import time

from tensorflow import keras

import keras_qpsbgd as kq
from research.quantization import keras_own
from research.quantization import quantizing
from research.quantization import tasks
from research.quantization.networks import Binary
from research.quantization.networks import Float
from research.quantization.records import Journal
from research.quantization.records import read

TUNING_SEED = 100


class Worker:
    """Performs the runs of a task and a seed.

    Args:
        out: Folder of the experiment.
        task: Name of the task.
        seed: Integer. `TUNING_SEED` chooses learning rates on validation data;
            other seeds use the chosen ones.
        data_dir: Folder of the data.
        quick: Boolean. Short runs that only show that it works.
    """

    def __init__(self, out, task, seed, data_dir=None, quick=False):
        self.out, self.name, self.seed = out, task, seed
        self.task = tasks.TASKS[task]
        self.data = tasks.load(task, data_dir, quick)
        self.quick = quick
        self.journal = Journal(out, task, seed, _show)
        self._quantized = {}

    def run(self):
        model = self.float_model()
        if self.seed != TUNING_SEED:
            for bits in self.task.bits:
                for method in quantizing.METHODS:
                    if not self.journal.has("quantize", bits, method):
                        self.quantize(model, bits, method)
            self.keras_methods(model)
        for bits in self.task.tuned_bits:
            self.train_all(model, bits)

    def float_model(self):
        """Returns the float network, trained or read from its file."""
        keras.utils.set_random_seed(self.seed)
        model = self.task.build(Float, self.data)
        if self.journal.has("float") and self.journal.load_weights(model):
            return model
        epochs = 1 if self.quick else self.task.epochs
        rate = keras.optimizers.schedules.CosineDecay(
            self.task.rate, epochs * self.data.steps
        )
        _compile(model, keras.optimizers.Adam(rate))
        start = time.process_time()
        for _ in range(epochs):
            self.data.fit_epoch(model)
        seconds = time.process_time() - start
        self.journal.save_weights(model)
        if not self.journal.has("float"):
            self.journal.add(
                "float", kind="float", cpu=seconds, **self.accuracies(model)
            )
        return model

    def accuracies(self, model):
        found = {"validation": self.data.accuracy(model, "validation")}
        if self.seed != TUNING_SEED:
            found["test"] = self.data.accuracy(model, "test")
        return found

    def quantize(self, model, bits, method):
        """Quantizes with one method. `qubo` also measures the others."""
        ablation, proofs = [], []

        def observe(statistics):
            if method != "qubo":
                return
            error, qubo = quantizing.without_qubo(statistics, bits)
            ablation.append(error)
            proof = None
            if quantizing.is_provable(qubo):
                with contextlib.suppress(kq.backends.BackendUnavailable):
                    proof = quantizing.prove(qubo, self.seed)
            proofs.append(proof)

        quantized, report, seconds = quantizing.quantize(
            model, self.data.calibration, bits, method, self.seed, observe
        )
        rows = quantizing.layer_rows(report, method)
        for row, error, proof in zip(rows, ablation, proofs):
            row["errors"][quantizing.SCALES_ONLY] = error
            if proof is not None:
                row["proof"] = proof
        if method == "qubo":
            self._quantized[bits] = quantized
        self.journal.add(
            "quantize",
            bits,
            method,
            kind="quantize",
            bits=bits,
            method=method,
            layers=rows,
            compression=report.compression,
            cpu=seconds,
            **self.accuracies(quantized),
        )

    def keras_methods(self, model):
        """Runs the methods of Keras that apply."""
        if self.task.is_graph:
            return
        runs = {}
        if 4 in self.task.bits:
            runs[4, keras_own.INT4] = lambda: keras_own.int4(model)
        # Keras's GPTQ takes minutes, so only one network is quantized with it.
        if self.task.keras_gptq and self.seed == 0:
            for bits in keras_own.GPTQ_BITS:
                runs[bits, keras_own.GPTQ] = lambda bits=bits: keras_own.gptq(
                    model, self.data.calibration, bits
                )
        for (bits, method), run in runs.items():
            if self.journal.has("keras", bits, method):
                continue
            start = time.process_time()
            found = run()
            seconds = time.process_time() - start
            self.journal.add(
                "keras",
                bits,
                method,
                kind="keras",
                bits=bits,
                method=method,
                cpu=seconds,
                **self.accuracies(found),
            )

    # Fine-tuning, and training from scratch

    def train_all(self, model, bits):
        """Trains from both starts with both optimizers."""
        for start in self.task.starts:
            for optimizer in (tasks.ADAM, tasks.QPSBGD):
                for rate, epochs in self.rates(bits, start, optimizer).items():
                    name = ("train", bits, start, optimizer, rate)
                    if not self.journal.has(*name):
                        self.train(model, *name[1:], epochs)

    def rates(self, bits, start, optimizer):
        """Returns a dictionary of rates and numbers of epochs."""
        if self.seed == TUNING_SEED:
            rates = self.task.grids[start, optimizer].rates
            return dict.fromkeys(rates, max(tasks.EPOCHS[start]))
        chosen = {}
        found = read(self.out)
        for epochs in sorted(tasks.EPOCHS[start]):
            rate = chosen_rate(found, self.name, bits, start, optimizer, epochs)
            chosen[rate] = epochs
        return chosen

    def train(self, model, bits, start, optimizer, rate, epochs):
        keras.utils.set_random_seed(self.seed)
        if start == tasks.QUANTIZED:
            trained = self.quantized(model, bits)
        else:
            trained = self.task.build(Binary(bits), self.data)
        grid = self.task.grids[start, optimizer]
        if optimizer == tasks.ADAM:
            used = keras.optimizers.Adam(rate)
        else:
            real = keras.optimizers.Adam(grid.real_rate)
            used = kq.QPSBGD(rate, real_optimizer=real, seed=self.seed)
        weights = trained.get_weights()
        _compile(trained, used)
        curve = []
        begin = time.process_time()
        for _ in range(epochs):
            self.data.fit_epoch(trained)
            curve.append(self.accuracies(trained))
        seconds = time.process_time() - begin
        trained.set_weights(weights)  # the quantized model is used again
        self.journal.add(
            *("train", bits, start, optimizer, rate),
            kind="train",
            bits=bits,
            start=start,
            optimizer=optimizer,
            rate=rate,
            cpu=seconds,
            **{key: [point[key] for point in curve] for key in curve[0]},
        )

    def quantized(self, model, bits):
        if bits not in self._quantized:
            self._quantized[bits], _, _ = quantizing.quantize(
                model, self.data.calibration, bits, "qubo", self.seed
            )
        return self._quantized[bits]


def chosen_rate(found, task, bits, start, optimizer, epochs):
    """Returns the rate with the best validation accuracy on the tuning seed.

    Args:
        found: Records by key.
        task: Name of the task.
        bits: Integer.
        start: `QUANTIZED` or `SCRATCH`.
        optimizer: Name of the optimizer.
        epochs: Integer. Number of epochs after which the accuracy counts.
    """
    rates = {
        record["rate"]: record["validation"][epochs - 1]
        for record in found.values()
        if record["kind"] == "train"
        and record["seed"] == TUNING_SEED
        and record["task"] == task
        and record["bits"] == bits
        and record["start"] == start
        and record["optimizer"] == optimizer
    }
    return max(rates, key=rates.get)


def _compile(model, optimizer):
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Compilation by XLA takes longer than the training of small networks.
        jit_compile=False,
    )


def _show(text):
    print(text, flush=True)


def _end_with_parent():
    """Ends this process when the command that started it was killed.

    Otherwise the next command would write the same file.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main(arguments):
    threading.Thread(target=_end_with_parent, daemon=True).start()
    arguments = json.loads(arguments)
    with contextlib.ExitStack() as stack:
        if tasks.TASKS[arguments["task"]].is_graph:
            stack.enter_context(kq.spektral.enable_keras3())
        Worker(**arguments).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
