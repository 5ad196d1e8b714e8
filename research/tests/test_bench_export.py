"""The suite `export`, and the table in the documentation."""

import json
import pathlib

import pytest

from research.bench.export import formats_table
from research.bench.export import runtimes
from research.bench.export import suite
from research.bench.options import Options

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]


def test_graph_network_in_every_installed_runtime(monkeypatch):
    """The outputs of all formats are compared with those of Keras."""
    pytest.importorskip("tf2onnx")
    results = {1: suite.measure(Options(only=("graph",)))}
    found = results[1]["graph"]["formats"]
    assert list(found) == [name for name, *_ in runtimes.FORMATS]
    for name, each in found.items():
        problem = each["problem"]
        assert problem is None or problem.startswith("not installed"), name
    assert found["`export.packed`"]["difference"] == 0
    assert found["`export.onnx`"]["size"] * 8 < results[1]["graph"]["floats"]
    assert all(passed for passed, _ in suite.verdicts(results))
    assert "| `export.packed` |" in suite.table(results)


def test_record_has_all_networks_and_formats():
    record = json.loads((ROOT / formats_table.RECORD).read_text())
    (networks,) = record["results"].values()
    assert list(networks) == suite.names()
    for network in networks.values():
        assert list(network["formats"]) == [n for n, *_ in runtimes.FORMATS]
    assert all(passed for passed, _ in record["verdicts"])


def test_sizes_are_relative_to_the_floats():
    """Smaller, larger, and about the same."""
    sizes = {"a": 100, "b": 375, "c": 1040, "d": 2000}
    formats = {
        name: {"size": size, "difference": 0.0, "problem": None}
        for name, size in sizes.items()
    }
    text = formats_table.table({"net": {"floats": 1000, "formats": formats}})
    for expected in (
        "| a | 0 (10x smaller) |",
        "| b | 0 (2.7x smaller) |",
        "| c | 1 (about the same) |",
        "| d | 2 (2.0x larger) |",
    ):
        assert expected in text
