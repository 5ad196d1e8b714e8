"""Tests the study of few solver calls."""

import dataclasses
import gzip
import json
import pathlib

import numpy as np
import pytest
from scipy import sparse

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.comparison.task import Split
from research import __main__ as research
from research import datasets
from research import studies
from research.experiments.tasks import networks
from research.few_solves import annealer
from research.few_solves import methods
from research.few_solves import page
from research.few_solves import study
from research.few_solves import tasks
from research.few_solves import training
from research.few_solves.tasks import TASKS

pytestmark = pytest.mark.once
ROOT = pathlib.Path(__file__).parents[2]
FEW = ("signum", "columns", "adam")


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


def test_names_of_the_command():
    assert list(studies.FEW_SOLVES) == list(TASKS)


def test_tuning_is_equal():
    for task in TASKS.values():
        counts = {len(method.grid) for method in task.methods.values()}
        assert len(counts) == 1, task.name
        assert task.reference in task.methods
        assert set(task.shown) <= set(task.methods)
        assert task.tested in task.counts


def test_command_writes_a_page_and_resumes(tmp_path, monkeypatch, capsys):
    task = shorten(monkeypatch, "logistic", FEW)
    found = quick_runs(tmp_path, "logistic")
    text = (tmp_path / "RESULTS.md").read_text()
    for method in task.methods.values():
        assert method.title in text
    assert "<!-- results:logistic/optima -->" in text
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


def add(folder, key, runs):
    store = study.open_store(folder, "logistic")
    for run in runs:
        store.add({**run, "key": key})


def test_removed_rules_are_shown_but_not_run(tmp_path, monkeypatch):
    task = shorten(monkeypatch, "logistic", ["newton", "adam"])
    assert set(quick_runs(tmp_path, "logistic")) == {"adam", study.OPTIMUM}
    # As if these runs were those of the removed rule.
    found = study.read(tmp_path, "logistic")
    grids = [task.methods[name].grid for name in ("adam", "newton")]
    for ours, removed in zip(*grids):
        runs = found[study.key("adam", ours)]
        add(tmp_path, study.key("newton", removed), runs)
    arguments = ["few-solves", "--page", "--output", str(tmp_path)]
    assert research.main(arguments) == 0
    assert "| Newton, exact | " in (tmp_path / "RESULTS.md").read_text()


def test_records_of_version_0_1_are_completed(tmp_path, monkeypatch):
    """It stored one dictionary by key. Missing seeds are added."""
    shorten(monkeypatch, "logistic", ["adam"])
    first = quick_runs(tmp_path / "new", "logistic")
    old = {}
    for key, runs in study.read(tmp_path / "new", "logistic").items():
        if key == study.OPTIMUM:
            old[key] = {str(run["seed"]): run["loss"] for run in runs}
        else:
            old[key] = [
                {"seed": run["seed"], "results": run["results"]}
                for run in runs[:1]
            ]
    (tmp_path / "old").mkdir()
    content = gzip.compress(json.dumps(old).encode())
    (tmp_path / "old" / "logistic.json.gz").write_bytes(content)
    again = quick_runs(tmp_path / "old", "logistic")
    assert len(again["adam"]) == len(first["adam"])
    for one, two in zip(first["adam"], again["adam"]):
        assert [r["results"] for r in one] == [r["results"] for r in two]


def test_page_of_the_repository_has_the_tables_of_its_records(monkeypatch):
    out = ROOT / "results" / "few-solves"
    before = (out / "RESULTS.md").read_text()
    monkeypatch.setattr(page.figures, "save", lambda *_: None)
    written = []
    monkeypatch.setattr(page.pages.disk, "write", lambda *a: written.append(a))
    page.write(out)
    assert not written and "<!-- results:annealer/pairs/tests -->" in before


def small_mnist(data_dir, download):
    rng = np.random.default_rng(0)
    y = np.arange(360) % 10
    x = rng.integers(100, size=(360, 28, 28)) + 15 * y[:, None, None]
    x, y = x.astype("uint8"), y.astype("uint8")
    return (x[:300], y[:300]), (x[300:], y[300:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist-5000", "mnist-bn-5000"])
def test_mnist(name, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "mnist", small_mnist)
    normalized = 0.0 if "bn" in name else None
    kept = ("columns-wide", "columns-top", "averaged", "signum", "adam")
    task = shorten(
        monkeypatch,
        name,
        kept,
        network=lambda splits: networks.mlp(
            (784, 6, 10), "binary", batch_normalization=normalized
        ),
    )
    found = quick_runs(tmp_path, name)
    assert set(found) == set(kept)
    for method, configurations in found.items():
        for run in configurations[0]:
            # A sweep has three solves per column.
            counts = ["3"] if "columns" in method else ["1", "2", "3"]
            assert list(run["results"]) == counts
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| column by column, `native` | - | - | " in text
    larger = name.replace("5000", "20000")
    arguments = ["few-solves", "--quick", "--tasks", larger]
    # Nothing was tuned in this folder.
    assert research.main([*arguments, "--output", str(tmp_path / "other")]) == 1
    task = shorten(monkeypatch, larger, ("adam",), network=task.network)
    quick_runs(tmp_path, larger)
    # Only the chosen configurations run, and without the tuning seeds.
    runs = study.read(tmp_path, larger).values()
    assert 1 <= len(runs) <= 3
    assert all(run["seed"] < 1000 for part in runs for run in part)
    assert page.Numbers(tmp_path, task).methods == ["adam"]


@pytest.mark.slow
def test_cora(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "citation", lambda *a, **k: small_graph())
    kept = ("averaged", "signum", "adam")
    task = shorten(monkeypatch, "cora", kept)
    assert set(quick_runs(tmp_path, "cora")) == set(kept)
    splits = task.load(None, [0], True)[0]
    method = task.methods["adam"]
    trainer = training.Trainer(task, method, method.grid[0], splits)
    kernel = trainer.model.get_layer("encoder").kernel
    results = trainer.run(0, splits, [1])
    after = kernel.numpy()
    assert results == trainer.run(0, splits, [1])  # with the same dropout
    trainer.run(1, splits, [1])
    assert (kernel.numpy() != after).any()


def small_graph():
    rng = np.random.default_rng(0)
    x = np.eye(40, dtype="float32")
    edges = rng.random((40, 40)) < 0.05
    part = np.arange(40) % 4
    return datasets.GraphData(
        name="cora",
        x=sparse.csr_matrix(x),
        a=sparse.csr_matrix((edges | edges.T).astype("float32")),
        y=np.arange(40) % 3,
        train_mask=part < 2,
        val_mask=part == 2,
        test_mask=part == 3,
    )


def test_methods_share_batches_and_initial_weights():
    """Training on a batch of all but one row depends on the seed alone."""
    task = dataclasses.replace(TASKS["logistic"], batch=100)
    splits = task.load(None, [0], True)[0]
    rows = splits["train"].rows
    first = [next(training._batches(100, 3, rows)) for _ in range(2)]
    assert (first[0] == first[1]).all() and len(set(first[0])) == 100
    batches = training._batches(100, 3, rows)
    drawn = [next(batches) for _ in range(2)]
    assert (drawn[0] == first[0]).all() and (drawn[1] != first[0]).any()
    kernels = []
    for name in ("adam", "averaged"):
        method = task.methods[name]
        trainer = training.Trainer(task, method, method.grid[0], splits)
        kernels.append(trainer._initial_weights(3)[0])
    assert (kernels[0] == kernels[1]).all()


def test_other_variables_have_their_own_optimizer():
    task = dataclasses.replace(TASKS["pairs"], real_rate=0.01)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 16)).astype("float32"), np.arange(20) % 2
    split = Split((x,), np.arange(20), y.astype("int32"))
    splits = dict.fromkeys(training.PARTS, split)
    trainer = training.Trainer(task, task.methods["sgd"], [0.0], splits)
    trainer.run(0, splits, [1])
    before, after = trainer._initial_weights(0), trainer.model.get_weights()
    assert (after[0] == before[0].astype("float32")).all()  # a rate of zero
    # The first step of Adam is its rate.
    assert np.abs(after[-1]) == pytest.approx(0.01, rel=1e-2)


def test_top_flips():
    """Each column flips its share of the weights with the largest gain."""
    couplings = np.array([[2.0, 0.5, 0.0, 0.0]] * 4)
    couplings = (couplings + couplings.T).astype("float32")
    start = np.array([1, -1, 1, -1], "float32")
    gradient = np.array([3.0, -2.0, 1.0, 1.0])
    # Gains 3, 2, 1 and -1: the last weight is never flipped.
    fields = gradient - 2 * couplings @ start
    qubo = kq.Qubo(couplings, np.repeat(fields[:, None], 3, 1))
    qubo.start = np.repeat(start[:, None], 3, 1).astype("int8")
    states = methods.TopFlips([0.25, 0.5, 1.0]).solve(qubo, seed=0).states
    assert states.T.tolist() == [
        [-1, -1, 1, -1],
        [-1, 1, 1, -1],
        [-1, 1, -1, -1],
    ]


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
    add(folder, study.key(method, configuration), runs)


def test_configuration_is_chosen_on_tuning_seeds(tmp_path, monkeypatch):
    task = TASKS["logistic"]
    first = study.FIRST_TUNING_SEED
    a, b, c, d = task.methods["newton"].grid
    # Better on the tuning seed, although worse on the others.
    write(tmp_path, "newton", a, {first: 0.3, 0: 0.2})
    write(tmp_path, "newton", b, {first: 0.1, 0: 0.9, 1: 0.7})
    write(tmp_path, "newton", c, {first: 0.2, 0: 0.1, 1: 0.1})
    write(tmp_path, "newton", d, {first: 0.3, 0: 0.5})
    # Not complete: some configurations, and the chosen one on fresh seeds.
    write(tmp_path, "adam", methods.METHODS["adam"].grid[0], {first: 0.1})
    for configuration in methods.METHODS["sgd"].grid:
        write(tmp_path, "sgd", configuration, {first: 0.1})
    found = page.Numbers(tmp_path, task)
    assert found.methods == ["newton"]
    assert not found.is_at_end("newton", 2)
    assert found.values("newton", 2, "test_loss") == {0: 0.9, 1: 0.7}
    mean, error = found.mean("newton", 2, "test_loss")
    assert (mean, error) == (pytest.approx(0.8), pytest.approx(0.1))
    assert found.has("newton", 2) and not found.has("newton", 3)
    write(tmp_path, "newton", d, {first + 1: -0.5})
    assert page.Numbers(tmp_path, task).is_at_end("newton", 2)


# --- Gurobi and the mock QPU ---

SOLVERS = ("columns-native", "columns-qpu", "columns-reads-qpu")


@pytest.mark.slow
def test_solvers_of_the_small_tasks(tmp_path, monkeypatch):
    few = {name: annealer.VARIANTS[name] for name in SOLVERS}
    monkeypatch.setattr(annealer, "VARIANTS", few)
    monkeypatch.setattr(annealer, "SEEDS", {"logistic": 2})
    arguments = [
        "few-solves",
        "--annealer",
        "--quick",
        "--output",
        str(tmp_path),
    ]
    assert research.main(arguments) == 0
    found = study.read(tmp_path, annealer.NAME)
    assert len(found) == len(SOLVERS)
    losses = [
        [run["results"]["2"]["train_loss"] for run in runs]
        for runs in found.values()
    ]
    # 12 inputs: all of them find the same optimum.
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)
    # One call per update, with the time of the cost model.
    backend = DWaveBackend(mock=True, num_reads=annealer.NUM_READS)
    for run in found["logistic_columns-qpu"]:
        assert run["results"]["2"]["calls"] == 2
        seconds = 2 * backend.step_cost([(12, 1)]).seconds
        assert run["results"]["2"]["qpu_seconds"] == pytest.approx(
            seconds, abs=1e-5
        )
    text = (tmp_path / "RESULTS.md").read_text()
    assert "<!-- results:annealer/logistic/details -->" in text
    packed = (tmp_path / "annealer.jsonl.gz").read_bytes()
    monkeypatch.setattr(study.Work, "__call__", None)
    assert research.main(arguments) == 0  # computes nothing again
    assert (tmp_path / "annealer.jsonl.gz").read_bytes() == packed


def test_tables_of_solvers(tmp_path):
    store = study.open_store(tmp_path, annealer.NAME)
    for variant, losses, calls in (
        ("newton-native", (0.5, 0.4), 0),
        ("newton-qpu", (0.5, 0.6), 3),
    ):
        for seed, loss in enumerate(losses):
            result = {
                "train_loss": loss,
                "test_accuracy": 0.75,
                "calls": calls,
                "qpu_seconds": 0.25 * calls,
            }
            results = {str(count): result for count in annealer.UPDATES}
            key = annealer.key("logistic", variant)
            store.add({"key": key, "seed": seed, "results": results})
    best = [{"seed": seed, "loss": loss} for seed, loss in ((0, 0.5), (1, 0.4))]
    add(tmp_path, study.OPTIMUM, best)
    found = page._annealer_blocks(tmp_path)
    start = "annealer/logistic"
    six = " | ".join(["0.4500"] * 6)
    assert f"| Newton, native | {six} |" in found[f"{start}/train_loss"]
    for name, share in (("native", "100%"), ("QPU", "50%")):
        six = " | ".join([share] * 6)
        assert f"| Newton, {name} | {six} |" in found[f"{start}/optima"]
    line = "| Newton, QPU | 0.5500 +- 0.0500 | 75.0 +- 0.0 | 3 | 0.75 |"
    assert line in found[f"{start}/details"]
    assert "| Newton, QPU | +0.1000 | 0.500 | " in found[f"{start}/tests"]
