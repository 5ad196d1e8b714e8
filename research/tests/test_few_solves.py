"""Tests the study of few solver calls."""

import dataclasses
import pathlib

import numpy as np
import pytest

import keras_qpsbgd as kq
from keras_qpsbgd.columns import tail
from research import __main__ as research
from research.engine.task import Split
from research.few_solves import costs
from research.few_solves import curves
from research.few_solves import methods
from research.few_solves import numbers
from research.few_solves import page
from research.few_solves import study
from research.few_solves import tasks
from research.few_solves import training
from research.few_solves.tasks import TASKS

pytestmark = pytest.mark.once
ROOT = pathlib.Path(__file__).parents[2]
FEW = ("columns", "adam-mini")


def shorten(monkeypatch, name, kept, **changes):
    """Keeps a few methods of a task, with two configurations each."""
    task = TASKS[name]
    chosen = {
        method: dataclasses.replace(
            task.methods[method], grid=task.methods[method].grid[:2]
        )
        for method in kept
    }
    task = dataclasses.replace(task, methods=chosen, **changes)
    monkeypatch.setitem(TASKS, name, task)
    return task


def quick_runs(folder, name):
    """Runs the command, and returns the records by method."""
    arguments = ["few-solves", "--quick", "--tasks", name]
    assert research.main([*arguments, "--output", str(folder)]) == 0
    found = {}
    for key, runs in study.read(folder, name).items():
        found.setdefault(key.split("_")[0], []).append(runs)
    return found


def random_splits(sizes, count=40):
    """Returns the same random samples for all parts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, sizes[0])).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return dict.fromkeys(training.PARTS, Split((x,), np.arange(count), y))


def test_tuning_is_equal():
    for task in TASKS.values():
        counts = {
            len(method.grid)
            for name, method in task.methods.items()
            if name != "columns-qpu"
        }
        assert len(counts) == 1, task.name
        assert set(task.methods) <= set(curves.STYLES)
        assert methods.SWEEPS in task.counts[methods.COLUMNS]


def test_command_writes_a_page_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study.os, "environ", {})  # the command sets threads
    task = shorten(monkeypatch, "logistic", FEW)
    found = quick_runs(tmp_path, "logistic")
    text = (tmp_path / "README.md").read_text()
    for method in task.methods.values():
        assert method.title in text
    assert "<!-- results:optima -->" in text
    assert (tmp_path / "logistic.png").stat().st_size > 0
    assert set(found) == {*FEW, study.OPTIMUM}
    for name in FEW:
        seeds = [len(runs) for runs in found[name]]
        # Those that were not chosen only have the tuning seed.
        assert max(seeds) == 3 and set(seeds) <= {1, 3}
    assert not (tmp_path / "logistic.jsonl").exists()  # packed
    packed = (tmp_path / "logistic.jsonl.gz").read_bytes()
    monkeypatch.setattr(study.Work, "__call__", None)
    quick_runs(tmp_path, "logistic")  # computes nothing again
    assert "The page is" in capsys.readouterr().out
    assert (tmp_path / "logistic.jsonl.gz").read_bytes() == packed


def test_page_of_the_repository_has_the_tables_of_its_records(monkeypatch):
    out = ROOT / "results" / "few-solves"
    monkeypatch.setattr(page.figures, "save", lambda *_: None)
    written = []
    monkeypatch.setattr(page.pages.disk, "write", lambda *a: written.append(a))
    page.write(out)
    assert not written


# --- Training ---


def test_enumerated_loss():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype("float32")
    y = rng.integers(2, size=20)
    best = min(
        np.mean(np.logaddexp(0, z) - y[:15] * z)
        for w in np.array(np.meshgrid(*[[-1, 1]] * 3)).T.reshape(-1, 3)
        for z in [x[:15] @ w / 3**0.5]
    )
    split = Split((x,), np.arange(15), y)
    assert tasks.enumerated_loss(split) == pytest.approx(best, rel=1e-5)


def test_rates_fall_to_zero_at_the_end_of_each_run(monkeypatch):
    task = dataclasses.replace(TASKS["digits"], sizes=(6, 3, 2), mini=8)
    method, splits = task.methods["adam-mini"], random_splits(task.sizes)
    trainer = training.Trainer(task, method, [0.2], splits)
    (optimizer, _), *_ = trainer._parts
    seen, original = [], trainer._make_update

    def update(*arguments):
        seen.append(float(optimizer.learning_rate))
        original(*arguments)

    monkeypatch.setattr(trainer, "_make_update", update)
    found = trainer.run(0, splits, (4, 2), rate=0.4)
    cosine = [0.4, 0.4 * (1 + 0.5**0.5) / 2, 0.2, 0.4 * (1 - 0.5**0.5) / 2]
    np.testing.assert_allclose(seen, [*cosine, 0.4, 0.2], rtol=1e-5)
    # A run does not depend on those before it.
    again = training.Trainer(task, method, [0.4], splits).run(0, splits, (2,))
    for part in training.PARTS:
        assert again[2][f"{part}_loss"] == found[2][f"{part}_loss"]
    assert found[4]["gradients"] == 4


# --- Costs ---

SIZES = (12, 6, 5, 3)
SHAPES = tuple(zip(SIZES, SIZES[1:]))


def test_sweep_counts_at_least_what_it_computes(monkeypatch):
    """The products of a sweep, counted where they are computed."""
    splits = random_splits(SIZES)
    split = splits["train"]
    model = dataclasses.replace(TASKS["digits"], sizes=SIZES).network()
    model.compile(loss="mse")
    seen = {"derivatives": 0, "losses": 0}
    for name in seen:
        original = getattr(tail.Tail, name)

        def counted(self, column, *rest, name=name, original=original):
            seen[name] += rest[0].shape[1] if rest else 1
            return original(self, column, *rest)

        monkeypatch.setattr(tail.Tail, name, counted)
    dampings = [0.5, 2.0]
    kq.fit_columns(
        model,
        split.inputs[0],
        np.zeros((len(split.y), SIZES[-1])),
        sweeps=1,
        dampings=dampings,
        verbose=0,
    )
    columns = sum(SIZES[1:])
    assert 0 < seen["derivatives"] <= columns
    assert 0 < seen["losses"] <= columns * len(dampings)
    # All visits: layers of 6, 5 and 3 columns, with the layers after them.
    visits = 6 * (5 + 5 * 3) + 5 * 3
    own = 12 * 6 + 6 * 5 + 5 * 3
    expected = 3 * own + 12**2 + 6**2 + 5**2
    expected += (costs.PASSES + len(dampings)) * visits
    expected += (1 + len(dampings)) * own
    assert costs.sweep(SHAPES, len(dampings)) == expected


def test_qpu_seconds_are_those_of_training():
    x = np.random.default_rng(0).normal(size=(30, 6)).astype("float32")
    y = (np.arange(30) % 2).astype("int32")
    task = dataclasses.replace(TASKS["digits"], sizes=(6, 3, 2))
    model = task.network()
    model.compile(loss=training._loss(model))
    arguments = methods.columns_qpu([1.0, 4.0])
    history = kq.fit_columns(model, x, y, sweeps=1, verbose=0, **arguments)
    assert history.qpu_seconds == pytest.approx(
        costs.qpu_seconds(task.shapes, 2), rel=1e-3
    )
    optimizer = kq.QPSBGD(backend={"name": "dwave", "mock": True})
    estimate = optimizer.estimate(task.network(), steps=1)
    assert costs.qpu_seconds(task.shapes) == pytest.approx(
        estimate.seconds, rel=1e-3
    )


@pytest.mark.parametrize("name", ["logistic", "digits"])
def test_runs_end_at_the_budget(name):
    task, rows = TASKS[name], 300
    ours = costs.price(task, task.methods[methods.OURS], rows)
    for method in task.methods:
        if task.methods[method].kind == methods.COLUMNS:
            continue
        counts = costs.counts(task, method, rows)
        theirs = costs.price(task, task.methods[method], rows)
        for budget, cost in zip(ours, theirs):
            rest = [methods.SWEEPS * budget - count * cost for count in counts]
            # One of the runs leaves less than what an update costs.
            assert not cost or any(-1e-5 * budget < r < cost for r in rest)


# --- The page ---


def write(folder, method, configuration, losses, cost=1.0):
    """Writes records in which all measures of a seed are the same.

    Two sweeps or updates have the cost, and one has half of it.
    """
    store = study.open_store(folder, "logistic")
    for seed, loss in losses.items():
        result = {
            f"{part}_{kind}": loss
            for part in training.PARTS
            for kind in ("loss", "accuracy")
        }
        results = {
            str(count): result | dict.fromkeys(page.AXES, count * cost / 2)
            for count in (1, 2)
        }
        key = study.key(method, configuration)
        store.add({"key": key, "seed": seed, "results": results})


def test_configuration_is_chosen_on_tuning_seeds(tmp_path, monkeypatch):
    task = TASKS["logistic"]
    first, fresh = study.FIRST_TUNING_SEED, study.FIRST_FRESH_SEED
    a, b, *others = task.methods["columns"].grid
    # Better on the tuning seed, although worse on the others.
    write(tmp_path, "columns", a, {first: 0.3, fresh: 0.2})
    write(tmp_path, "columns", b, {first: 0.1, fresh: 0.9, fresh + 1: 0.7})
    for configuration in others:
        write(tmp_path, "columns", configuration, {first: 0.2, fresh: 0.1})
    # Not complete: some configurations, and the chosen one on fresh seeds.
    write(tmp_path, "adam", task.methods["adam"].grid[0], {first: 0.1})
    for configuration in task.methods["signum"].grid:
        write(tmp_path, "signum", configuration, {first: 0.1})
    found = numbers.Numbers(tmp_path, task)
    assert found.methods == ["columns"] and found.counts("columns") == [1, 2]
    assert not found.is_at_end("columns", 2)
    values = found.values("columns", 2, "test_loss")
    assert values == {fresh: 0.9, fresh + 1: 0.7}
    mean, error = found.mean("columns", 2, "test_loss")
    assert (mean, error) == (pytest.approx(0.8), pytest.approx(0.1))
    write(tmp_path, "columns", others[-1], {first + 1: -0.5})
    assert numbers.Numbers(tmp_path, task).is_at_end("columns", 2)


def test_rivals_are_compared_at_equal_cost(tmp_path):
    task = TASKS["logistic"]
    first, fresh = study.FIRST_TUNING_SEED, study.FIRST_FRESH_SEED
    for name, tuned, cost in (
        ("columns", 0.1, 10.0),
        ("adam", 0.3, 10.0),
        ("signum", 0.2, 10.1),
        ("adam-mini", 0.4, 5.0),
    ):
        for configuration in task.methods[name].grid:
            runs = {first: tuned, fresh: tuned, fresh + 1: 1.01 * tuned}
            write(tmp_path, name, configuration, runs, cost=cost)
    found = numbers.Numbers(tmp_path, task)
    budget = found.cost("columns", 2, "gradients")
    rivals = ("adam", "signum", "adam-mini")
    # The most updates within the budget. Two of Signum cost more.
    assert found.at_budget(rivals, "gradients", budget) == ("signum", 1)
    rivals = ("adam", "adam-mini")
    assert found.at_budget(rivals, "gradients", budget) == ("adam", 2)
    assert found.at_budget(rivals, "gradients", 9.0) == ("adam", 1)
    assert found.at_budget(rivals, "gradients", 4.0) == ("adam-mini", 1)
    assert found.at_budget(rivals, "gradients", 1.0) is None
    test = found.test(("columns", 2), ("adam", 2), page.LOSS)
    assert page._verdict(test, page.LOSS) == "ahead of"
    assert page._verdict(test, page.ACCURACY) == "behind"


def test_sign_test():
    ours = {seed: True for seed in range(6)}
    assert numbers.sign_test(ours, dict.fromkeys(range(6), False)) == 2 / 2**6
    assert numbers.sign_test(ours, ours) == 1.0
