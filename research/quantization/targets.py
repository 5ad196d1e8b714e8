"""The targets of the experiment and what was reached."""

import dataclasses
import math

import numpy as np

from research.quantization.numbers import geometric_mean
from research.quantization.tasks import ADAM
from research.quantization.tasks import QPSBGD
from research.quantization.tasks import QUANTIZED
from research.quantization.tasks import SCRATCH
from research.quantization.tasks import TASKS
from research.quantization.tasks import is_end_of_grid

LAYERS_BETTER = 0.90
LOWER_THAN_DESCENT = 0.10
TIMES_BELOW_GPTQ = 2.0
PROVEN_WITHIN = 0.95
POINTS_ABOVE_GPTQ = 0.01
CPU_RATIO = 5.0
WIDE_MINUTES = 10.0
WIDE_GIBIBYTES = 2.0


@dataclasses.dataclass(frozen=True)
class Target:
    """A row of the table.

    Attributes:
        text: String. What is measured.
        goal: String.
        value: String. What was reached, `"-"` if it was not measured.
        met: Boolean, or `None` if it was not measured.
    """

    text: str
    goal: str
    value: str
    met: bool | None


def targets(numbers):
    """Returns all targets."""
    return [
        *_errors(numbers),
        *_proofs(numbers),
        *_accuracies(numbers),
        *_times(numbers),
        *_training(numbers),
    ]


def _target(text, goal, value, shown, met):
    if value is None or math.isnan(value):
        return Target(text, goal, "-", None)
    return Target(text, goal, shown.format(value), bool(met(value)))


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
    found = []
    for preset in ("accurate", "once"):
        proven, within = numbers.proofs(preset)
        found.append(
            _target(
                f"columns in which `native` with the preset `{preset}` is "
                "within 0.5 % of the optimal error, of those whose optimum "
                f"Gurobi proved ({proven})",
                f"at least {PROVEN_WITHIN:.0%}",
                within / proven if proven else None,
                "{:.1%}",
                lambda share: share >= PROVEN_WITHIN,
            )
        )
    return found


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
