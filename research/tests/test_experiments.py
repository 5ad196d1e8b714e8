"""Tests the plan, data and runs of `reproduce` on small synthetic data."""

import collections
import dataclasses
import functools
import os
import pathlib
import re
import types

import numpy as np
import pytest

from research import code_version
from research import datasets
from research.__main__ import main
from research.engine import methods
from research.engine import network
from research.engine import plan
from research.engine import records
from research.engine.methods import METHODS
from research.engine.methods import Update
from research.engine.task import FRESH
from research.engine.task import TUNING
from research.engine.task import Split
from research.engine.task import marked_kernels
from research.engine.training import Trainer
from research.engine.training import accuracy
from research.engine.training import trainer_of
from research.experiments import catalogue
from research.experiments import reproduce
from research.experiments import results
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.options import HOST
from research.experiments.options import Options
from research.experiments.results import Folder
from research.experiments.tasks import citation
from research.experiments.tasks import direction
from research.experiments.tasks import half_planes
from research.experiments.tasks import mnist_pairs
from research.experiments.tasks import networks

pytestmark = pytest.mark.once

sparse = pytest.importorskip("scipy.sparse")

ROOT = pathlib.Path(__file__).parents[2]
DATA = pathlib.Path(
    os.environ.get("KERAS_QPSBGD_DATA") or ROOT.parent / "shared" / "data"
)
ALL = tuple(METHODS)
FULL = Options(methods=ALL)
QUICK = Options(quick=True, seeds=1, methods=ALL)
PAPER = Options(paper=True, methods=ALL)

# Each pair is compiled.
RUNS = (
    ("logistic", "native"),
    ("adult-2layer", "proxquant"),
    ("mnist-pairs", "paper"),
    ("karate", "bop"),
    ("cora", "signum"),
    ("direction", "signsgd"),
)


# --- Synthetic data ---


@functools.cache
def made_up_adult():
    """Returns data of the real size in which all rows differ."""
    rng = np.random.default_rng(0)
    x = (rng.random((1_605 + 30_956, 123)) < 0.5).astype("float32")
    y = (x[:, 0] > rng.random(len(x))).astype("int32")
    return (x[:1_605], y[:1_605]), (x[1_605:], y[1_605:])


@functools.cache
def numbered_mnist():
    """Returns data of the real size; four pixels encode the image number."""
    numbers = np.arange(70_000, dtype=">u4").view("uint8").reshape(-1, 1, 4)
    y = np.random.default_rng(0).integers(10, size=70_000).astype("uint8")
    return (numbers[:60_000], y[:60_000]), (numbers[60_000:], y[60_000:])


@functools.cache
def small_graph(name):
    """Returns 80 nodes of three classes; "cora" has sparse features."""
    rng = np.random.default_rng(0)
    nodes, features = 80, 40
    x = np.zeros((nodes, features), "float32")
    x[np.arange(nodes), np.arange(nodes) // 2] = 1.0 + np.arange(nodes)
    if name == "pubmed":
        x += rng.random(x.shape).astype("float32") * (rng.random(x.shape) < 0.2)
    edges = rng.random((nodes, nodes)) < 0.02
    part = np.repeat([0, 1, 2, 3], [32, 12, 16, 20])
    return datasets.GraphData(
        name=name,
        x=sparse.csr_matrix(x),
        a=sparse.csr_matrix((edges | edges.T).astype("float32")),
        y=np.arange(nodes) % 3,
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )


def some_bits(images):
    """Returns the last 16 of the 32 bits of the image number."""
    return 2.0 * np.unpackbits(images[:, 0, 2:], axis=1) - 1.0


@pytest.fixture(scope="module", autouse=True)
def made_up_data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_QPSBGD_CACHE", str(tmp_path_factory.mktemp("bits")))
        patch.setattr(datasets, "adult", lambda *a, **k: made_up_adult())
        patch.setattr(datasets, "mnist", lambda *a, **k: numbered_mnist())
        patch.setattr(datasets, "citation", lambda n, *a, **k: small_graph(n))
        patch.setattr(citation, "TRAIN_PER_CLASS", 5)
        patch.setattr(citation, "VALIDATION_PER_CLASS", 5)
        patch.setattr(half_planes, "features", some_bits)
        yield


# --- Runs ---


def task_of(name, options=QUICK):
    return next(task for task in all_tasks(options) if task.name == name)


def all_tasks(options):
    return [t for e in EXPERIMENTS.values() for t in e.tasks(options)]


def all_items(options, folder):
    runs = records.Runs(folder)
    return [
        item
        for name in EXPERIMENTS
        for item in catalogue.items_of(name, options, runs)
    ]


@pytest.mark.parametrize("experiment, key", RUNS)
def test_two_steps(experiment, key, tmp_path):
    options = dataclasses.replace(QUICK, methods=(key,))
    item, *_ = catalogue.items_of(experiment, options, records.Runs(tmp_path))
    task = item.task
    short = dataclasses.replace(
        task, batches=lambda *a, **k: task.batches(*a, **k)[:1, :2]
    )
    work = plan.Work([dataclasses.replace(item, task=short)])
    (job,) = item._jobs(FRESH, item.grid[:1], [300])
    run = work(job)
    assert {measure.key for measure in task.measures} <= {*run["result"]}
    assert {measure.key for measure in task.curves} <= {*run["curves"]}
    assert np.isfinite(list(run["result"].values())).all()
    if not task.ablation and experiment != "direction":
        run = work({**job, "stage": TUNING, "seed": 1_000})
        assert task.chosen_by.key in run["result"]
        assert not any(key.startswith("test") for key in run["curves"])


# --- Data ---

SIZES = {
    "logistic": (320, 320, 1_000),
    "adult-2layer": (512, 1_000, 4_000),
    "adult-10layer": (512, 1_000, 4_000),
    "adult-small": (600, 1_000, 4_000),
    "mnist-pairs-0-2": (500, 1_000, 3_000),
    "mnist-pairs-1-2": (500, 1_000, 3_000),
    "mnist-pairs-1-7": (500, 1_000, 3_000),
    "karate": (20, 0, 14),
    "mnist": (60_000, 0, 10_000),
}
# Tasks that hold out training rows for tuning.
TUNING_SIZES = {
    "karate": (16, 4, 0),
    "mnist": (55_000, 5_000, 0),
}
NAMES = ("train", "validation", "test")


def rows_of(splits):
    return [splits[name].rows if name in splits else [] for name in NAMES]


def assert_disjoint(*groups):
    assert len(set().union(*groups)) == sum(map(len, groups))


@pytest.mark.parametrize("name", SIZES)
def test_splits(name):
    """Checks sizes, distinct rows, and that batches have training rows only."""
    task = task_of(name, FULL)
    source = task.load(None)
    for seed, stage in ((0, FRESH), (1, FRESH), (1_000, TUNING)):
        splits = task.splits(source, seed, stage)
        sizes = SIZES[name]
        if stage == TUNING:
            sizes = TUNING_SIZES.get(name, sizes)
        train, validation, test = rows_of(splits)
        assert (len(train), len(validation), len(test)) == sizes
        for rows in (train, validation, test):
            assert_disjoint(rows)
        # Except in logistic, training and validation share an array.
        if name == "karate" or "pairs" in name:
            assert_disjoint(train, validation, test)
        elif name != "logistic":
            assert_disjoint(train, validation)
            arrays = {id(split.inputs[0]) for split in splits.values()}
            assert len(arrays) == 1 + ("test" in splits)
        batches = task.batches(seed, train, stage)
        assert set(batches.flat) <= set(train)
        assert batches.ndim == 3


def test_random_splits_of_a_graph(monkeypatch):
    """Seeds may have graphs of different sizes, without any padding."""
    monkeypatch.setattr(citation, "TEST_NODES", 20)
    task = task_of("cora-binary")
    source = task.load(None)
    graph = small_graph("cora")
    a = citation.layers.BinaryGraphConv.preprocess(graph.a)
    every = a @ graph.x.toarray()
    sizes = set()
    trainer = Trainer(task, source, METHODS["signum"], {})
    for seed in range(300, 304):
        split = task.splits(source, seed, FRESH)["test"]
        x, rows = split.inputs
        assert len(x) == rows.shape[1] and len(rows) == len(split.y) == 20
        assert x.any(axis=1).all() and rows.any(axis=0).all()
        # The first node has all its neighbors.
        scale = np.sqrt(np.mean(np.square(every)))
        products = {tuple(np.round(row, 3)) for row in a @ every / scale}
        assert tuple(np.round((rows @ x)[0], 3)) in products
        sizes.add(len(x))
        result = trainer.run(seed, {"rate": 0.1}, FRESH)["result"]
        assert np.isfinite(list(result.values())).all()
    assert len(sizes) > 1


# --- The plan ---


def test_no_task_tunes_the_options_of_the_rule(tmp_path):
    for item in all_items(FULL, tmp_path):
        if not item.task.variants:
            allowed = {"rate", "real_rate", "regularization", "threshold"}
            assert all({*one} <= allowed for one in item.grid)


@pytest.mark.parametrize("options", [FULL, PAPER])
def test_all_methods_have_the_same_number_of_configurations(options, tmp_path):
    """Frozen kernels may have fewer."""
    sizes = {}
    for item in all_items(options, tmp_path):
        if item.is_tuned():
            texts = {records.text_of(one) for one in item.grid}
            name = item.method.key
            if item.task.variants:
                name = item.method.label
            sizes.setdefault(item.task.name, {})[name] = len(texts)
    for of_task in sizes.values():
        frozen = of_task.pop("frozen", 0)
        assert frozen <= max(of_task.values())
        assert len(set(of_task.values())) == 1


MOST = dataclasses.replace(FULL, seeds=catalogue.MAX_SEEDS)


@pytest.mark.parametrize("options", [FULL, PAPER, MOST])
def test_fresh_seeds_are_not_tuning_seeds(options, tmp_path):
    for item in all_items(options, tmp_path):
        assert not {*item.tuning_seeds} & {*item.fresh_seeds}
        assert item.num_missing() == item.size() > 0
        if options is PAPER:
            runs = 6 if item.task.name == "cora-ablation" else 10
            assert len(item.fresh_seeds) == runs


def record(item, stage, configuration, seed, score=0.5):
    """Writes a fake record of a run."""
    run = {
        "task": item.task.name,
        "method": item.method.label,
        "stage": stage,
        "configuration": configuration,
        "seed": seed,
        "result": {"validation_accuracy": score, "validation_loss": -score},
    }
    item.runs.add(run)


def tune(item, best):
    for job in item.jobs(TUNING):
        configuration = job["configuration"]
        score = float(configuration == best)
        record(item, TUNING, configuration, job["seed"], score)


def missing(item):
    """Returns the fresh runs that are missing."""
    jobs = [job for job in item.jobs(FRESH) if job not in item.runs]
    return [(job["configuration"], job["seed"]) for job in jobs]


def test_solvers_on_the_host_use_the_choice_of_native(tmp_path):
    options = dataclasses.replace(FULL, methods=("native", *HOST))
    runs = records.Runs(tmp_path)
    native, gurobi, dwave = catalogue.items_of("karate", options, runs)
    with pytest.raises(
        ValueError, match='"gurobi" in "karate" .* Received: inc'
    ):
        gurobi.jobs(FRESH)
    best = native.grid[2]
    tune(native, best)
    assert not dwave.jobs(TUNING)
    for item, seeds in ((native, 50), (gurobi, 10), (dwave, 10)):
        first = catalogue.FIRST_SEED
        assert missing(item) == [(best, first + seed) for seed in range(seeds)]
        # One of a previous choice, one of this choice.
        record(item, FRESH, native.grid[1], first)
        record(item, FRESH, best, first + 1)
        assert item.num_missing() == len(missing(item)) == seeds - 1


def test_runs_of_another_grid_are_refused(tmp_path):
    """Raises before runs are made, not when tables are written."""
    options = dataclasses.replace(FULL, methods=("native",))
    (item,) = catalogue.items_of("karate", options, records.Runs(tmp_path))
    tune(item, item.grid[0])
    item.check()
    record(item, TUNING, {"rate": 7.0}, 1000)
    with pytest.raises(ValueError, match="outside .*Received: .*7.0.*native"):
        item.check()


# --- The command ---


@pytest.mark.parametrize(
    "words, message",
    [
        (["all", "cara"], "`NAME` must be .* Received: cara"),
        (["karate", "--seeds", "681"], "at most 680.*Received: 681"),
        (["mnist", "--paper"], "no such experiment. Received: mnist"),
        (["karate", "--loss", "sum"], "`--loss` needs `--paper`"),
    ],
)
def test_wrong_words(words, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", *words, "--output", str(out)]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not out.exists()


def test_command(tmp_path, monkeypatch, capsys):
    """Writes tables, figures and a page, and resumes."""
    words = ["reproduce", "logistic", "--quick", "--seeds", "2"]
    words += ["--methods", "signum", "adam", "--processes", "1"]
    words += ["--output", str(tmp_path)]
    assert main(words) == 0
    page = (tmp_path / "README.md").read_text()
    assert "| BinaryConnect (Adam) |" in page
    assert (tmp_path / "logistic" / "logistic.png").stat().st_size > 0
    meta = records.read_meta(tmp_path / "logistic")
    assert "reproduce logistic --seeds 2" in meta["command"]
    assert meta["machines"] == [reproduce.machine()]
    assert meta["machines"][0]["threads"] == 1
    monkeypatch.setattr(plan.Work, "__call__", None)
    assert main(words) == 0
    assert (tmp_path / "README.md").read_text() == page
    assert main([*words, "--paper"]) == 1
    assert "Choose another folder" in capsys.readouterr().err


def test_verify(tmp_path, monkeypatch, capsys):
    """Only records that the present code repeats stop being older."""
    words = ["logistic", "--output", str(tmp_path), "--processes", "1"]
    quick = ["--quick", "--seeds", "1", "--methods", "adam", "signum"]
    assert main(["reproduce", *words, *quick]) == 0
    folder = tmp_path / "logistic"
    assert main(["verify", *words]) == 0
    assert "No records are older" in capsys.readouterr().out
    runs = records.read(folder)
    changed = next(run for run in runs if run["stage"] == FRESH)
    changed["result"]["test_loss"] += 1e-3
    lines = [records.line_of(records.plain(run)) for run in runs]
    records.write_packed(folder / "runs.jsonl.gz", lines)
    monkeypatch.setattr(code_version, "version", lambda *paths: "new")
    both = {"BinaryConnect (Adam)", "BinaryConnect (Signum)"}
    assert results.older(folder, runs) == both
    assert main(["verify", *words]) == 1
    assert capsys.readouterr().out.count("differs") == 1
    assert results.older(folder, runs) == {changed["method"]}


# --- One run ---


def kernels_of(trainer):
    return [kernel.numpy() for kernel in marked_kernels(trainer.model)]


def test_methods_start_alike(monkeypatch):
    """The first weights and the batches are the same, so runs are paired."""
    task = task_of("cora")
    source = task.load(None)
    seen = []

    def no_batches(seed, rows, stage):
        seen.append(task.batches(seed, rows, stage))
        return seen[-1][:0]

    still = dataclasses.replace(task, batches=no_batches)
    found = {}
    for key in ("signum", "proxquant", "real"):
        trainer = Trainer(still, source, METHODS[key], {})
        trainer.run(3, {"rate": 0.1}, FRESH)
        kernels = {id(kernel) for kernel in trainer.kernels}
        assert len(kernels) == 2
        found[key] = (
            [
                # ProxQuant may start from larger weights of the same sign.
                np.sign(w.numpy()) if id(w) in kernels else w.numpy()
                for w in trainer.model.weights
            ],
            None if key == "proxquant" else kernels_of(trainer),
        )
    weights, exactly = found["signum"]
    for others, kernels in found.values():
        assert len(others) == len(weights) == 6
        for left, right in zip(weights, others):
            np.testing.assert_array_equal(left, right)
        for left, right in zip(exactly, kernels or exactly):
            np.testing.assert_array_equal(left, right)
    assert all((batches == seen[0]).all() for batches in seen)
    trainer.run(4, {"rate": 0.1}, FRESH)
    assert not (kernels_of(trainer)[0] == exactly[0]).any()
    dropout = trainer.model_variables()[6:]
    assert [list(w.numpy()) for w in dropout] == [[4, 0]]
    assert (seen[-1] != seen[0]).any()


# --- The ablation ---


def test_without_couplings_is_signum_with_our_step_size():
    methods = {m.label: m for m, _ in task_of("ablation-cora-binary").variants}
    method = methods["no couplings (Signum with our step size)"]
    model = networks.mlp((3, 2), "binary")
    (kernel,) = marked_kernels(model)
    update = Update(method, model, [kernel], {})
    update.set_rates(0.1, 0.0)
    rng = np.random.default_rng(0)
    momentum, square, last = 0.0, 0.0, kernel.numpy()
    for step in range(1, 4):
        gradient = rng.normal(size=(3, 2)).astype("float32")
        update.apply([gradient])
        momentum = 0.9 * momentum + 0.1 * gradient
        square = 0.999 * square + 0.001 * np.mean(gradient**2)
        # Nesterov: one step ahead with the same gradient.
        ahead = 0.9 * momentum + 0.1 * gradient
        ahead /= 1 - 0.9 ** (step + 1)
        size = np.sqrt(np.mean(ahead**2) / (square / (1 - 0.999**step)))
        expected = last - 0.1 * size * np.sign(ahead)
        last = kernel.numpy()
        np.testing.assert_allclose(last, expected, rtol=1e-4, atol=1e-6)


# --- Accuracy ---


def test_ties_count_as_half_right():
    logits = np.array([[0.0], [0.0], [2.0], [-1.0]], "float32")
    y = np.array([0, 1, 1, 1])
    assert float(accuracy(logits, y)) == 0.5
    both = np.concatenate([0 * logits, logits], axis=1)
    assert float(accuracy(both, y)) == 0.5
    logits = np.array([[1, 1, 0], [1, 1, 0], [2, 1, 1], [np.nan] * 3])
    y = np.array([1, 2, 0, 0])
    assert float(accuracy(logits, y)) == (0.5 + 0 + 1 + 0) / 4


def test_constant_answer():
    y = np.array([1, 1, 1, 0, 1, 0, 0, 0, 1, 1])
    rows = {"train": np.arange(4), "test": np.arange(4, 10)}
    splits = {name: Split((), one, y) for name, one in rows.items()}
    task = types.SimpleNamespace(loss=None, splits=lambda *of: splits)
    make = trainer_of(task, METHODS["constant"])
    run = make(task, None, METHODS["constant"], {}).run(0, {}, FRESH)
    assert run["result"]["train_accuracy"] == 0.75
    assert run["result"]["test_accuracy"] == 0.5
    expected = -np.log([0.75, 0.25]).mean()
    assert run["result"]["test_loss"] == pytest.approx(expected)
    task.loss = len
    with pytest.raises(ValueError, match="classes. Received: loss="):
        make(task, None, METHODS["constant"], {})


def test_tables_of_adult_have_the_constant_answer(tmp_path):
    methods = {"constant": [], "native": []}
    for item in all_items(FULL, tmp_path):
        if item.method.key in methods and not item.task.variants:
            methods[item.method.key].append(item.task.name)
    adult = [name for name in methods["native"] if name.startswith("adult")]
    assert methods["constant"] == adult


# --- Directions ---


def test_direction_of_all_data():
    """With all rows in the batch, all signs of signSGD agree."""
    rng = np.random.default_rng(0)
    rows = np.arange(mnist_pairs.BATCH)
    x = np.sign(rng.normal(size=(len(rows), 16))).astype("float32")
    split = Split((x,), rows, rng.integers(2, size=len(rows)))
    source = types.SimpleNamespace(splits=lambda: {"train": split})
    task = direction.tasks(QUICK)[0]
    trainer = direction.DirectionTrainer(task, source, METHODS["signsgd"], {})
    result = trainer.run(0, {"rate": 0.03}, FRESH)["result"]
    # Two epochs of one step; zero gradients do not count.
    kernels = 16 * 4 + 4 * 4 + 4 * 2
    assert kernels < result["comparisons"] <= 2 * kernels
    assert result["agreement"] == 1.0
    assert result["z"] == pytest.approx(np.sqrt(result["comparisons"]))


def test_report_leaves_the_pages_of_the_repository(monkeypatch, tmp_path):
    """`python -m research pages` writes them, with other tables."""
    monkeypatch.setattr(results, "STORED", tmp_path)
    assert results.report([], Options(), tmp_path / "paper") is None
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(results, "STORED", tmp_path / "results")
    assert results.report([], Options(), tmp_path).exists()


# Methods that share a row of the table in `research.engine.methods`.
ROWS = {
    "native": ("native", "ridge", "paper"),
    "signsgd": ("signsgd", "signum"),
    **{key: (key,) for key in ("adam", "real", "sgd", "momentum")},
    "proxquant": ("proxquant",),
    "bop": ("bop",),
}


@pytest.mark.skipif(not DATA.exists(), reason="requires the real data")
def test_chosen_rates_are_those_of_the_docstring():
    """The last column of the table is computed from the records again."""
    folder = Folder(ROOT / "results", Options(data_dir=DATA))
    rows = {METHODS[key].label: row for row in ROWS for key in ROWS[row]}
    found = collections.defaultdict(list)
    for description, runs in folder.described:
        if description.name in ("cora", "pubmed", "ablation"):
            continue
        for task in description.tasks:
            reach = reaches(task, folder.options(description.name).data_dir)
            for run in runs:
                row = rows.get(run["method"])
                is_chosen = run["task"] == task.name and run["stage"] == FRESH
                if row and is_chosen:
                    name = "threshold" if row == "bop" else "rate"
                    value = run["configuration"][name]
                    found[row].append(value / reach[row])
    for row, values in found.items():
        line = re.search(rf"^\| {row}\b.*$", methods.__doc__, re.M)[0]
        low, high = line.split("|")[-2].split(" to ")
        for text, value in ((low, min(values)), (high, max(values))):
            digits = len(text.strip().replace(".", "").lstrip("0"))
            assert float(f"{value:.{digits}g}") == float(text), (row, value)


def reaches(task, data_dir):
    """Returns the factors of the default grids of a task, by row."""
    source = task.load(data_dir)
    model = task.build(source, "binary")
    rows = task.splits(source, 300, FRESH)["train"].rows
    evaluations, steps, _ = task.batches(300, rows, FRESH).shape
    short = (300 / (evaluations * steps)) ** (1 / 3)
    rate = network.latent_scale(model) * short
    deep = min(1, 2 / len(network.marked_kernels(model)))
    return {
        **dict.fromkeys(ROWS, rate * deep),
        "sgd": 1.0,
        "momentum": 1.0,
        "proxquant": short,
        "bop": rate**2,
    }


def test_graphs_of_binary_weights_report_seeds_of_their_own(tmp_path):
    """Results on the seeds from 300 on led to more tuning seeds there."""
    first = {
        item.task.name: item.fresh_seeds[0]
        for item in all_items(FULL, tmp_path)
    }
    assert first.pop("cora-binary") == first.pop("pubmed-binary") == 320
    assert set(first.values()) == {300}
