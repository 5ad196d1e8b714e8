"""`python -m research qpu-check`, with a simulated chip."""

import json
import re

import leap_service
import numpy as np
import pytest
from dimod.serialization.json import DimodDecoder

from keras_qpsbgd.backends.dwave import mock
from research.__main__ import main
from research.qpu_check import checks as qpu_check

pytestmark = pytest.mark.once

TOKEN = "TEST-0123456789abcdef"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Runs the command once. Returns its output and its folder."""
    folder = tmp_path_factory.mktemp("qpu-check")
    patch = pytest.MonkeyPatch()
    patch.setenv("DWAVE_API_TOKEN", TOKEN)
    patch.setitem(mock.SHAPES, "pegasus", [6])  # a small chip, for speed
    lines = []
    patch.setattr("builtins.print", lambda *a, **k: lines.append(a))
    patch.setattr("builtins.input", lambda text: pytest.fail("asked"))
    code = main(["qpu-check", "--mock", "--output", str(folder)])
    patch.undo()
    assert code == 0, (folder / "report.md").read_text()
    return "\n".join(" ".join(map(str, line)) for line in lines), folder


def test_plan_is_printed_before_it_starts(written):
    out, folder = written
    plan, _, rest = out.partition("Estimated: ")
    for check in qpu_check.CHECKS:
        assert re.search(
            rf"^{check.name} +\d+\.\d  {check.title[:20]}", plan, re.M
        )
        assert re.search(rf"^{check.name} +passed$", rest, re.M)
    assert "Advantage_system4.1, August 2022" in rest
    assert "Budget: 20 s" in rest
    assert str(folder / "report.md") in rest


def test_page(written):
    _, folder = written
    page = (folder / "report.md").read_text()
    assert page.startswith("# QPU check on a simulated chip (mock)")
    assert f"{len(qpu_check.CHECKS)} passed, 0 failed" in page
    assert "FAILED" not in page
    for check in qpu_check.CHECKS:
        (row,) = re.findall(rf"^\| `{check.name}` \|.*$", page, re.M)
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 8 and cells[1] == "passed"
    for name in ("dwave-system", "dimod", "numpy"):
        assert re.search(rf"^\| {name} \| \d", page, re.M)


def load(folder, name):
    with open(folder / f"{name}.json") as file:
        return json.load(file, cls=DimodDecoder)


def test_raw_reads(written):
    """Gaps and energies follow from the raw reads."""
    _, folder = written
    found = load(folder, "ranges")
    (call,) = found["calls"]
    problem, answer = call["problem"], call["answer"]
    assert answer.record.sample.dtype == np.int8
    np.testing.assert_allclose(
        problem.energies(answer), answer.record.energy, rtol=1e-6, atol=1e-6
    )
    # The best of all 256 states of each column, by hand.
    (check,) = [c for c in qpu_check.CHECKS if c.name == "ranges"]
    (qubo,) = check.qubos(0)
    states = 2 * (np.arange(256)[:, None] >> np.arange(8) & 1) - 1
    energies = np.einsum("si,ij,sj->s", states, qubo.couplings, states)
    energies = energies[:, None] + states @ qubo.fields + qubo.offset
    best = energies.min(axis=0)
    spread = np.trace(qubo.couplings) + qubo.offset - best
    np.testing.assert_allclose(
        (np.array(found["energies"]) - best) / spread, found["gaps"], atol=1e-5
    )
    assert found["charged"] == pytest.approx(
        1e-6 * answer.info["timing"]["qpu_access_time"]
    )
    assert len(load(folder, "together")["calls"]) == 5


def test_token_is_in_no_file(written):
    out, folder = written
    assert TOKEN not in out
    for path in folder.iterdir():
        assert TOKEN.encode() not in path.read_bytes()


def test_sum_of_the_charged_time(written):
    out, folder = written
    charged = sum(
        load(folder, check.name)["charged"] for check in qpu_check.CHECKS
    )
    assert f"{charged:.3f} s charged" in out
    assert charged < 20


def small(monkeypatch):
    """Uses a small chip and two short checks, for speed."""
    (check,) = [c for c in qpu_check.CHECKS if c.name == "label"]
    both = [check, check._replace(name="again")]
    monkeypatch.setattr(qpu_check, "CHECKS", both)
    service = leap_service.Service(
        first={"topology": "pegasus", "shape": [3]},
        second={"topology": "pegasus", "shape": [3]},
    )
    return service


@pytest.mark.parametrize("answer", ["n", None, "y"])
def test_asks_before_it_spends(monkeypatch, tmp_path, capsys, answer):
    service = small(monkeypatch)

    def reply(text):
        assert "Run this on first?" in text
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", reply)
    arguments = ["qpu-check", "--solver", "first", "--output", str(tmp_path)]
    with service.connected():
        code = main(arguments)
    out = capsys.readouterr().out
    assert "Estimated: 0.0" in out
    if answer == "y":
        assert code == 0 and service.calls == 2 * ["first"]
        assert "check on first" in (tmp_path / "report.md").read_text()
    else:
        assert code == 1 and not service.calls
        assert "Nothing was sent" in out
        assert not list(tmp_path.iterdir())


def test_second_solver_if_the_first_is_offline(monkeypatch, tmp_path):
    service = small(monkeypatch)
    service.offline.add("first")
    solvers = ["--solver", "first", "--solver", "second"]
    with service.connected():
        arguments = ["qpu-check", *solvers, "--yes", "--output", str(tmp_path)]
        assert main(arguments) == 0
    assert service.calls == 2 * ["second"]


def test_plan_must_fit_the_budget(monkeypatch, tmp_path, capsys):
    service = small(monkeypatch)
    arguments = ["--budget-seconds", "0.01", "--yes", "--output", str(tmp_path)]
    with service.connected():
        assert main(["qpu-check", *arguments]) == 1
    assert "Received: --budget-seconds 0.01" in capsys.readouterr().err
    assert not service.calls and not list(tmp_path.iterdir())


def test_folder_is_created_before_it_spends(monkeypatch, tmp_path, capsys):
    service = small(monkeypatch)
    taken = tmp_path / "taken"
    taken.write_text("")
    with service.connected():
        arguments = ["qpu-check", "--yes", "--output", str(taken)]
        assert main(arguments) == 1
    message = capsys.readouterr().err
    assert "`--output`" in message and f"Received: --output {taken}" in message
    assert not service.calls


def test_interrupted_run_keeps_what_was_paid_for(monkeypatch, tmp_path):
    service = small(monkeypatch)

    def interrupt():
        raise KeyboardInterrupt

    service.plan[1] = interrupt
    with service.connected(), pytest.raises(KeyboardInterrupt):
        main(["qpu-check", "--yes", "--output", str(tmp_path)])
    assert load(tmp_path, "label")["check"] == "label"
    assert "1 passed, 0 failed" in (tmp_path / "report.md").read_text()


def test_failed_checks_are_reported(monkeypatch, tmp_path, capsys):
    service = small(monkeypatch)

    def fail():
        raise ValueError("broken | sampler\nof a test")

    service.plan[0] = fail
    with service.connected():
        arguments = ["qpu-check", "--yes", "--output", str(tmp_path)]
        assert main(arguments) == 1
    assert "1 of 2 checks failed" in capsys.readouterr().out
    page = (tmp_path / "report.md").read_text()
    assert "1 passed, 1 failed" in page
    assert "broken \\| sampler of a test" in page


def test_budget_holds_during_the_run():
    """A chip that takes longer than estimated does not exceed the budget."""
    chip = mock.MockQPU("pegasus", shape=[6])
    checks = {check.name: check for check in qpu_check.CHECKS}
    seconds = qpu_check.Runner(chip, 9.0).estimate(checks["together"])
    original = chip._timing
    chip._timing = lambda *a: {k: 2 * v for k, v in original(*a).items()}
    runner = qpu_check.Runner(chip, seconds)
    outcome = runner.run(checks["together"])
    assert not outcome.passed and "BudgetExceeded" in outcome.error
    assert 0 < runner.charged <= 1.2 * seconds
    assert len(outcome.calls) == 3


@pytest.mark.parametrize("value", ["0", "nan", "x"])
def test_invalid_budgets(value):
    with pytest.raises(SystemExit):
        main(["qpu-check", "--budget-seconds", value])


def test_no_token(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    empty = tmp_path / "dwave.conf"
    empty.write_text("[defaults]\n")
    monkeypatch.setenv("DWAVE_CONFIG_FILE", str(empty))
    assert main(["qpu-check", "--yes"]) == 1
    assert "token" in capsys.readouterr().err
