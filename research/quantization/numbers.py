"""Numbers of the experiment, from its records, and its goals."""

import math

import numpy as np

from research.quantization.quantizing import TOLERANCE
from research.quantization.study import TUNING_SEED
from research.quantization.study import chosen_rate
from research.quantization.tasks import ADAM
from research.quantization.tasks import BITS
from research.quantization.tasks import QPSBGD
from research.quantization.tasks import QUANTIZED
from research.quantization.tasks import SCRATCH
from research.quantization.tasks import TASKS
from research.quantization.tasks import is_end_of_grid

# Goals
LAYERS_BETTER = 0.90
LOWER_THAN_DESCENT = 0.10
TIMES_BELOW_GPTQ = 2.0
PROVEN_WITHIN = 0.95
POINTS_ABOVE_GPTQ = 0.01
CPU_RATIO = 5.0
WIDE_MINUTES = 10.0
WIDE_GIBIBYTES = 2.0


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


# Goals


def targets(numbers):
    """Returns the goals of the experiment and what was reached.

    Returns:
        List of tuples `(text, goal, value, met)` of strings: what is measured,
        the goal, what was reached, and whether the goal is met.
    """
    return [
        *_errors(numbers),
        *_proofs(numbers),
        *_accuracies(numbers),
        *_times(numbers),
        *_training(numbers),
    ]


def _target(text, goal, value, shown, met):
    if value is None or math.isnan(value):
        return text, goal, "-", "not measured"
    return text, goal, shown.format(value), "yes" if met(value) else "no"


def _mean(values):
    return float(np.mean(values)) if len(values) else None


def _errors(numbers):
    every = numbers.ratios("qubo", "descent")
    one_bit = numbers.ratios("qubo", "descent", bits=1)
    above = 1 / numbers.ratios("qubo", "gptq", bits=1)
    return [
        _target(
            "layers in which the output error of `qubo` is lower than that of "
            "`descent`, all tasks and bits",
            f"at least {LAYERS_BETTER:.0%}",
            _mean(every < 1),
            "{:.1%}",
            lambda share: share >= LAYERS_BETTER,
        ),
        _target(
            "output error of `qubo` below that of `descent`, 1 bit, mean over "
            "the layers",
            f"at least {LOWER_THAN_DESCENT:.0%} lower",
            _mean(1 - one_bit),
            "{:.1%} lower",
            lambda lower: lower >= LOWER_THAN_DESCENT,
        ),
        _target(
            "output error of `gptq` divided by that of `qubo`, 1 bit, "
            "geometric mean over the layers",
            f"at least {TIMES_BELOW_GPTQ:g}",
            geometric_mean(above),
            "{:.2f}",
            lambda ratio: ratio >= TIMES_BELOW_GPTQ,
        ),
    ]


def _proofs(numbers):
    proven, within = numbers.proofs("once")
    return [
        _target(
            "columns in which `native` with the preset `once` is within 0.5 % "
            "of the optimal error, of those whose optimum Gurobi proved "
            f"({proven})",
            f"at least {PROVEN_WITHIN:.0%}",
            within / proven if proven else None,
            "{:.1%}",
            lambda share: share >= PROVEN_WITHIN,
        )
    ]


def _accuracies(numbers):
    return [
        _target(
            f"test accuracy of `qubo` minus that of `gptq`, 1 bit, "
            f"{TASKS[task].title}",
            f"at least {100 * POINTS_ABOVE_GPTQ:g} pp",
            _points(numbers.difference(task, 1, "qubo", "gptq")),
            "{:+.2f} pp",
            lambda points: points >= 100 * POINTS_ABOVE_GPTQ,
        )
        for task in ("mnist", "cifar10")
    ]


def _points(differences):
    return 100 * float(differences.mean()) if differences.size else None


def _times(numbers):
    ours = numbers.by_seed("cpu", task="mnist", bits=1, method="qubo")
    theirs = numbers.by_seed("cpu", task="mnist", bits=1, method="gptq")
    common = [seed for seed in ours if seed in theirs]
    ratio = None
    if common:
        ratio = sum(ours[s] for s in common) / sum(theirs[s] for s in common)
    found = [
        _target(
            "CPU time of `qubo` divided by that of `gptq`, 1 bit, "
            "784-512-512-10, in the runs of this page",
            f"at most {CPU_RATIO:g}",
            ratio,
            "{:.2f}",
            lambda value: value <= CPU_RATIO,
        )
    ]
    wide = (numbers.bench or {}).get("wide")
    found.append(
        _target(
            "a layer of 4,608 x 512 weights, 1 bit, CPU time",
            f"under {WIDE_MINUTES:g} minutes",
            wide["cpu"] / 60 if wide else None,
            "{:.1f} minutes",
            lambda value: value < WIDE_MINUTES,
        )
    )
    found.append(
        _target(
            "the same layer, peak memory of the process",
            f"under {WIDE_GIBIBYTES:g} GiB",
            wide["peak"] / 2**30 if wide else None,
            "{:.2f} GiB",
            lambda value: value < WIDE_GIBIBYTES,
        )
    )
    return found


def _training(numbers):
    found = []
    for optimizer in (QPSBGD, ADAM):
        _, tuned = numbers.trained("mnist-bn", 1, QUANTIZED, optimizer, 1)
        rate, scratch = numbers.trained("mnist-bn", 1, SCRATCH, optimizer, 3)
        at_end = rate is not None and is_end_of_grid(
            "mnist-bn", SCRATCH, optimizer, rate
        )
        caveat = " (rate from scratch at an end of its grid)" if at_end else ""
        common = [seed for seed in tuned if seed in scratch]
        points = [100 * (tuned[s] - scratch[s]) for s in common]
        found.append(
            _target(
                f"one epoch of fine-tuning with {optimizer} minus three epochs "
                "from scratch, 1 bit, test accuracy, MNIST with batch "
                f"normalization{caveat}",
                "at least 0 pp",
                _mean(points),
                "{:+.2f} pp",
                lambda value: value >= 0,
            )
        )
    return found
