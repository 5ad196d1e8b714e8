"""The protocol of `benchmarks/graphs.py`, and the examples on graphs."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="module")
def graphs():
    path = ROOT / "benchmarks" / "graphs.py"
    spec = importlib.util.spec_from_file_location("graphs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_gets_as_many_configurations(graphs):
    for method in graphs.METHODS:
        configurations = graphs.configurations(method)
        assert len(set(configurations)) == 6
        assert len({real_rate for _, real_rate in configurations}) > 1


def test_results_survive_a_kill(graphs, tmp_path):
    path = tmp_path / "runs.jsonl"
    results = graphs.Results(path, "cora")
    results.add(("Adam", 0.1, 0.2, 0), {"test": 0.5})
    results.add(("Adam", 0.1, 0.2, 1), {"test": 0.7})
    # Killed in the middle of a line, then gone on.
    path.write_text(path.read_text() + '{"settings": {"gra')
    results = graphs.Results(path, "cora")
    results.add(("frozen", None, 0.2, 0), {"test": 0.6})
    results = graphs.Results(path, "cora")
    assert sorted(results.runs, key=str) == [
        ("Adam", 0.1, 0.2, 0),
        ("Adam", 0.1, 0.2, 1),
        ("frozen", None, 0.2, 0),
    ]
    np.testing.assert_allclose(
        results.values("Adam", (0.1, 0.2), (0, 1), "test"), [0.5, 0.7]
    )
    # Runs of other settings do not count.
    assert graphs.Results(path, "pubmed").runs == {}


def test_choice_is_by_validation(graphs, tmp_path):
    results = graphs.Results(tmp_path / "runs.jsonl", "cora")
    for method in graphs.METHODS:
        for number, pair in enumerate(graphs.configurations(method)):
            for seed in graphs.TUNING_SEEDS:
                found = {"validation": 0.5 + 0.01 * (number == 4), "test": 1}
                results.runs[(method, *pair, seed)] = found
    for method, pair in graphs.choose(results).items():
        assert pair == graphs.configurations(method)[4]


def test_part_of_a_graph_is_the_whole_graph(graphs):
    """Two layers give the nodes of a part the logits of the whole."""
    graph = kq.datasets.karate()
    graph = kq.datasets.GraphData(
        **{**vars(graph), "x": type(graph.a)(graph.x)}
    )
    a = kq.layers.BinaryGraphConv.preprocess(graph.a)
    keras.utils.set_random_seed(0)
    model = graphs.build_model(graph, "native")
    nodes = np.array([11, 16])
    part = graphs.Part(graph, a, nodes)
    assert part.inputs[0].shape[0] < graph.num_nodes
    whole = model([tf.constant(graph.x.toarray()), tf.constant(a.toarray())])
    np.testing.assert_allclose(
        tf.gather(model(part.inputs), part.nodes),
        tf.gather(whole, nodes),
        atol=1e-5,
    )


def run_example(name, folder, **environment):
    path = ROOT / "examples" / name
    assert len(path.read_text().splitlines()) < 80
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_karate_example(tmp_path):
    pytest.importorskip("networkx")
    output = run_example("karate.py", tmp_path)
    assert (tmp_path / "karate.png").stat().st_size > 10_000
    right = int(re.search(r"training: (\d+) of 20", output)[1])
    assert right >= 14  # chance: 5


@pytest.mark.skipif(not DATA.exists(), reason="needs the files of Cora")
def test_spektral_cora_example(tmp_path):
    pytest.importorskip("spektral")
    output = run_example(
        "spektral_cora.py", tmp_path, KERAS_QPSBGD_DATA=str(DATA)
    )
    accuracy = float(re.search(r"test accuracy\s+([\d.]+)", output)[1])
    assert accuracy > 0.75
