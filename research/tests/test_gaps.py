"""The study of spectral gaps: changes of a QUBO, anneals, tables."""

import json
import pathlib

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from research.analysis import anneals
from research.analysis import gaps

pytest.importorskip("scipy")
pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "results" / "gaps"


def column(x, v, largest=None):
    return gaps.Column(kq.Qubo.from_rows([x], [v]), largest or abs(v))


# Changes


def test_damping():
    """The diagonal is constant for spins: adding to it changes nothing."""
    qubo = column([1.0, 1.0, 2.0], 0.3).qubo
    changed, _ = gaps.scaled(damping=0.9)(column([1.0, 1.0, 2.0], 0.3))
    np.testing.assert_allclose(
        changed.couplings[0, 2], qubo.couplings[0, 2] / 10
    )
    heavier = kq.Qubo(qubo.couplings + 5 * np.eye(3), qubo.fields)
    one, two = map(gaps.spectral_gap, (qubo, heavier))
    np.testing.assert_allclose(one.gap, two.gap, rtol=1e-9)


# Anneals


def test_quantum_anneal_against_an_integrator():
    from scipy.integrate import solve_ivp

    rows, v = tools.rows_and_gradients(1, n=3, m=1)
    qubo = kq.Qubo.from_rows(rows, v)
    states, energies = anneals.all_energies(qubo)
    flips = (states @ states.T == 1).astype(float)  # differ in one of three

    def slope(t, psi):
        s = t / 5.0
        total = -(1 - s) / 2 * flips @ psi + s / 2 * energies * psi
        return -1j * total

    start = np.full(8, 8**-0.5, complex)
    end = solve_ivp(slope, (0, 5.0), start, rtol=1e-9, atol=1e-11).y[:, -1]
    expected = np.abs(end[energies.argmin()]) ** 2
    found = anneals.quantum(qubo, 5.0, steps=1000)
    assert found == pytest.approx(expected, abs=1e-4)


def test_thermal_anneal():
    pytest.importorskip("dwave.samplers")
    easy = kq.Qubo(np.zeros((3, 3)), [[4.0], [-4.0], [4.0]])
    assert anneals.thermal(easy) == 1.0
    # Differences far below the temperature: one of eight is a matter of luck.
    blind = kq.Qubo(np.zeros((3, 3)), 1e-4 * np.array([[4.0], [-4.0], [4.0]]))
    assert anneals.thermal(blind, num_reads=1000) == pytest.approx(
        0.125, abs=0.05
    )


# Tables


def test_tables_are_made_from_the_numbers():
    study = json.loads((RESULTS / gaps.NUMBERS).read_text())
    written = (RESULTS / "README.md").read_text()
    assert gaps.table(study) in written and gaps.comparison(study) in written


def test_comparison(tmp_path):
    """Two seeds: the gap rises, one success falls, the other varies."""

    def row(change, base, kept=1.0, **differences):
        return {
            "width": 2,
            "change": change,
            "base": base,
            "problems": 3,
            "least": 0.25,
            "seeds": {
                **{key: [0.5, 0.7] for key in gaps.VALUES},
                "kept": [kept, kept],
            },
            "differences": {
                **{key: [0.0, 0.0] for key in gaps.VALUES},
                **differences,
            },
        }

    study = {
        "seeds": 2,
        "steps": 1,
        "learning_rate": 0.1,
        "duration": 10,
        "rows": [
            row("raw", "raw"),
            row(
                "max, kappa 4",
                "raw",
                kept=0.5,
                gap=[0.7, 0.7],
                quantum=[-0.1, -0.1],
                thermal=[-0.1, 0.2],
            ),
            row("kappa 4, held", "max, kappa 4", gap=[None, None]),
        ],
    }
    first, second = gaps.comparison(study).splitlines()[2:]
    assert first == "| max, kappa 4 | raw | + | = | - | = | 50 % |"
    assert second == (
        "| kappa 4, held | max, kappa 4 | ? | = | = | = | 100 % |"
    )
    gaps.store(study, tmp_path)
    table = gaps.write(tmp_path).read_text()
    assert "| 2-2-2 | max, kappa 4 | 0.600 +- 0.100 |" in table
    assert "| 60 +- 10 % |" in table
