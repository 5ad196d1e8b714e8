"""The suites `solver` and `annealer`."""

import itertools

import numpy as np
import pytest
from scipy import special

from keras_qpsbgd.backends.dwave.mock import MockQPU
from research.bench import annealer
from research.bench import instances
from research.bench import solver
from research.bench import sphere_decoder
from research.bench.harness import Options

pytestmark = pytest.mark.once


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


# Instances and exact solvers


def test_instances_are_reproducible_and_of_the_right_kind():
    cells = [instances.Cell(16, kind, 0.1) for kind in instances.KINDS]
    cells.append(instances.Cell(64, "htanh", 0.1, planted=True))
    for cell in cells:
        one, same, other = (
            instances.Instance.of_cell(cell, 20, 3, seed) for seed in (1, 1, 2)
        )
        np.testing.assert_array_equal(one.qubo.fields, same.qubo.fields)
        assert (one.qubo.fields != other.qubo.fields).any()
        z = one.rows.numpy()
        assert z.shape == (cell.batch, 20)
        if cell.kind == "pm1":
            np.testing.assert_allclose(np.abs(z), 1 / 20)
        elif cell.kind == "sparse":
            assert (z >= 0).all() and 0.03 < (z > 0).mean() < 0.2
        np.testing.assert_allclose(one.qubo.couplings, z.T @ z, atol=1e-6)
    with pytest.raises(ValueError, match="`kind` .* Received: pm2"):
        instances.Instance("pm2", 4, 4, 1, 0.1, 0)


def test_planted_gradients_have_a_hidden_state():
    # Without noise, the energy of the hidden state is zero.
    instance = instances.Instance("htanh", 16, 8, 2, 0.0, 0, planted=True)
    states = sphere_decoder.enumerate_states(instance.qubo)
    np.testing.assert_allclose(instance.qubo.energy(states), 0, atol=1e-5)
    other = instances.Instance("htanh", 16, 8, 2, 0.1, 0)
    assert (other.qubo.energy(states) > 0.01).all()


def test_enumeration():
    qubo = instances.Instance("htanh", 16, 5, 3, 0.1, 0).qubo
    energies = [
        qubo.energy(np.repeat(np.array(state)[:, None], 3, 1))
        for state in itertools.product((-1, 1), repeat=5)
    ]
    found = sphere_decoder.enumerate_states(qubo)
    np.testing.assert_allclose(qubo.energy(found), np.min(energies, axis=0))


@pytest.mark.parametrize("batch", [4, 16, 64])
@pytest.mark.parametrize("part", [2**15, 7])
def test_decoder_is_exact(batch, part, monkeypatch):
    """With a bad initial state, fewer rows than inputs, and small parts."""
    monkeypatch.setattr(sphere_decoder, "PART", part)
    for seed, kind in enumerate(instances.KINDS):
        for planted in (False, True):
            qubo = instances.Instance(
                kind, batch, 12, 3, 0.1, seed, planted
            ).qubo
            start = np.ones((12, 3))
            found = sphere_decoder.decode(qubo, start)
            assert set(np.unique(found)) <= {-1, 1}
            best = qubo.energy(sphere_decoder.enumerate_states(qubo))
            excess = (qubo.energy(found) - best) / qubo.random_energy()
            np.testing.assert_allclose(excess, 0, atol=1e-7)
            assert (qubo.energy(start) > best + 1e-3).any()


def test_decoder_keeps_an_optimum_and_inactive_inputs():
    qubo = instances.Instance("sparse", 4, 12, 2, 0.1, 0).qubo
    inactive = np.diag(qubo.couplings) == 0
    assert inactive.any()
    best = sphere_decoder.enumerate_states(qubo)
    best[inactive] = [[1, -1]] * inactive.sum()
    np.testing.assert_array_equal(sphere_decoder.decode(qubo, best), best)


# Solvers


def test_problems_are_those_of_the_default_rule():
    """`kappa` is the ratio of the forces of fields and couplings."""
    for kind in instances.KINDS:
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


@pytest.mark.slow
def test_defects():
    sampler = annealer.open_chip("pegasus", 28, 60)
    graph = sampler.to_networkx_graph()
    whole = MockQPU("pegasus").to_networkx_graph()
    assert len(whole) - len(graph) == 28
    between = whole.subgraph(graph).number_of_edges()
    assert between - graph.number_of_edges() == 60


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


def test_differences_without_noise():
    same = [0.25, 0.5]
    assert annealer.compare(same, same, 0.001)[2] == 0.0
    assert annealer.compare([0.5, 0.75], same, 0.25)[2] == 1.0


def test_noise_does_not_pass():
    own = np.zeros(4)
    noisy = [0.1, -0.1, 0.1, -0.1]  # no difference in the mean
    assert annealer.compare(noisy, own, 0.002)[2] > 0.05


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
