"""Annealing schedules: the strengths A(s) and B(s) over an anneal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Union

import numpy as np
from numpy.typing import ArrayLike

from keras_qpsbgd.analysis import axes

ScheduleLike = Union[None, str, ArrayLike]

# A(s) and B(s) of Advantage_system5.4 in GHz, for s = 0, 0.02, ..., 1: every
# twentieth row of the standard schedule that D-Wave publishes for this QPU
# (document 09-1265A-E). A and B are equal at 1.389 GHz, which D-Wave lists as
# the critical point of this QPU.
_ADVANTAGE = (
    (9.713438, 0.2596733),
    (9.356620, 0.2695687),
    (8.990035, 0.2805351),
    (8.612759, 0.2927849),
    (8.224136, 0.3065456),
    (7.822686, 0.3222207),
    (7.408058, 0.3401438),
    (6.979965, 0.3607238),
    (6.535362, 0.3850194),
    (6.075155, 0.4136392),
    (5.597620, 0.4481318),
    (5.103004, 0.4900805),
    (4.590621, 0.5422612),
    (4.062626, 0.6079502),
    (3.521853, 0.6924780),
    (2.974860, 0.8021034),
    (2.432283, 0.9458632),
    (1.909961, 1.132612),
    (1.426966, 1.366727),
    (1.011572, 1.648296),
    (0.6793317, 1.963112),
    (0.4313265, 2.291903),
    (0.2605095, 2.617785),
    (0.1512407, 2.930829),
    (0.08544068, 3.228456),
    (0.04753455, 3.512174),
    (0.02553131, 3.785073),
    (0.01345395, 4.048060),
    (0.00689643, 4.302553),
    (0.00359748, 4.548295),
    (0.00186667, 4.787261),
    (0.00092687, 5.020704),
    (0.00045584, 5.247951),
    (0.00022867, 5.469044),
    (0.00011534, 5.684783),
    (0.00005697, 5.895997),
    (0.00002716, 6.102816),
    (0.00001347, 6.304342),
    (0.00000661, 6.501769),
    (0.00000326, 6.694967),
    (0.00000159, 6.884371),
    (0.00000075, 7.070230),
    (0.00000037, 7.251772),
    (0.00000018, 7.429844),
    (0.00000009, 7.604628),
    (0.00000004, 7.776389),
    (0.00000002, 7.944229),
    (0.00000001, 8.109170),
    (0.0, 8.271153),
    (0.0, 8.430319),
    (0.0, 8.586335),
)


class Schedule(NamedTuple):
    """Attributes: `strengths`, a function from s to A and B, and `unit`."""

    strengths: Callable[[Any], tuple[Any, Any]]
    unit: str


def schedule_of(schedule: ScheduleLike = None) -> Schedule:
    """Returns a schedule by its name, or that of a table.

    Args:
        schedule: `None` for the linear schedule A = 1 - s, B = s; the string
            `"advantage"` for the D-Wave system Advantage_system5.4 in GHz; or
            an array (k, 3) with columns s, A and B, as in the tables that
            D-Wave publishes. Rows are interpolated by monotone cubics. Defaults
            to `None`.

    Returns:
        A `Schedule`.

    Raises:
        ValueError: If the schedule is none of these.
    """
    if schedule is None:
        return Schedule(lambda s: (1.0 - s, s), "A(0)")
    if isinstance(schedule, str):
        if schedule != "advantage":
            raise ValueError(
                '`schedule` must be None, "advantage" or an array. Received: '
                f"schedule={schedule!r}"
            )
        steps = np.linspace(0.0, 1.0, len(_ADVANTAGE))
        return Schedule(_interpolated(steps, *np.transpose(_ADVANTAGE)), "GHz")
    table = np.asarray(schedule, np.float64)
    if (
        table.ndim != 2
        or table.shape[1:] != (3,)
        or len(table) < 2
        or not np.isfinite(table).all()
        or table.min() < 0
        or table[0, 0] != 0
        or table[-1, 0] != 1
        or np.diff(table[:, 0]).min() <= 0
    ):
        raise ValueError(
            "`schedule` must have shape (k, 3) with columns s, A and B. s must "
            "increase from 0 to 1, and no entry may be negative. Received: "
            f"schedule={np.array2string(table, threshold=12)}"
        )
    return Schedule(_interpolated(*table.T), "unit of the schedule")


def _interpolated(steps, transverse, problem):
    interpolate = axes.require("scipy.interpolate").PchipInterpolator
    transverse, problem = (
        interpolate(steps, values) for values in (transverse, problem)
    )
    return lambda s: (transverse(s), problem(s))
