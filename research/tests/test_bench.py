"""The benchmark command, its suites, and the arithmetic of their tables."""

import json
import pathlib
import types

import numpy as np
import pytest
from scipy import special

from keras_qpsbgd.backends.dwave.mock import MockQPU
from research.__main__ import main
from research.bench import annealer
from research.bench import export
from research.bench import harness
from research.bench import inference
from research.bench import sizes
from research.bench import solver
from research.bench import stored
from research.bench import timing

pytestmark = pytest.mark.once


class Machine:
    """A fake clock of a machine that slows down with every block of work."""

    def __init__(self):
        self.now = 0.0
        self.speed = 1.0

    def work(self, seconds):
        self.now += seconds / self.speed
        self.speed *= 0.9

    def process_time(self):
        return self.now

    def perf_counter(self):
        return 3 * self.now


def test_ratios_are_robust_against_a_slow_machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(timing, "time", machine)
    sides = {
        "double": timing.Side(lambda: machine.work(20), 10, 5),
        "fewer": timing.Side(lambda: machine.work(3), 1, 2),
    }
    yardstick = timing.Side(lambda: machine.work(4), 4, 0)
    base, times = timing.compare(yardstick, sides)
    # The geometric mean of the neighbors is 2 / (0.9 + 1 / 0.9) of their mean.
    drift = 2 / (0.9 + 1 / 0.9)
    assert times["double"].cpu_ratios == pytest.approx(5 * [2 * drift], 1e-3)
    assert times["fewer"].cpu_ratios == pytest.approx(2 * [3 * drift], 1e-3)
    # The plain ratio of the times is not robust.
    assert times["double"].cpu / base.cpu != pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ([2.0, 1.0, 1.5], "1.50 (1.00 to 2.00)"),
        ([20.0, 30.0], "25.0 (20.0 to 30.0)"),
        ([200.4], "200 (200 to 200)"),
    ],
)
def test_text_of_ratios(ratios, text):
    assert timing.text(ratios) == text


def test_command(monkeypatch, capsys, tmp_path):
    suite = types.SimpleNamespace(
        HELP="a fake suite", blocks=lambda result: {"fake": f"table {result}"}
    )
    monkeypatch.setitem(harness.SUITES, "fake", suite)
    monkeypatch.setattr(stored, "code", lambda name: f"code of {name}")
    monkeypatch.setattr(harness, "measure", lambda name, quick: [name, quick])
    output = tmp_path / "new"
    words = ["bench", "fake", "--quick", "--output", str(output)]
    assert main(words) == 0
    assert "table ['fake', True]" in capsys.readouterr().out
    record = json.loads((output / "fake.json").read_text())
    assert record["code"] == "code of fake"
    assert record["results"] == {"1": ["fake", True]}
    assert main(["bench", "stp"]) == 1
    assert capsys.readouterr().err.endswith("Received: stp\n")


# Suites


def test_export(monkeypatch):
    """The outputs of the formats are compared with those of Keras."""
    graph = {"graph": export.NETWORKS["graph"]}
    monkeypatch.setattr(export, "NETWORKS", graph)
    monkeypatch.setattr(export, "FORMATS", export.FORMATS[:3])
    result = export.measure(quick=True)
    found = result["graph"]["formats"]
    assert all(each["problem"] is None for each in found.values())
    assert found["`export.packed`"]["difference"] == 0
    assert "| `export.packed` |" in export.blocks(result)["export"]


def test_sizes(monkeypatch):
    small = {"Conv1D": sizes.SMALL["Conv1D"]}
    monkeypatch.setattr(sizes, "SMALL", small)
    monkeypatch.setattr(sizes, "WRITERS", {})
    result = sizes.measure(quick=True)
    found = result["Conv1D"]
    assert found["2"]["packed"] * 6 < found["4"]["packed"] * 4 < found["floats"]
    assert "| Conv1D | 2 | 414 |" in sizes.blocks(result)["sizes"]


def test_inference(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(inference, "SIZES", (20, 30, 3))
    monkeypatch.setattr(inference, "FILTERS", (4, 5))
    networks = {
        "dense": (lambda: inference.dense("binary"), (1,)),
        "vgg": (lambda: inference.vgg("binary", True), (2,)),
    }
    monkeypatch.setattr(inference, "NETWORKS", networks)
    monkeypatch.setattr(inference, "SECONDS", 1e-4)
    monkeypatch.setattr(inference, "QUICK_BLOCKS", 1)
    result = inference.measure(quick=True)
    table = inference.blocks(result)["inference"]
    assert "| dense, batch 1 |" in table
    assert "| vgg, batch 2 |" in table


def test_solver(monkeypatch):
    """`native` is exact for narrow layers, `sign` is not."""
    for name, value in (
        ("INPUTS", 8),
        ("OUTPUTS", 6),
        ("ROWS", 20),
        ("SECONDS", 1e-4),
        ("SOLVERS", {name: name for name in ("native", "sign")}),
    ):
        monkeypatch.setattr(solver, name, value)
    result = solver.measure(quick=True)
    found = result["solvers"]
    assert found["native"]["optima"] == result["columns"] == 18
    assert found["native"]["gap"] < 1e-6
    assert found["sign"]["optima"] < 18 and found["sign"]["gap"] > 1e-3
    assert "| `native` | 18 | 0.0000 | " in solver.blocks(result)["solver"]


def test_problems_are_those_of_the_default_rule():
    """`kappa` is the ratio of the forces of fields and couplings."""
    for kind in solver.KINDS:
        qubo = solver.problem(kind, 0)
        assert np.trace(qubo.couplings) == pytest.approx(1, rel=1e-5)
        off = qubo.couplings - np.diag(np.diag(qubo.couplings))
        force = np.sqrt(np.mean(np.sum(off**2, axis=0)))
        fields = np.sqrt(np.mean(qubo.fields**2)) / 2
        assert fields == pytest.approx(solver.KAPPA * force, rel=1e-4)


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


def test_picture_of_the_records(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "PICTURE", tmp_path / "ratios.png")
    root = pathlib.Path(__file__).parents[2]
    assert stored.draw(root).read_bytes().startswith(b"\x89PNG")
