"""The energy levels of an annealer during the anneal, and their gap."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Union

import numpy as np
from numpy.typing import ArrayLike

from keras_qpsbgd.analysis import common
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.qubo import Qubo

MAX_VARIABLES = 14
# Up to this many variables, all levels together take milliseconds.
DENSE_VARIABLES = 8
# The largest dense matrices. More levels than Lanczos can find need them.
MAX_DENSE_VARIABLES = 11
# Energies are float32 in training. States whose energies differ by less than
# this share of the range of all energies are degenerate.
TIE = 1e-6
# Relative accuracy of the levels that Lanczos finds.
TOLERANCE = 1e-10
# The ranges of Advantage systems.
RANGES = {"h_range": (-4.0, 4.0), "extended_j_range": (-2.0, 1.0)}

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


@dataclasses.dataclass
class SpectralGap:
    """Result of `spectral_gap`.

    Attributes:
        gap: Float. The smallest gap, in `unit`.
        position: Float. The s at which it is smallest.
        s: Array (points,). The points at which `levels` were computed.
        levels: Array (points, k). The lowest energy levels, in `unit`.
        degeneracy: Integer. Number of optimal states of the problem. This many
            levels end in the ground level.
        unit: String. `"A(0)"` for the linear schedule, `"GHz"` for
            `"advantage"`.
        scale: Float. Factor by which the problem was multiplied.
    """

    gap: float
    position: float
    s: np.ndarray
    levels: np.ndarray
    degeneracy: int
    unit: str
    scale: float


def spectral_gap(
    qubo: Qubo,
    column: int = 0,
    schedule: ScheduleLike = None,
    points: int = 51,
    levels: int | None = None,
    scale: bool = True,
) -> SpectralGap:
    r"""Computes the smallest gap of the annealing Hamiltonian of one column.

    The Hamiltonian at the point \(s\) of an anneal is

    $$H(s) = -\frac{A(s)}{2} \sum_i X_i + \frac{B(s)}{2}
    \left( \sum_i h_i Z_i + \sum_{i<j} J_{ij} Z_i Z_j \right),$$

    where \(h = c s_j\) are the fields and \(J = 2 c Q\) the couplings of the
    column, multiplied by one factor \(c\). The gap is that between the ground
    level and the first level that does not end in the ground level. If \(d\)
    states are optimal, the lowest \(d\) levels merge at \(s = 1\), and leaving
    the ground level for one of them does no harm. So the gap is
    \(\min_s E_d(s) - E_0(s)\), counted from \(E_0\). The smaller it is, the
    slower the anneal has to be. The minimum is also searched between the
    points. 14 variables take about 20 seconds.

    Args:
        qubo: A `Qubo` with at most 14 variables.
        column: Integer. Index of the column. Defaults to `0`.
        schedule: `None` for the linear schedule \(A = 1 - s\), \(B = s\), so
            that the gap is in units of \(A(0)\); `"advantage"` for the D-Wave
            system Advantage_system5.4, in GHz; or an array (k, 3) with columns
            s, A and B. Defaults to `None`.
        points: Integer. Number of points, from 0 to 1. Defaults to `51`.
        levels: Integer (optional). Number of levels to return. Defaults to
            `None`, which returns those that the gap needs and two more.
        scale: Boolean. If `True`, \(c\) is the factor with which the backend
            `dwave` fills the ranges of an Advantage system (fields up to 4,
            couplings from -2 to 1) if each variable is one qubit. If `False`,
            \(c = 1\). Defaults to `True`.

    Returns:
        A `SpectralGap`.

    Raises:
        ValueError: If an argument is out of range, if all states have the same
            energy, or if more states are optimal than can be computed.
        ImportError: If scipy is not installed.

    Example:

    ```python
    qubo = kq.Qubo.from_rows([[1.0, 1.0, -1.0]], v=[0.5])
    found = kq.analysis.spectral_gap(qubo)
    print(found.gap, found.position)
    ```

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128), appendix
    """
    _check(qubo, column, points)
    strengths, unit = schedule_of(schedule)
    one = qubo.columns(column, column + 1)
    factor = _scale(one) if scale else 1.0
    hamiltonian = _Hamiltonian(one, factor)
    energies = np.sort(hamiltonian.energies)
    tie = TIE * (energies[-1] - energies[0])
    degeneracy = int((energies <= energies[0] + tie).sum())
    if degeneracy == len(energies):
        raise ValueError(
            "`qubo` must not have the same energy for all states. Received: "
            f"column={column} of {qubo!r} with zero fields and couplings"
        )
    number = _number_of_levels(levels, degeneracy, len(energies))
    hamiltonian.check_levels(number)
    s = np.linspace(0.0, 1.0, points)
    found = np.array([hamiltonian.levels(*strengths(x), number) for x in s])
    gaps = found[:, degeneracy] - found[:, 0]
    gap, position = _refine(
        lambda x: hamiltonian.gap(*strengths(x), degeneracy), s, gaps
    )
    return SpectralGap(gap, position, s, found, degeneracy, unit, factor)


def plot_spectral_gap(
    spectrum: SpectralGap | Qubo, ax: Any = None, **arguments: Any
) -> Any:
    """Draws the levels above the ground level, and their smallest gap.

    Args:
        spectrum: A `SpectralGap`, or a `Qubo`.
        ax: Matplotlib axis (optional). Defaults to `None`, which creates one.
        **arguments: Arguments of `spectral_gap`, if `spectrum` is a `Qubo`.

    Returns:
        The axis.
    """
    if not isinstance(spectrum, SpectralGap):
        spectrum = spectral_gap(spectrum, **arguments)
    ax = common.new_axes() if ax is None else ax
    above = spectrum.levels - spectrum.levels[:, :1]
    merging, others = np.split(above, [spectrum.degeneracy], axis=1)
    labels = {
        "ends in the ground level": (merging, "-", common.COLORS[0]),
        "does not end in it": (others, "--", common.COLORS[1]),
    }
    for label, (values, style, color) in labels.items():
        lines = ax.plot(spectrum.s, values, style, color=color)
        lines[0].set_label(label)
    ax.vlines(
        spectrum.position,
        0.0,
        spectrum.gap,
        color="black",
        linewidth=2,
        zorder=3,
        label="smallest gap",
    )
    ax.set(
        xlabel="s",
        ylabel=f"energy above the ground level, in {spectrum.unit}",
        title=(
            f"smallest gap {spectrum.gap:.3g} {spectrum.unit} "
            f"at s = {spectrum.position:.2f}"
        ),
    )
    ax.legend(frameon=False)
    return ax


class _Hamiltonian:
    """H of one column; `energies` are those of all states, in spins."""

    def __init__(self, qubo, factor):
        n = qubo.num_variables
        self.num_variables = n
        index = np.arange(2**n)
        # Bit i of the index of a state is set if variable i is -1.
        states = 1.0 - 2.0 * ((index[:, None] >> np.arange(n)) & 1)
        self.energies = factor * qubo.varying_energies(states[:, :, None])[:, 0]
        self._magnetization = states.sum(axis=1)
        ones = np.ones(n * 2**n)
        flipped = index[:, None] ^ (1 << np.arange(n))
        entries = (ones, (np.repeat(index, n), flipped.ravel()))
        # The sum of all X_i flips one variable at a time.
        sparse = common.require("scipy.sparse")
        self._flips = sparse.csr_matrix(entries, (2**n, 2**n))
        self._diagonal = sparse.diags
        self._is_dense = n <= DENSE_VARIABLES

    @functools.cached_property
    def _dense_flips(self):
        return self._flips.toarray()

    def check_levels(self, number):
        """Chooses between dense matrices and Lanczos."""
        if self._is_dense or number <= 32:
            return
        if self.num_variables > MAX_DENSE_VARIABLES:
            raise ValueError(
                "`qubo` must have fewer optimal states, or at most "
                f"{MAX_DENSE_VARIABLES} variables, to compute this many "
                f"levels. Received: {number} levels of {self.num_variables} "
                "variables"
            )
        self._is_dense = True

    def gap(self, transverse, problem, degeneracy):
        levels = self.levels(transverse, problem, degeneracy + 1)
        return levels[degeneracy] - levels[0]

    def levels(self, transverse, problem, number):
        """Returns the lowest levels, in increasing order."""
        diagonal = problem / 2 * self.energies
        # By Weyl's inequality, a term shifts no level by more than its norm.
        # Neither term alone can be left to Lanczos, which would have to
        # separate levels that are (nearly) the same.
        shift = transverse / 2 * self.num_variables
        if shift <= 1e-8 * np.ptp(diagonal):
            return np.sort(diagonal)[:number]
        if not diagonal.any():
            return np.sort(-transverse / 2 * self._magnetization)[:number]
        if self._is_dense:
            matrix = -transverse / 2 * self._dense_flips
            np.fill_diagonal(matrix, diagonal)
            return np.linalg.eigvalsh(matrix)[:number]
        matrix = self._diagonal(diagonal) - transverse / 2 * self._flips
        bound = 2 * (shift + np.abs(diagonal).max())
        return _lanczos(matrix, number, bound)


def _lanczos(matrix, number, bound):
    """Returns the lowest eigenvalues, each as often as it occurs.

    Lanczos finds only one vector of a degenerate level, the projection of its
    start. So it starts elsewhere and searches again, where the vectors that
    were found are lifted out of the way, until nothing lower turns up.
    """
    eigsh = common.require("scipy.sparse.linalg").eigsh
    operator = common.require("scipy.sparse.linalg").LinearOperator
    rng = np.random.default_rng(0)

    def lowest(matrix, count):
        start = rng.normal(size=matrix.shape[0])
        return eigsh(matrix, count, which="SA", v0=start, tol=TOLERANCE)

    values, vectors = lowest(matrix, number)
    while True:
        lifted = operator(
            matrix.shape,
            lambda x, v=vectors: matrix @ x + bound * (v @ (v.T @ x)),
            dtype=np.float64,
        )
        value, vector = lowest(lifted, 1)
        if value[0] >= np.sort(values)[number - 1] - 1e-8 * bound:
            return np.sort(values)[:number]
        values = np.append(values, value)
        vectors = np.hstack([vectors, vector])


def _refine(gap_at, s, gaps):
    """Searches for the minimum between the neighbors of the lowest point."""
    optimize = common.require("scipy.optimize")
    k = int(gaps.argmin())
    ends = s[max(k - 1, 0)], s[min(k + 1, len(s) - 1)]
    found = optimize.minimize_scalar(
        gap_at, bounds=ends, method="bounded", options={"xatol": 1e-5}
    )
    if found.fun < gaps[k]:
        return float(found.fun), float(found.x)
    return float(gaps[k]), float(s[k])


def _scale(qubo):
    return ranges.scale_factor(qubo.to_bqm(0), RANGES)


def _number_of_levels(levels, degeneracy, most):
    if levels is None:
        return min(degeneracy + 3, most)
    if not degeneracy < levels <= most:
        raise ValueError(
            f"`levels` must be more than {degeneracy}, the number of optimal "
            f"states, and at most {most}. Received: levels={levels}"
        )
    return levels


def _check(qubo, column, points):
    common.check_qubo(qubo)
    n, m = qubo.num_variables, qubo.num_columns
    if n > MAX_VARIABLES:
        raise ValueError(
            f"`qubo` must have at most {MAX_VARIABLES} variables: the "
            "Hamiltonian of n variables has 2^n levels. Received: "
            f"num_variables={n}"
        )
    if not 0 <= column < m:
        raise ValueError(
            f"`column` must be at least 0 and less than {m}. Received: "
            f"column={column}"
        )
    if points < 3:
        raise ValueError(
            f"`points` must be at least 3. Received: points={points}"
        )


# Annealing schedules: the strengths A(s) and B(s) over an anneal


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
    interpolate = common.require("scipy.interpolate").PchipInterpolator
    transverse, problem = (
        interpolate(steps, values) for values in (transverse, problem)
    )
    return lambda s: (transverse(s), problem(s))
