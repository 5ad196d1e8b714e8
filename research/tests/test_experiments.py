"""Tests the plan, data and runs of `reproduce` on small synthetic data."""

import collections
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import types

import filelock
import numpy as np
import pytest
import tensorflow as tf

from keras_qpsbgd import layers
from research import datasets
from research.__main__ import main
from research.engine import plan
from research.engine import records
from research.engine import statistics
from research.engine.methods import METHODS
from research.engine.methods import Update
from research.engine.task import FRESH
from research.engine.task import TUNING
from research.engine.task import Split
from research.engine.task import marked_kernels
from research.engine.training import Trainer
from research.experiments import catalogue
from research.experiments import reproduce
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.options import HOST
from research.experiments.options import Options
from research.experiments.tasks import citation
from research.experiments.tasks import direction
from research.experiments.tasks import half_planes
from research.experiments.tasks import mnist_pairs
from research.experiments.tasks import networks

pytestmark = pytest.mark.once

sparse = pytest.importorskip("scipy.sparse")

ROOT = pathlib.Path(__file__).parents[2]
REAL = pathlib.Path(
    os.environ.get("KERAS_QPSBGD_DATA") or ROOT.parent / "shared" / "data"
)
ALL = tuple(METHODS)
FULL = Options(methods=ALL)
QUICK = Options(quick=True, seeds=1, methods=ALL)
PAPER = Options(paper=True, methods=ALL)

# Few methods per experiment, since each is compiled; together all methods.
RUNS = {
    "logistic": ("native", *HOST, "ridge", "paper", "sgd", "bop", "momentum"),
    "adult-2layer": ("proxquant",),
    "adult-10layer": ("adam",),
    "adult-small": ("sgd",),
    "mnist-pairs": ("signsgd",),
    "karate": ("frozen", "real"),
    "cora": ("native",),
    "pubmed": ("signum",),
    "direction": ("native", "signsgd"),
    "mnist": ("adam",),
    "ablation": ("native",),
}


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


def numbers_of(images):
    """Returns the numbers in the images; test images start at 60,000."""
    bytes_ = np.ascontiguousarray(images).reshape(len(images), 4)
    return bytes_.view(">u4")[:, 0]


CITATION = datasets.citation  # the fixture `made_up_data` replaces it


@functools.cache
def small_mnist():
    """Returns a few images of the usual shape."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(600, 28, 28)).astype("uint8")
    y = rng.integers(10, size=600).astype("uint8")
    return (x[:500], y[:500]), (x[500:], y[500:])


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


def made_up_mnist(data_dir, download):
    assert download
    return small_mnist() if data_dir == "mnist" else numbered_mnist()


def some_bits(images):
    """Returns the last 16 of the 32 bits of the image number."""
    return 2.0 * np.unpackbits(images[:, 0, 2:], axis=1) - 1.0


# Other tests also use the runs of these experiments.
SHORT = ("logistic", "pubmed")


@pytest.fixture(scope="module", autouse=True)
def made_up_data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_QPSBGD_CACHE", str(tmp_path_factory.mktemp("bits")))
        patch.setattr(datasets, "adult", lambda *a, **k: made_up_adult())
        patch.setattr(datasets, "mnist", made_up_mnist)
        patch.setattr(datasets, "citation", lambda n, *a, **k: small_graph(n))
        patch.setattr(citation, "TRAIN_PER_CLASS", 5)
        patch.setattr(citation, "VALIDATION_PER_CLASS", 5)
        patch.setattr(half_planes, "features", some_bits)
        yield


# --- Runs ---


def items_of(experiment, folder, options=QUICK, keys=None):
    options = dataclasses.replace(
        options, methods=keys or RUNS[experiment], data_dir=experiment
    )
    found = catalogue.items_of(experiment, options, records.Runs(folder))
    if experiment == "ablation":  # the others differ in settings alone
        found = found[:3]
    return [faster(item) for item in found]


def faster(item):
    """Replaces `native` by a solver that compiles faster in some tasks."""
    if not item.task.name.startswith(("cora", "direction")):
        return item
    if item.method.key != "native":
        return item
    method = dataclasses.replace(item.method, backend="sign")
    return dataclasses.replace(item, method=method)


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


def make(items):
    """Makes the missing runs in this process."""
    plan.make_missing(items, processes=1, verbose=0)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Returns a function from an experiment to the folder of its runs."""
    out = tmp_path_factory.mktemp("results")

    @functools.cache
    def folder_of(experiment):
        make(items_of(experiment, out / experiment))
        return out / experiment

    return folder_of


@pytest.mark.parametrize(
    "experiment",
    [
        name if name in SHORT else pytest.param(name, marks=pytest.mark.slow)
        for name in EXPERIMENTS
    ],
)
def test_experiment_runs(experiment, results):
    runs = records.read(results(experiment))
    found = collections.Counter(
        (r["task"], r["method"], r["stage"]) for r in runs
    )
    for item in items_of(experiment, results(experiment)):
        assert not item.num_missing()
        of_item = (item.task.name, item.method.label)
        assert found.pop((*of_item, TUNING), 0) == len(item.jobs(TUNING))
        fresh = len(item.grid) if item.task.ablation else 1
        assert found.pop((*of_item, FRESH)) == fresh
    assert not found
    shown = {t.name: t for t in EXPERIMENTS[experiment].tasks(QUICK)}
    for run in runs:
        keys = {*run["result"], *run["curves"]}
        if run["stage"] == TUNING:
            assert shown[run["task"]].chosen_by.key in run["result"]
            assert not any(key.startswith("test") for key in keys)
            continue
        task = shown[run["task"]]
        assert {measure.key for measure in task.measures} <= {*run["result"]}
        assert {measure.key for measure in task.curves} <= {*run["curves"]}
        assert np.isfinite(list(run["result"].values())).all()


def test_every_method_runs():
    assert {key for keys in RUNS.values() for key in keys} == set(METHODS)


# The first solves QUBOs, the second has dropout and an inner optimizer, the
# third has batch normalization.
@pytest.mark.parametrize(
    "experiment, key",
    [
        ("logistic", "native"),
        ("pubmed", "signum"),
        pytest.param("mnist", "adam", marks=pytest.mark.slow),
    ],
)
def test_runs_depend_only_on_the_seed(experiment, key, results, tmp_path):
    """They are the same in any order."""
    item = items_of(experiment, results(experiment), keys=(key,))[0]
    found = item.records()
    assert {run["stage"] for run in found} == {TUNING, FRESH}
    work, runs = plan.Work([item]), records.Runs(tmp_path)
    other = {**found[-1], "seed": 5}
    runs.add({**other, **work(other)})
    for run in found[::-1]:
        runs.add({**run, **work(run)})
        assert runs[run] == run
    assert runs[other]["result"] != found[-1]["result"]


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


def test_every_seed_draws_new_blobs():
    task = task_of("logistic", FULL)
    points = [
        splits[name].inputs[0][:, 0]
        for seed in (0, 1)
        for splits in [task.splits(None, seed, FRESH)]
        for name in NAMES
    ]
    assert_disjoint(*points)


def test_adult_is_tested_on_its_test_part():
    (x, y), (x_test, y_test) = made_up_adult()
    task = task_of("adult-10layer", FULL)
    source = task.load(None)
    first, second = (task.splits(source, seed, FRESH) for seed in (0, 1))
    known = {row.tobytes(): k for row, k in zip(x_test, y_test)}
    for split in (first["test"], second["test"]):
        rows = (split.inputs[0][split.rows] + 1) / 2
        assert [known[row.tobytes()] for row in rows] == list(split.y)
    np.testing.assert_array_equal(
        first["test"].inputs[0], second["test"].inputs[0]
    )
    np.testing.assert_array_equal(first["train"].inputs[0], 2 * x - 1)
    np.testing.assert_array_equal(first["train"].y, y)
    assert set(first["train"].rows) != set(second["train"].rows)


def test_features_of_adult():
    """Features are balanced; with `--paper` the seed draws them."""
    task, paper = (task_of("adult-small", o) for o in (FULL, PAPER))
    source = task.load(None)
    shares = made_up_adult()[0][0].mean(axis=0)
    nearest = np.sort(np.argsort(np.abs(shares - 0.5), kind="stable")[:3])
    assert list(source.features(0)) == list(source.features(1)) == list(nearest)
    source = paper.load(None)
    assert list(source.features(0)) != list(source.features(1))
    assert len(source.features(0)) == 3


def test_digits_are_tested_on_others():
    """Images on which the recipe was chosen are not used for testing."""
    (_, y), (_, y_test) = numbered_mnist()
    task = task_of("mnist-pairs-1-7", FULL)
    source = task.load(None)
    train, validation, test = (
        numbers_of(source.images[rows]) for rows in rows_of(source.splits())
    )
    assert_disjoint(train, validation, test)
    early = np.concatenate(
        [np.flatnonzero(y == k)[: half_planes.FIRST_IMAGES] for k in (1, 7)]
    )
    assert {*train, *validation} <= {*early}
    assert not {*test} & {*early}
    # They include all test images of MNIST.
    assert {*(60_000 + np.flatnonzero(np.isin(y_test, (1, 7))))} <= {*test}
    digits = np.concatenate([y, y_test])
    splits = source.splits()
    for name, numbers in zip(NAMES, (train, validation, test)):
        rows = splits[name].rows
        np.testing.assert_array_equal(
            digits[numbers], np.where(splits[name].y[rows], 7, 1)
        )
        np.testing.assert_array_equal(
            splits[name].inputs[0][rows], some_bits(source.images[rows])
        )


@pytest.mark.parametrize("stage", [TUNING, FRESH])
def test_ten_digits_are_split_by_content(stage):
    task = task_of("mnist", FULL)
    splits = task.splits(task.load(None), 0, stage)
    digits = np.concatenate([part[1] for part in numbered_mnist()])
    groups = []
    for split in splits.values():
        pixels = np.rint((split.inputs[0][split.rows] + 1) * 127.5)
        groups.append(numbers_of(pixels.astype("uint8")))
        np.testing.assert_array_equal(split.y[split.rows], digits[groups[-1]])
    assert_disjoint(*groups)
    # All other images are for training or held out for tuning.
    known = groups if stage == TUNING else groups[:1]
    assert set().union(*known) == set(range(60_000))


def test_groups_of_the_karate_club():
    """Tuning holds out one of five members of each group.

    Test members are the same for all seeds and not used for tuning.
    """
    task = task_of("karate", FULL)
    source = task.load(None)
    held = set()
    for seed in range(20):
        fresh = task.splits(source, seed, FRESH)
        kept, left_out, tested = rows_of(task.splits(source, seed, TUNING))
        assert {*kept, *left_out} == {*fresh["train"].rows}
        assert not len(tested)
        assert list(np.bincount(source.y[kept])) == [4] * 4
        assert list(np.bincount(source.y[left_out])) == [1] * 4
        held.update(left_out)
        assert not held & {*fresh["test"].rows}
    assert len(held) > 15


@pytest.mark.parametrize("name", ["cora", "pubmed"])
def test_part_of_a_graph_is_enough(name):
    """The logits of a node are those of the whole graph."""
    graph = small_graph(name)
    task = task_of(name)
    source = task.load(None)
    assert source.is_sparse == (name == "cora")
    model = task.build(source, "binary")
    a = tf.sparse.from_dense(
        layers.BinaryGraphConv.preprocess(graph.a).toarray()
    )
    x = tf.constant(graph.x.toarray())
    x = tf.sparse.from_dense(x) if source.is_sparse else x
    whole = model([x, a], training=False).numpy()
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    splits = task.splits(source, 0, FRESH)
    for name, mask in zip(NAMES, masks):
        split = splits[name]
        assert split.inputs[1].shape[0] < graph.num_nodes
        found = task.logits(model, split.inputs, split.rows, training=False)
        np.testing.assert_allclose(found, whole[mask], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(split.y[split.rows], graph.y[mask])


@pytest.mark.parametrize("name", ["cora", "pubmed"])
def test_random_splits(name):
    """Nodes and their neighbors give the logits of the whole graph."""
    graph = small_graph(name)
    task = task_of(f"{name}-binary")
    source = task.load(None)
    model = task.build(source, "binary")
    a = layers.BinaryGraphConv.preprocess(graph.a).toarray()
    x = a @ graph.x.toarray()
    x /= np.sqrt(np.mean(np.square(x)))
    whole = model([x, a], training=False).numpy()
    for seed in (0, 1):
        nodes = []
        for split in task.splits(source, seed, FRESH).values():
            found = task.logits(model, split.inputs, split.rows, False).numpy()
            places = [
                np.flatnonzero(np.all(np.isclose(x, row, atol=1e-6), axis=1))
                for row in split.inputs[0][split.rows]
            ]
            assert all(len(place) == 1 for place in places)
            nodes.append(np.concatenate(places))
            np.testing.assert_allclose(
                found, whole[nodes[-1]], rtol=1e-4, atol=1e-5
            )
            np.testing.assert_array_equal(
                split.y[split.rows], graph.y[nodes[-1]]
            )
        assert_disjoint(*nodes)
        assert [len(rows) for rows in nodes] == [15, 15, 50]


@pytest.mark.parametrize("name, nodes", [("cora", 140), ("pubmed", 60)])
def test_real_graphs(name, nodes, monkeypatch):
    if not (REAL / "mnist.npz").is_file():
        pytest.skip("the real data are not on this machine")
    monkeypatch.setattr(datasets, "citation", CITATION)
    splits = task_of(name, FULL).load(REAL).splits
    assert [len(rows) for rows in rows_of(splits)] == [nodes, 500, 1_000]


# --- The plan ---


@pytest.mark.parametrize("options", [FULL, QUICK, PAPER])
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
    graphs = {"cora", "pubmed"}
    if not options.paper:
        graphs |= {"cora-binary", "pubmed-binary"}
    ablations = {name for name in sizes if name.startswith("ablation-")}
    assert {*sizes} == {*SIZES} | graphs | ablations
    for name in ablations:
        assert len(set(sizes.pop(name).values())) == 1
    for name, of_task in sizes.items():
        frozen = of_task.pop("frozen", 0)
        assert frozen <= max(of_task.values())
        assert len(set(of_task.values())) == 1
        # The others have one configuration or that of another method.
        untuned = {"frozen", *HOST}
        if options.paper and name == "logistic":
            untuned |= {"native", "ridge", "paper", "signsgd", "sgd"}
        assert {*of_task} == {*task_of(name, options).methods} - untuned


MOST = dataclasses.replace(FULL, seeds=catalogue.MAX_SEEDS)


@pytest.mark.parametrize("options", [FULL, QUICK, PAPER, MOST])
def test_fresh_seeds_are_not_tuning_seeds(options, tmp_path):
    for item in all_items(options, tmp_path):
        assert not {*item.tuning_seeds} & {*item.fresh_seeds}
        assert item.num_missing() == item.size() > 0
        if options is PAPER:
            runs = 6 if item.task.name == "cora-ablation" else 5
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


@pytest.mark.parametrize("position", [0, 2])
def test_solvers_on_the_host_use_the_choice_of_native(position, tmp_path):
    options = dataclasses.replace(FULL, methods=("native", *HOST))
    runs = records.Runs(tmp_path)
    native, gurobi, dwave = catalogue.items_of("karate", options, runs)
    with pytest.raises(
        ValueError, match='"gurobi" in "karate" .* Received: inc'
    ):
        gurobi.jobs(FRESH)
    best = native.grid[position]
    tune(native, best)
    assert not dwave.jobs(TUNING)
    for item, seeds in ((native, 50), (gurobi, 10), (dwave, 10)):
        first = item.task.first_seed
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


def test_more_seeds_only_add_runs(results, tmp_path):
    folder = tmp_path / "logistic"
    shutil.copytree(results("logistic"), folder)
    before = records.read(folder)
    records.pack(folder)
    options = dataclasses.replace(QUICK, seeds=2)
    make(items_of("logistic", folder, options, ("sgd",)))
    after = records.read(folder)
    (new,) = [run for run in after if run not in before]
    assert len(after) == len(before) + 1
    assert (new["method"], new["stage"], new["seed"]) == (
        METHODS["sgd"].label,
        FRESH,
        301,
    )


@pytest.mark.parametrize("folder", ["results", "results/paper"])
def test_runs_of_the_repository_are_packed_and_complete(folder):
    folders = [path.parent for path in (ROOT / folder).glob("*/meta.json")]
    assert folders
    for path in folders:
        assert not list(path.glob("**/*.jsonl"))
        if path.name not in EXPERIMENTS:  # `quantize` has its own test
            continue
        settings = json.loads((path / "settings.json").read_text())
        keys = ("native", "sgd", "signsgd", "adam", "proxquant")
        options = Options(
            quick=settings["quick"], paper=settings["paper"], methods=keys
        )
        runs = records.Runs(path)
        # The pages say which tasks have no runs.
        stored = {run["task"] for run in runs.records}
        for item in catalogue.items_of(path.name, options, runs):
            if item.task.name in stored:
                item.check()
                assert item.num_missing() == 0, (path, item.method.key)


# --- `--paper` ---


def test_paper_states_the_rates_of_logistic_regression():
    grids = task_of("logistic", PAPER).grids
    stated = {key: grids[key] for key in ("native", "signsgd", "sgd")}
    assert stated == {
        "native": [{"rate": 0.05}],
        "signsgd": [{"rate": 0.01}],
        "sgd": [{"rate": 5e-5}],
    }


@pytest.mark.parametrize(
    "name", ["logistic", "adult-2layer", "mnist-pairs-0-2", "karate", "cora"]
)
def test_paper_has_its_rule_and_unscaled_layers(name):
    for options, rule, output_scale, decay in (
        (PAPER, "paper", None, False),
        (FULL, "averaged", "fan_in", name != "cora"),
    ):
        task = task_of(name, options)
        source = task.load(None)
        model = task.build(source, "binary")
        scales = {
            layer.output_scale
            for layer in model.layers
            if isinstance(layer, layers.BinaryLayer)
        }
        assert scales == {output_scale}
        for key in ("native", "ridge"):
            assert options.method(key).rule == rule
        assert options.method("signum") == METHODS["signum"]
        assert task.decay == decay


def test_paper_draws_a_sixteenth_of_the_nodes():
    rows = np.arange(140)
    batches = task_of("cora", PAPER).batches(0, rows, FRESH)
    assert batches.shape == (100, 4, 8)
    # Each batch is drawn from all nodes, so some nodes repeat early.
    drawn = batches.reshape(-1, 8)[:16]
    assert all(len(set(batch)) == 8 for batch in drawn)
    assert len(set(drawn.flat)) < 100
    dealt = task_of("cora", FULL).batches(0, rows, FRESH)
    assert dealt.shape == (50, 4, 35)
    assert all(set(four.flat) == set(rows) for four in dealt)
    cells = task_of("cora-ablation", PAPER)
    for count, size in ((16, 8), (4, 35), (1, 140)):
        shape = cells.batches(0, rows, FRESH, batches=count).shape
        assert shape == (100, 4, size)


# --- The command ---


@pytest.mark.parametrize(
    "words, message",
    [
        (["cara"], "`NAME` must be .*karate, .* Received: cara"),
        (["all", "cara"], "`NAME` must be .* Received: cara"),
        (
            ["karate", "--methods", "adam", "sdg"],
            "`--methods` must be .*proxquant, .* Received: sdg",
        ),
        (["karate", "--seeds", "701"], "at most 700.*Received: 701"),
        (["mnist", "--paper"], "no such experiment. Received: mnist"),
    ],
)
def test_unknown_names(words, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", *words, "--output", str(out)]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not out.exists()


def test_folder_of_other_options_is_refused(tmp_path, capsys):
    folder = tmp_path / "karate"
    folder.mkdir()
    settings = {"quick": True, "paper": False, "rule": "averaged"}
    (folder / "settings.json").write_text(json.dumps(settings))
    words = ["reproduce", "karate", "--output", str(tmp_path)]
    for more, received in (
        ([], "none of --quick, --paper"),
        (["--quick", "--paper"], "--quick --paper"),
    ):
        assert main([*words, *more]) == 1
        error = capsys.readouterr().err
        assert error.rstrip().endswith(f"Received: {received}")
        assert f"{folder} has results of other options: --quick." in error
    assert [path.name for path in folder.iterdir()] == ["settings.json"]


def test_methods_of_another_experiment_are_refused(tmp_path, capsys):
    words = ["reproduce", "direction", "--methods", "adam"]
    assert main([*words, "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert re.search("`--methods` .* direction.* Received: adam", error)
    assert not [*tmp_path.iterdir()]


def test_all_is_limited_to_experiments_with_the_methods():
    options = dataclasses.replace(FULL, methods=("dwave", "gurobi"))
    found = reproduce.with_methods(EXPERIMENTS, options)
    assert {"logistic", "mnist-pairs", "karate", "cora"} <= {*found}
    assert not {"pubmed", "direction", "adult-10layer", "mnist"} & {*found}


def test_folder_of_a_running_command_is_refused(tmp_path, capsys):
    (tmp_path / "karate").mkdir()
    words = ["reproduce", "karate", "--output", str(tmp_path)]
    with filelock.FileLock(tmp_path / "karate" / ".lock"):
        assert main(words) == 1
    error = capsys.readouterr().err
    assert re.search("Another command .* karate. .* Received: ", error)
    assert not (tmp_path / "karate" / "runs").exists()


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
    for key in ("native", "signsgd", "proxquant", "frozen", "real"):
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
    weights, exactly = found["native"]
    for others, kernels in found.values():
        assert len(others) == len(weights) == 7
        for left, right in zip(weights, others):
            np.testing.assert_array_equal(left, right)
        for left, right in zip(exactly, kernels or exactly):
            np.testing.assert_array_equal(left, right)
    assert all((batches == seen[0]).all() for batches in seen)
    trainer.run(4, {"rate": 0.1}, FRESH)
    assert not (kernels_of(trainer)[0] == exactly[0]).any()
    dropout = [w for w in trainer.model.weights if w.dtype == "int32"]
    assert [list(w.numpy()) for w in dropout] == [[4, 0]]
    assert (seen[-1] != seen[0]).any()


@pytest.mark.parametrize("key", [key for key in METHODS if key not in HOST])
def test_all_methods_train_other_variables(key):
    """`real_rate` reaches the bias; Adam's first step moves by the rate."""
    method = METHODS[key]
    model = networks.mlp((3, 1), method.weights)
    bias = tf.Variable([0.0])
    variables = [*marked_kernels(model), bias]
    with_bias = types.SimpleNamespace(trainable_variables=variables)
    update = Update(method, with_bias, marked_kernels(model), {})
    x = tf.constant([[1.0, -1.0, 1.0]])
    for rate in (0.5, 0.25):
        before = float(bias[0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) + bias)
        update.set_rates(0.1, rate)
        update.apply(tape.gradient(loss, variables))
        assert float(bias[0]) == pytest.approx(before - rate, rel=1e-3)


def test_training_learns_and_the_iterate_that_counts():
    """The last evaluation counts, or the first with the best measure."""
    task = task_of("logistic", dataclasses.replace(FULL, seeds=1))
    trainer = Trainer(task, None, METHODS["signsgd"], {})
    run = trainer.run(0, {"rate": 0.15}, FRESH)
    curves, result = run["curves"], run["result"]
    assert result == {name: curve[-1] for name, curve in curves.items()}
    assert result["test_accuracy"] > 0.9
    assert result["epoch"] == 5 and len(curves["epoch"]) == 26
    for measure, best in (
        (statistics.TRAIN_LOSS, min),
        (statistics.TEST_ACCURACY, max),
    ):
        trainer.task = dataclasses.replace(task, reported=(measure,))
        again = trainer.run(0, {"rate": 0.15}, FRESH)
        assert again["curves"] == curves
        position = curves[measure.key].index(best(curves[measure.key]))
        assert again["result"]["epoch"] == curves["epoch"][position]


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


def test_direction_of_batches(results):
    """Checks the counts of 45 batches; labels are random here."""
    for run in records.read(results("direction")):
        result = run["result"]
        assert 1_000 < result["comparisons"] <= 45 * 88
        assert 0.3 < result["agreement"] < 1.0
