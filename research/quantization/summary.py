"""What the records of the experiment show, in sentences."""

import dataclasses

import numpy as np

from research import pages
from research.engine.statistics import LEVEL
from research.engine.statistics import PairedTest
from research.engine.statistics import holm
from research.engine.statistics import paired_test
from research.quantization.methods import METHODS
from research.quantization.methods import methods_of
from research.quantization.numbers import DESCENT
from research.quantization.numbers import QUBO
from research.quantization.numbers import WIDTHS
from research.quantization.numbers import geometric_mean
from research.quantization.numbers import ratios
from research.quantization.tasks import TASKS

AHEAD, BEHIND, NEITHER = "ahead", "behind", "n. s."


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How `qubo` compares with another method.

    Attributes:
        task: Name of the task.
        test: `PairedTest` whose difference is positive if `qubo` is better. Its
            p-value is corrected for all comparisons with as many bits.
    """

    task: str
    test: PairedTest

    @property
    def word(self):
        """`AHEAD`, `BEHIND` or, without a significant difference, `NEITHER`."""
        if not self.test.p < LEVEL:
            return NEITHER
        return AHEAD if self.test.difference > 0 else BEHIND

    @property
    def text(self):
        """The difference."""
        return f"{self.test.difference:+.{digits(self.task)}f}"


def verdicts(numbers, bits):
    """Returns a `Verdict` by pairs of a task and another method."""
    tests = {}
    for task in numbers.tasks:
        ours = numbers.results(task, bits, QUBO)
        for other in METHODS[:-1]:
            theirs = numbers.results(task, bits, other)
            if bits in numbers.bits[task] and theirs:
                test = paired_test(ours, theirs)
                higher = TASKS[task].higher_is_better
                tests[task, other] = test if higher else test.reversed()
    return {
        pair: Verdict(pair[0], test)
        for pair, test in zip(tests, holm(list(tests.values())))
    }


def bits_text(count):
    """Returns `1 bit` or `2 bits`."""
    return "1 bit" if count == 1 else f"{count} bits"


def digits(task):
    """Returns the number of decimals of a result."""
    return 2 if TASKS[task].higher_is_better else 3


def summary(numbers):
    """Returns a list of what the records show."""
    lines = [_verdict_line(numbers, bits) for bits in numbers.every_bits]
    lines += [_width_line(numbers), _time_line(numbers)]
    lines += _missing_lines(numbers)
    return "\n".join(f"- {line}" for line in lines)


def _verdict_line(numbers, bits):
    found = verdicts(numbers, bits)
    parts = []
    for other in METHODS[:-1]:
        ahead = [
            f"{task} ({verdict.text})"
            for (task, name), verdict in found.items()
            if name == other and verdict.word == AHEAD
        ]
        if ahead:
            parts.append(f"of `{other}` on {pages.joined(ahead)}")
    behind = [
        f"`{name}` on {task} ({verdict.text})"
        for (task, name), verdict in found.items()
        if verdict.word == BEHIND
    ]
    return (
        f"**{bits_text(bits).capitalize()}:** `qubo` is ahead "
        f"{'; '.join(parts) or 'of no method'}. It is behind "
        f"{pages.joined(behind or ['no method on any task'])}."
    )


def _width_line(numbers):
    """Returns how the gain in output error depends on the width."""
    gains = []
    for low, high in (WIDTHS[0], WIDTHS[-1]):
        found = ratios(numbers.layers_between(low, high, 1), DESCENT)
        gains.append(f"{1 - geometric_mean(found):.0%}")
    return (
        f"The gain in output error falls with the width of a layer: at 1 bit, "
        f"the error of `qubo` is {gains[0]} lower than that of `{DESCENT}` in "
        f"layers with up to {WIDTHS[0][1]} inputs, and {gains[1]} lower in "
        f"layers with more than {WIDTHS[-1][0] - 1}."
    )


def _time_line(numbers):
    """Returns what the solver costs."""
    times = []
    for task in numbers.tasks:
        ours, theirs = (
            np.mean(list(numbers.results(task, 1, method, "cpu").values()))
            for method in (QUBO, DESCENT)
        )
        times.append(ours / theirs)
    return (
        f"At 1 bit, `qubo` takes {min(times):.1f} to {max(times):.1f} times "
        f"the CPU time of `{DESCENT}`."
    )


def _missing_lines(numbers):
    """Returns what was not run for all tasks and bits, or nothing."""
    missing = {}
    for bits in numbers.every_bits:
        tasks = [task for task in numbers.tasks if bits in numbers.bits[task]]
        for method in methods_of(bits):
            if not all(numbers.results(task, bits, method) for task in tasks):
                missing.setdefault(method, []).append(str(bits))
    if not missing:
        return []
    parts = [
        f"`{method}` with {pages.joined(bits)} bits"
        for method, bits in missing.items()
    ]
    return [f"**Not run yet** on all tasks: {pages.joined(parts)}."]
