"""The spectral gap: problems worked out by hand, and dense matrices."""

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.analysis import common
from keras_qpsbgd.analysis import spectrum

pytest.importorskip("scipy")
pytestmark = pytest.mark.once


def problem(fields, pairs=()):
    """A `Qubo` of h and J: a pair (i, j, J) counts twice in g'Qg."""
    n = len(fields)
    couplings = np.zeros((n, n))
    for i, j, value in pairs:
        couplings[i, j] = couplings[j, i] = value / 2
    return kq.Qubo(couplings, np.reshape(fields, (n, 1)))


def gap(*arguments, **options):
    options = {"scale": False, **options}
    return kq.analysis.spectral_gap(problem(*arguments), **options)


def kron_levels(qubo, a, b):
    """The levels of -a/2 sum X + b/2 problem, by Kronecker products."""
    n = qubo.num_variables
    identity, x, z = np.eye(2), np.eye(2)[::-1], np.diag([1.0, -1.0])

    def at(i, matrix):
        found = np.ones((1, 1))
        for k in range(n):
            found = np.kron(found, matrix if k == i else identity)
        return found

    total = np.zeros((2**n, 2**n))
    for i in range(n):
        total += -a / 2 * at(i, x) + b / 2 * qubo.fields[i, 0] * at(i, z)
        for j in range(i):
            strength = 2 * qubo.couplings[i, j]
            total += b / 2 * strength * at(i, z) @ at(j, z)
    return np.linalg.eigvalsh(total)


# By hand


@pytest.mark.parametrize("h", [0.75, -0.75, 3.0])
def test_one_spin(h):
    """The levels are +- sqrt(A^2 + (B h)^2) / 2."""
    found = gap([h])
    assert found.degeneracy == 1
    np.testing.assert_allclose(found.gap, abs(h) / np.sqrt(1 + h**2), rtol=1e-8)
    np.testing.assert_allclose(found.position, 1 / (1 + h**2), atol=1e-3)
    half = np.sqrt((1 - found.s) ** 2 + (found.s * h) ** 2) / 2
    np.testing.assert_allclose(found.levels, np.stack([-half, half], 1))


def test_two_ferromagnetic_spins():
    """Two optima. The levels are +-r and +-B/2, r^2 = A^2 + (B/2)^2.

    The level -B/2 ends in the ground level -r. So the gap is B/2 + r, which is
    smallest at s = 0.6: 0.3 + 0.5.
    """
    found = gap([0.0, 0.0], [(0, 1, -1.0)])
    assert found.degeneracy == 2
    np.testing.assert_allclose(found.gap, 0.8, rtol=1e-8)
    np.testing.assert_allclose(found.position, 0.6, atol=1e-3)
    r = np.hypot(1 - found.s, found.s / 2)
    levels = np.stack([-r, -found.s / 2, found.s / 2, r], axis=1)
    np.testing.assert_allclose(found.levels, levels, atol=1e-12)


def test_three_spins_of_which_one_is_free():
    """Its level, A above the ground level, merges with it."""
    found = gap([1.0, 0.5, 0.0])
    assert found.degeneracy == 2
    np.testing.assert_allclose(found.gap, 0.5 / np.sqrt(1.25), rtol=1e-8)


def test_three_frustrated_spins():
    """Six of eight states are optimal, and the other two cost 4."""
    found = gap([0.0] * 3, [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0)])
    assert found.degeneracy == 6
    end = found.levels[-1] - found.levels[-1, 0]
    np.testing.assert_allclose(end, [0] * 6 + [2] * 2, atol=1e-12)


# Against Kronecker products


@pytest.mark.parametrize("n", [3, 5])
def test_levels(n):
    qubo = kq.Qubo.from_rows(*tools.rows_and_gradients(n, n=n, m=2))
    found = kq.analysis.spectral_gap(qubo, 1, points=5, levels=4, scale=False)
    for s, levels in zip(found.s, found.levels):
        expected = kron_levels(qubo.columns(1, 2), 1 - s, s)[:4]
        np.testing.assert_allclose(levels, expected, atol=1e-10)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_lanczos_finds_degenerate_levels(batch, monkeypatch):
    """Rows of +1 and -1 have many optima, which one Lanczos run misses."""
    rows, v = tools.rows_and_gradients(batch, batch, n=6, m=1, kind="pm1")
    qubo = kq.Qubo.from_rows(rows, v)
    expected = kq.analysis.spectral_gap(qubo, points=7)
    assert batch > 2 or expected.degeneracy > 1
    monkeypatch.setattr(spectrum, "DENSE_VARIABLES", 1)
    found = kq.analysis.spectral_gap(qubo, points=7)
    np.testing.assert_allclose(found.levels, expected.levels, atol=1e-9)
    np.testing.assert_allclose(found.gap, expected.gap, atol=1e-9)


def test_minimum_between_points():
    """A minimum that no point of the grid meets."""
    assert gap([0.75], points=3).gap == pytest.approx(0.6)


# Units


def test_scale_fills_the_ranges_of_the_chip():
    assert gap([8.0, 1.0], scale=True).scale == 0.5  # h up to 4
    assert gap([0.1, 0.0], [(0, 1, 4.0)], scale=True).scale == 0.25  # J up to 1
    assert gap([0.1, 0.0], [(0, 1, -4.0)], scale=True).scale == 0.5  # J from -2
    scaled = gap([8.0, 1.0], [(0, 1, 0.5)], scale=True)
    by_hand = gap([4.0, 0.5], [(0, 1, 0.25)])
    np.testing.assert_allclose(scaled.levels, by_hand.levels)


def test_own_schedule():
    """Constant A: the gap of a spin is smallest at the start."""
    found = gap([2.0], schedule=[[0.0, 3.0, 0.5], [1.0, 3.0, 1.0]])
    np.testing.assert_allclose(found.gap, np.hypot(3.0, 1.0))
    assert found.position == 0.0


def test_advantage_schedule():
    """Rows of D-Wave's table that are not among those of the package."""
    strengths = spectrum.schedule_of("advantage").strengths
    for s, a, b in (
        (0.01, 9.536482, 0.2644757),
        (0.25, 4.328536, 0.5731411),
        (0.37, 1.211180, 1.502353),
        (0.45, 0.1995508, 2.775848),
        (0.51, 0.03442266, 3.650824),
        (0.95, 0.00000001, 8.190881),
    ):
        found = strengths(s)
        np.testing.assert_allclose(found[0], a, rtol=0.02, atol=1e-8)
        np.testing.assert_allclose(found[1], b, rtol=1e-3)
    # The critical point that D-Wave lists for this QPU: A = B = 1.389 GHz.
    s = np.linspace(0.3, 0.4, 10_001)
    a, b = strengths(s)
    np.testing.assert_allclose(b[np.abs(a - b).argmin()], 1.389, atol=2e-3)
    found = gap([1.0], schedule="advantage")
    least = np.hypot(*strengths(np.linspace(0, 1, 10_001))).min()
    np.testing.assert_allclose(found.gap, least, rtol=1e-6)
    assert found.unit == "GHz"


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": 1}, "`column` must be at least 0 and less than 1"),
        ({"points": 2}, "`points` must be at least 3"),
        ({"levels": 1}, "`levels` must be more than 1"),
        ({"schedule": "dwave"}, "`schedule` must be None"),
        ({"schedule": [[0, 1, 0], [0.5, 0, 1]]}, "`schedule` must have shape"),
        ({"schedule": [1.0, 2.0]}, "`schedule` must have shape"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message) as error:
        gap([1.0], **options)
    assert "Received: " in str(error.value)


def test_too_large():
    with pytest.raises(ValueError, match="at most 14 variables.*Received"):
        gap([1.0] * 15)
    # Without fields and couplings there is no gap.
    with pytest.raises(ValueError, match="same energy for all states"):
        gap([0.0, 0.0])
    # Half of the variables are free: 2^6 optima.
    with pytest.raises(ValueError, match="fewer optimal states"):
        gap([1.0] * 6 + [0.0] * 6)


def test_missing_package():
    with pytest.raises(ImportError, match=r"keras_qpsbgd\[analysis\]"):
        common.require("no_such_package")


# Plot


def test_plot():
    pytest.importorskip("matplotlib")
    found = gap([0.0, 0.0], [(0, 1, -1.0)])
    ax = kq.analysis.plot_spectral_gap(found)
    assert "0.8 A(0) at s = 0.60" in ax.get_title()
    curves = [line.get_ydata() for line in ax.get_lines()]
    assert len(curves) == 4
    np.testing.assert_allclose(curves[1][-1], 0.0, atol=1e-12)  # merges
    np.testing.assert_allclose(curves[2][-1], 1.0)  # does not
    again = kq.analysis.plot_spectral_gap(
        problem([0.75]), ax=ax.figure.add_subplot(), scale=False
    )
    assert "gap 0.6" in again.get_title()
