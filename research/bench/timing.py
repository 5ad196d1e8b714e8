"""Ratios of times, measured so that a busy machine changes them little.

Whatever is compared takes turns, block by block: the yardstick, a side, the
yardstick, the next side, and so on. A side's ratio is its block divided by the
mean of the two yardstick blocks around it, so that what else the machine does
meets both, and neither is always the second. The figure is the median of these
ratios; medians of the times are given, too.

CPU time is that of the whole process (`time.process_time`), all of its threads
added; wall time is `time.perf_counter`.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable


@dataclasses.dataclass
class Side:
    """One thing to be timed.

    Attributes:
        block: function that does `steps` steps and waits for the last.
        steps: steps in a block.
        blocks: how many blocks to measure.
    """

    block: Callable
    steps: int
    blocks: int


@dataclasses.dataclass
class Times:
    """Seconds per step; ratios to the yardstick (`None` for itself)."""

    cpu: float
    wall: float
    cpu_ratio: float | None = None
    wall_ratio: float | None = None


def per_step(side):
    """CPU and wall seconds per step of one block."""
    wall, cpu = time.perf_counter(), time.process_time()
    side.block()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / side.steps, wall / side.steps


def compare(yardstick, sides, warm_up=1, show=lambda text: None):
    """Times of all sides, in turns with the yardstick.

    Args:
        yardstick: a `Side`; its `blocks` are not looked at.
        sides: dictionary of `Side`.
        warm_up: blocks of each that are not counted: tracing, compilation.
        show: Function (optional). Called with a text that shows the progress.

    Returns:
        `Times` of the yardstick, and a dictionary of `Times`.
    """
    for name, side in {"yardstick": yardstick, **sides}.items():
        show(f"{name}: compiling")
        for _ in range(warm_up):
            per_step(side)
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
            ratios[name].append(
                [
                    2 * mine / (before + after)
                    for mine, before, after in zip(times, base[-2], base[-1])
                ]
            )
    return Times(*_medians(base)), {
        name: Times(*_medians(found[name]), *_medians(ratios[name]))
        for name in sides
    }


def _medians(pairs):
    return [statistics.median(values) for values in zip(*pairs)]
