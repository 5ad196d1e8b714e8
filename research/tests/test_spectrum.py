"""The spectral gap: problems worked out by hand, and Kronecker products."""

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from research.analysis import spectrum

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
    return spectrum.spectral_gap(problem(*arguments), **options)


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


@pytest.mark.parametrize("h", [0.75, -0.75, 3.0])
def test_one_spin(h):
    """The levels are +- sqrt(A^2 + (B h)^2) / 2."""
    found = gap([h])
    assert found.degeneracy == 1
    np.testing.assert_allclose(found.gap, abs(h) / np.sqrt(1 + h**2), rtol=1e-8)
    np.testing.assert_allclose(found.position, 1 / (1 + h**2), atol=1e-3)
    half = np.sqrt((1 - found.s) ** 2 + (found.s * h) ** 2) / 2
    np.testing.assert_allclose(found.levels, np.stack([-half, half], 1))
    # The minimum is also found between the points.
    coarse = gap([h], points=3)
    np.testing.assert_allclose(coarse.gap, found.gap, rtol=1e-8)


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


@pytest.mark.parametrize("n", [3, 5])
def test_levels(n):
    qubo = kq.Qubo.from_rows(*tools.rows_and_gradients(n, n=n, m=1))
    found = spectrum.spectral_gap(qubo, scale=False, points=5)
    for s, levels in zip(found.s, found.levels):
        expected = kron_levels(qubo, 1 - s, s)[: len(levels)]
        np.testing.assert_allclose(levels, expected, atol=1e-10)


def test_scale_fills_the_ranges_of_the_chip():
    assert gap([8.0, 1.0], scale=True).scale == 0.5  # h up to 4
    assert gap([0.1, 0.0], [(0, 1, 4.0)], scale=True).scale == 0.25  # J up to 1
    assert gap([0.1, 0.0], [(0, 1, -4.0)], scale=True).scale == 0.5  # J from -2
    scaled = gap([8.0, 1.0], [(0, 1, 0.5)], scale=True)
    by_hand = gap([4.0, 0.5], [(0, 1, 0.25)])
    np.testing.assert_allclose(scaled.levels, by_hand.levels)


def test_advantage_schedule():
    """Rows of D-Wave's table that are not among those of the package."""
    strengths, _ = spectrum.schedule_of("advantage")
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
