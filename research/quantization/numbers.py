"""The numbers of finished runs of the experiment."""

import numpy as np

from research.quantization.methods import OWN
from research.quantization.tasks import TASKS

QUBO, DESCENT, GPTQ_SCALES = "qubo", "descent+scales", "gptq+scales"
# Classes of layers by their numbers of inputs.
WIDTHS = ((1, 32), (33, 128), (129, 512), (513, 100_000))


class Numbers:
    """The numbers of finished runs.

    Attributes:
        tasks: List of the names of tasks with complete runs.
        bits: Dictionary of the numbers of bits with complete runs, by task.
        every_bits: List of all these numbers.

    Args:
        records: List of records.
    """

    def __init__(self, records):
        self._records = records
        every = {name: self._complete(name) for name in TASKS}
        self.bits = {name: bits for name, bits in every.items() if bits}
        self.tasks = list(self.bits)
        self.every_bits = sorted(set().union(*self.bits.values()))

    def _complete(self, task):
        """Returns the bits with the same seeds for all of `kq.quantize`."""
        found = []
        for bits in sorted({r["bits"] for r in self.select(task=task)}):
            seeds = [self._seeds(task, bits, method) for method in OWN]
            if len(seeds[0]) > 1 and all(one == seeds[0] for one in seeds):
                found.append(bits)
        return found

    def _seeds(self, task, bits, method):
        found = self.select(task=task, bits=bits, method=method)
        return {record["seed"] for record in found}

    def select(self, **values):
        """Returns the records with given values."""
        return [
            record
            for record in self._records
            if all(record[key] == value for key, value in values.items())
        ]

    def results(self, task, bits, method, field="test"):
        """Returns a field by seed, in percent for accuracies.

        A method that does not have all seeds yet has no results.
        """
        if bits in self.bits.get(task, ()):
            if self._seeds(task, bits, method) != self._seeds(task, bits, QUBO):
                return {}
        factor = 1.0
        if field == "test" and TASKS[task].higher_is_better:
            factor = 100.0
        return {
            record["seed"]: factor * record[field]
            for record in self.select(task=task, bits=bits, method=method)
        }

    def layers(self, method=QUBO, **values):
        """Returns the layers of networks, with `task`, `seed` and `bits`."""
        return [
            {**{key: record[key] for key in ("task", "seed", "bits")}, **layer}
            for record in self.select(method=method, **values)
            if record["bits"] in self.bits.get(record["task"], ())
            for layer in record["layers"]
        ]

    def layers_between(self, low, high, bits):
        """Returns the layers with at least and at most some inputs."""
        return [
            layer
            for layer in self.layers(bits=bits)
            if low <= layer["inputs"] <= high
        ]


def ratios(layers, other):
    """Returns output errors of `qubo` divided by those of another method."""
    pairs = [(x["errors"][QUBO], x["errors"][other]) for x in layers]
    return np.array([ours / theirs for ours, theirs in pairs if theirs > 1e-12])


def geometric_mean(values):
    """Returns the geometric mean, or NaN without values."""
    if not len(values):
        return float("nan")
    return float(np.exp(np.log(np.maximum(values, 1e-12)).mean()))
