"""The suites `solver` and `annealer`."""

import itertools

import numpy as np
import pytest
from scipy import special

from keras_qpsbgd.backends.dwave.mock import MockQPU
from research.bench import annealer
from research.bench import solver
from research.bench import sphere_decoder
from research.bench.harness import Options

pytestmark = pytest.mark.once


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


# Exact solvers


@pytest.mark.parametrize("rows", [4, 16, 64])
@pytest.mark.parametrize("part", [2**15, 7])
def test_decoder_and_enumeration_are_exact(rows, part, monkeypatch):
    """From a bad state, with fewer rows than inputs, and small parts."""
    for name, value in (("INPUTS", 8), ("OUTPUTS", 3), ("ROWS", rows)):
        monkeypatch.setattr(solver, name, value)
    monkeypatch.setattr(sphere_decoder, "PART", part)
    for seed, kind in enumerate(solver.KINDS):
        qubo = solver.problem(kind, seed)
        best = np.min(
            [
                qubo.energy(np.repeat(np.array(state)[:, None], 3, 1))
                for state in itertools.product((-1, 1), repeat=8)
            ],
            axis=0,
        )
        start = np.ones((8, 3))
        assert (qubo.energy(start) > best).any()
        for found in (
            sphere_decoder.decode(qubo, start),
            sphere_decoder.enumerate_states(qubo),
        ):
            assert set(np.unique(found)) <= {-1, 1}
            np.testing.assert_allclose(qubo.energy(found), best, atol=1e-6)


# Solvers


def test_problems_are_those_of_the_default_rule():
    """`kappa` is the ratio of the forces of fields and couplings."""
    for kind in solver.KINDS:
        qubo = solver.problem(kind, 0)
        assert np.trace(qubo.couplings) == pytest.approx(1, rel=1e-5)
        off = qubo.couplings - np.diag(np.diag(qubo.couplings))
        force = np.sqrt(np.mean(np.sum(off**2, axis=0)))
        fields = np.sqrt(np.mean(qubo.fields**2)) / 2
        assert fields == pytest.approx(solver.KAPPA * force, rel=1e-4)


def test_optima_of_solvers(monkeypatch):
    """`native` is exact for narrow layers, `sign` is not."""
    monkeypatch.setattr(solver, "INPUTS", 8)
    monkeypatch.setattr(solver, "OUTPUTS", 6)
    monkeypatch.setattr(solver, "ROWS", 20)
    monkeypatch.setattr(solver, "SECONDS", 1e-4)
    options = Options(quick=True, only=("native", "sign"))
    result = solver.measure(options)
    found = result["solvers"]
    assert found["native"]["optima"] == result["columns"] == 18
    assert found["native"]["gap"] < 1e-6
    assert found["sign"]["optima"] < 18 and found["sign"]["gap"] > 1e-3
    assert fits(solver.table({1: result}))
    block = solver.blocks(result)["solver"]
    assert "| `native` | 18 | 0.0000 | " in block


# Calls of an annealer


def test_measured_network():
    sampler = MockQPU("pegasus", shape=[4])
    row = annealer.measure_network(sampler, ((8, 2), (2, 3), (4, 5)))
    assert (row["calls"], row["separate_calls"]) == (1, 3)
    assert 2 < row["separate_seconds"] / row["seconds"] < 3
    # The chip has no complete graph of 300 variables.
    wide = annealer.measure_network(sampler, ((300, 1), (2, 3)))
    assert wide["calls"] == wide["separate_calls"] > 2


@pytest.mark.parametrize("shift", [-0.001, 0.0, 0.0015, 0.004])
def test_non_inferiority(shift):
    """The p-value of Student's t, by its incomplete beta function."""
    rng = np.random.default_rng(0)
    own = rng.normal(0.01, 0.003, 30)
    shared = own + shift + rng.normal(0.0, 0.003, 30)
    mean, error, p = annealer.compare(shared, own, 0.002)
    pairs = shared - own
    assert mean == pytest.approx(pairs.mean())
    assert error == pytest.approx(
        np.sqrt(((pairs - pairs.mean()) ** 2).sum() / 29 / 30)
    )
    t = (mean - 0.002) / error
    tail = 0.5 * special.betainc(29 / 2, 1 / 2, 29 / (29 + t**2))
    assert p == pytest.approx(tail if t < 0 else 1 - tail)


def test_shared_calls_table():
    row = {
        "network": "64-64-10",
        "chip": "P16-defects",
        "calls": 1025,
        "separate_calls": 1089,
        "seconds": 23.2263,
        "separate_seconds": 46.4526,
    }
    own = dict.fromkeys(annealer.FIGURES, [0.1, 0.2, 0.3])
    shared = dict.fromkeys(annealer.FIGURES, [0.1, 0.2, 0.3])
    answers = {"own": own, "shared": shared}
    chips = {"P16-defects": {"columns": 84, "largest": 176}}
    result = {"chips": chips, "time": [row], "answers": answers}
    text = annealer.table({1: result})
    assert fits(text)
    assert "46,452.6   23,226.3   2.00" in text
    assert "16-4-4-2 on a mock P16, 3 steps" in text
    block = annealer.blocks(result)["annealer"]
    assert "| columns of 16 inputs in one call | 84 |" in block
    assert "/ shared calls | 2.00 |" in block
