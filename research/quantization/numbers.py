"""Selects numbers from the records of the experiment."""

import numpy as np

from research.quantization.quantizing import TOLERANCE
from research.quantization.study import TUNING_SEED
from research.quantization.study import chosen_rate
from research.quantization.tasks import BITS
from research.quantization.tasks import TASKS


class Numbers:
    """The numbers of finished runs.

    Args:
        records: List of records.
        bench: Dictionary (optional). Results of `python -m research bench
            quantize`.
    """

    def __init__(self, records, bench=None):
        self.records = records
        self.bench = bench
        self._fresh = [
            record for record in records if record["seed"] != TUNING_SEED
        ]

    @property
    def tasks(self):
        """Names of the tasks with a quantized network."""
        found = {record["task"] for record in self.select(kind="quantize")}
        return [name for name in TASKS if name in found]

    def select(self, **values):
        """Returns the records of fresh seeds with given values, by seed."""
        found = [
            record
            for record in self._fresh
            if all(record.get(key) == value for key, value in values.items())
        ]
        return sorted(found, key=lambda record: record["seed"])

    def by_seed(self, field, **values):
        """Returns a dictionary of a field of the selected records."""
        return {
            record["seed"]: record[field] for record in self.select(**values)
        }

    def accuracy(self, task, bits, method):
        """Returns test accuracies by seed. `bits` is `None` for `"float"`."""
        if method == "float":
            return self.by_seed("test", kind="float", task=task)
        return self.by_seed("test", task=task, bits=bits, method=method)

    def difference(self, task, bits, method, other):
        """Returns the differences of test accuracies on common seeds."""
        ours = self.accuracy(task, bits, method)
        theirs = self.accuracy(task, bits, other)
        return np.array([ours[s] - theirs[s] for s in ours if s in theirs])

    # Output errors, all methods on the statistics of the same network

    def layers(self, task=None, bits=None):
        """Returns the layers of all networks quantized by `qubo`.

        Returns:
            List of dictionaries: those of the records with `task`, `seed` and
            `bits`.
        """
        return [
            {
                "task": record["task"],
                "seed": record["seed"],
                "bits": record["bits"],
                **layer,
            }
            for record in self.select(kind="quantize", method="qubo")
            if (task is None or record["task"] == task)
            and (bits is None or record["bits"] == bits)
            for layer in record["layers"]
        ]

    def ratios(self, method, other, task=None, bits=None):
        """Returns error ratios of all layers with an error."""
        found = [
            (layer["errors"][method], layer["errors"][other])
            for layer in self.layers(task, bits)
        ]
        return np.array([ours / theirs for ours, theirs in found if theirs > 0])

    # Proven optima

    def proofs(self, preset):
        """Returns the number of proven columns, and of those within 0.5 %."""
        excess = [
            value
            for layer in self.layers()
            if "proof" in layer
            for value in layer["proof"]["excess"][preset]
        ]
        return len(excess), int(np.sum(np.array(excess) <= TOLERANCE))

    # Training

    def trained(self, task, bits, start, optimizer, epochs):
        """Returns the chosen rate, and test accuracies by seed."""
        try:
            rate = chosen_rate(
                self.records, task, bits, start, optimizer, epochs
            )
        except ValueError:  # no tuning runs
            return None, {}
        curves = self.by_seed(
            "test",
            kind="train",
            task=task,
            bits=bits,
            start=start,
            optimizer=optimizer,
            rate=rate,
        )
        return rate, {
            seed: curve[epochs - 1]
            for seed, curve in curves.items()
            if len(curve) >= epochs
        }

    def bits_of(self, task, kind):
        """Returns the bits with runs of a kind."""
        found = {r["bits"] for r in self.select(kind=kind, task=task)}
        return [bits for bits in BITS if bits in found]


def geometric_mean(values):
    """Returns the geometric mean, or NaN without values."""
    values = np.asarray(values, float)
    if not values.size:
        return float("nan")
    return float(np.exp(np.log(np.maximum(values, 1e-300)).mean()))
