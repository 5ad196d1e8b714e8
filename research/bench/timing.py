"""Ratios of times that are robust against other load on the machine.

The compared sides take turns with a yardstick, block by block: the yardstick, a
side, the yardstick, the next side, and so on. The ratio of a side is the time
of its block divided by the mean time of the yardstick blocks before and after
it. Other load then affects both, and neither always comes second. The reported
ratio is the median over all blocks, with its range. The median times are also
reported.

CPU time is the time of all threads of the process (`time.process_time`). Wall
time is `time.perf_counter`.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable


@dataclasses.dataclass
class Side:
    """One side of a timing comparison.

    Attributes:
        block: Function that runs `steps` steps and waits for the last one.
        steps: Number of steps in a block.
        blocks: Number of blocks to measure.
    """

    block: Callable
    steps: int
    blocks: int


@dataclasses.dataclass
class Times:
    """Seconds per step, and the ratios of all blocks to the yardstick."""

    cpu: float
    wall: float
    cpu_ratios: list | None = None


def per_step(side):
    """Runs one block and returns its CPU and wall seconds per step."""
    wall, cpu = time.perf_counter(), time.process_time()
    side.block()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / side.steps, wall / side.steps


def compare(yardstick, sides, show=lambda text: None):
    """Times all sides, which take turns with the yardstick.

    Args:
        yardstick: A `Side`. Its `blocks` are ignored.
        sides: Dictionary of `Side`.
        show: Function (optional). Called with a progress message.

    Returns:
        The `Times` of the yardstick, and a dictionary with the `Times` of the
        sides.
    """
    for name, side in {"yardstick": yardstick, **sides}.items():
        show(f"{name}: compiling")
        per_step(side)  # traces and compiles
    base = [per_step(yardstick)]
    found = {name: [] for name in sides}
    ratios = {name: [] for name in sides}
    rounds = max(side.blocks for side in sides.values())
    for index in range(rounds):
        for name, side in sides.items():
            if index >= side.blocks:
                continue
            show(f"{name}: block {index + 1} of {side.blocks}")
            times = per_step(side)
            base.append(per_step(yardstick))
            found[name].append(times)
            ratio = 2 * times[0] / (base[-2][0] + base[-1][0])
            ratios[name].append(float(f"{ratio:.4g}"))
    return Times(*_medians(base)), {
        name: Times(*_medians(found[name]), ratios[name]) for name in sides
    }


def _medians(pairs):
    return [statistics.median(values) for values in zip(*pairs)]


def spread(ratios):
    """Returns the lowest ratio, the median, and the highest one."""
    return min(ratios), statistics.median(ratios), max(ratios)


def text(ratios):
    """Returns the median and the range of ratios: `1.72 (1.60 to 1.91)`."""
    low, middle, high = spread(ratios)
    digits = 2 if middle < 10 else 1 if middle < 100 else 0
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
