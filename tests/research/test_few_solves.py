"""Tests the study of few solver calls."""

import dataclasses

import numpy as np
import pytest

from research import __main__ as research
from research.few_solves import methods
from research.few_solves import numbers
from research.few_solves import page
from research.few_solves import records
from research.few_solves import study
from research.few_solves import tasks

pytestmark = pytest.mark.once
FEW = ("newton", "columns", "top", "whitened", "adam")


@pytest.fixture
def few_methods(monkeypatch):
    """Keeps a few methods with two configurations each."""
    chosen = {
        name: dataclasses.replace(
            methods.METHODS[name], grid=methods.METHODS[name].grid[:2]
        )
        for name in FEW
    }
    for module in (methods, study, numbers, page):
        monkeypatch.setattr(module, "METHODS", chosen)


def test_command_writes_a_page_and_resumes(
    tmp_path, few_methods, monkeypatch, capsys
):
    arguments = ["few-solves", "--quick", "--tasks", "logistic"]
    arguments += ["--out", str(tmp_path)]
    assert research.main(arguments) == 0
    text = (tmp_path / "RESULTS.md").read_text()
    for name in FEW:
        assert methods.METHODS[name].title in text
    assert "found by enumeration" in text
    assert (tmp_path / "logistic.png").stat().st_size > 0
    found = records.read(tmp_path, "logistic")
    assert len(found) == 2 * len(FEW) + 1
    assert not (tmp_path / "logistic").exists()  # packed into one file
    packed = (tmp_path / "logistic.json.gz").read_bytes()
    monkeypatch.setattr(study, "_runs", None)
    assert research.main(arguments) == 0  # computes nothing again
    assert (tmp_path / "logistic.json.gz").read_bytes() == packed
    assert "The page is" in capsys.readouterr().out


def test_enumerated_loss():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype("float32")
    y = rng.integers(2, size=20)
    best = min(
        np.mean(np.logaddexp(0, z) - y * z)
        for w in np.array(np.meshgrid(*[[-1, 1]] * 3)).T.reshape(-1, 3)
        for z in [x @ w / 3**0.5]
    )
    assert tasks.enumerated_loss(x, y) == pytest.approx(best, rel=1e-5)


def write(folder, method, configuration, losses):
    """Writes records in which all numbers of a seed are the same."""
    runs = [
        {
            "seed": seed,
            "results": {
                "2": {
                    f"{part}_{kind}": loss
                    for part in ("train", "validation", "test")
                    for kind in ("loss", "accuracy")
                }
            },
        }
        for seed, loss in losses.items()
    ]
    key = records.key(method, configuration)
    records.write(folder, "logistic", key, runs)


def test_configuration_is_chosen_on_tuning_seeds(tmp_path, few_methods):
    first = study.FIRST_TUNING_SEED
    good, other = methods.METHODS["newton"].grid[:2]
    # Better on the tuning seed, although worse on the others.
    write(tmp_path, "newton", good, {first: 0.1, 0: 0.9, 1: 0.7})
    write(tmp_path, "newton", other, {first: 0.2, 0: 0.1, 1: 0.1})
    write(tmp_path, "adam", methods.METHODS["adam"].grid[0], {first: 0.1})
    found = numbers.Numbers(tmp_path, "logistic")
    assert found.methods == ["newton"]  # that of adam is not complete
    assert found.chosen("newton", 2)[0] == good
    assert found.values("newton", 2, "test_loss") == {0: 0.9, 1: 0.7}
    mean, error = found.mean("newton", 2, "test_loss")
    assert (mean, error) == (pytest.approx(0.8), pytest.approx(0.1))
