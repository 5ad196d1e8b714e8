"""The energy levels of an annealer during the anneal, and their gap.

The paper's appendix computes them for QUBOs of two to four variables.
"""

import dataclasses

import numpy as np
from scipy import interpolate
from scipy import optimize

from keras_qpsbgd.analysis import common
from keras_qpsbgd.backends.dwave import ranges

# Dense matrices of this size take a fifth of a second.
MAX_VARIABLES = 10
# States whose energies differ by less than this share of the range of all
# energies are degenerate.
TIE = 1e-6
# The ranges of Advantage systems.
RANGES = {"h_range": (-4.0, 4.0), "extended_j_range": (-2.0, 1.0)}
POINTS = 51

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
        gap: the smallest gap, in `unit`.
        position: the s at which it is smallest.
        s: array (points,) of the points at which `levels` were computed.
        levels: array (points, k) of the lowest energy levels, in `unit`.
        degeneracy: number of optimal states of the problem. This many levels
            end in the ground level.
        unit: `"A(0)"` for the linear schedule, `"GHz"` for `"advantage"`.
        scale: factor by which the problem was multiplied.
    """

    gap: float
    position: float
    s: np.ndarray
    levels: np.ndarray
    degeneracy: int
    unit: str
    scale: float


def spectral_gap(qubo, schedule=None, scale=True, points=POINTS):
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
    points.

    Args:
        qubo: `Qubo` of one column with at most 10 variables.
        schedule: `None` for the linear schedule \(A = 1 - s\), \(B = s\), so
            that the gap is in units of \(A(0)\), or `"advantage"` for the
            D-Wave system Advantage_system5.4, in GHz.
        scale: if `True`, \(c\) is the factor with which the backend `dwave`
            fills the ranges of an Advantage system (fields up to 4, couplings
            from -2 to 1) if each variable is one qubit. If `False`, \(c = 1\).
        points: number of points, from 0 to 1.

    Returns:
        A `SpectralGap`, with two levels more than the gap needs.
    """
    n = qubo.num_variables
    if n > MAX_VARIABLES:
        raise ValueError(
            f"`qubo` must have at most {MAX_VARIABLES} variables: the "
            "Hamiltonian of n variables has 2^n levels. Received: "
            f"num_variables={n}"
        )
    excess = ranges.excess(qubo.to_bqm(0), RANGES) if scale else 0.0
    factor = 1.0 / excess if excess > 0 else 1.0
    energies = factor * all_energies(qubo)[1]
    degeneracy = int(optimal(energies).sum())
    if degeneracy == len(energies):
        raise ValueError(
            "`qubo` must not have the same energy for all states. Received: "
            f"{qubo!r} with zero fields and couplings"
        )
    strengths, unit = schedule_of(schedule)
    transverse = flips(n)

    def levels(s):
        a, b = strengths(s)
        matrix = -a / 2 * transverse + np.diag(b / 2 * energies)
        return np.linalg.eigvalsh(matrix)

    def gap(s):
        found = levels(s)
        return found[degeneracy] - found[0]

    s = np.linspace(0.0, 1.0, points)
    found = np.array([levels(x) for x in s])[:, : degeneracy + 3]
    gaps = found[:, degeneracy] - found[:, 0]
    k = int(gaps.argmin())
    best = optimize.minimize_scalar(
        gap,
        bounds=(s[max(k - 1, 0)], s[min(k + 1, points - 1)]),
        method="bounded",
        options={"xatol": 1e-5},
    )
    least, position = min((gaps[k], s[k]), (best.fun, best.x))
    return SpectralGap(
        float(least), float(position), s, found, degeneracy, unit, factor
    )


def plot_spectral_gap(spectrum, ax):
    """Draws the levels above the ground level, and their smallest gap.

    Args:
        spectrum: a `SpectralGap`.
        ax: Matplotlib axis.
    """
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


def schedule_of(schedule=None):
    """Returns a function from s to A and B, and the unit of the energies."""
    if schedule is None:
        return (lambda s: (1.0 - s, s)), "A(0)"
    if schedule != "advantage":
        raise ValueError(
            '`schedule` must be None or "advantage". Received: '
            f"schedule={schedule!r}"
        )
    steps = np.linspace(0.0, 1.0, len(_ADVANTAGE))
    strengths = interpolate.PchipInterpolator(steps, _ADVANTAGE)
    return (lambda s: np.moveaxis(strengths(s), -1, 0)), "GHz"


# All states of a small problem


def all_energies(qubo):
    """States (2^n, n) and energies of the first column, without constants.

    Bit i of the index of a state is set if variable i is -1.
    """
    n = qubo.num_variables
    index = np.arange(2**n)[:, None]
    states = 1.0 - 2.0 * ((index >> np.arange(n)) & 1)
    return states, qubo.varying_energies(states[:, :, None])[:, 0]


def optimal(energies):
    """Which states have the lowest energy."""
    return energies <= energies.min() + TIE * max(np.ptp(energies), 1e-30)


def flips(n):
    """The sum of all X_i, which flips one variable at a time."""
    index = np.arange(2**n)
    found = np.zeros((2**n, 2**n))
    for bit in range(n):
        found[index, index ^ (1 << bit)] = 1.0
    return found
