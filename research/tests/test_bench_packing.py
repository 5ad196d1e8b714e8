"""The suite `packing`."""

import pytest

from keras_qpsbgd.backends.dwave.mock import MockQPU
from research.bench.annealer import packing

pytestmark = pytest.mark.once


def test_measured_network():
    sampler = MockQPU("pegasus", shape=[4])
    row = packing.measure_network(sampler, ((8, 2), (2, 3), (4, 5)))
    assert (row["calls"], row["separate_calls"]) == (1, 3)
    assert 2 < row["separate_seconds"] / row["seconds"] < 3
    # The chip has no complete graph of 300 variables.
    wide = packing.measure_network(sampler, ((300, 1), (2, 3)))
    assert wide["calls"] == wide["separate_calls"] > 2


@pytest.mark.slow
def test_defects():
    sampler = packing.open_chip("pegasus", 28, 60)
    graph = sampler.to_networkx_graph()
    whole = MockQPU("pegasus").to_networkx_graph()
    assert len(whole) - len(graph) == 28
    between = whole.subgraph(graph).number_of_edges()
    assert between - graph.number_of_edges() == 60


def test_table_and_verdicts():
    def row(network, seconds, cpu):
        return {
            "network": network,
            "chip": "P16-defects",
            "calls": 1025,
            "separate_calls": 1089,
            "seconds": seconds,
            "separate_seconds": 46.4526,
            "cpu": cpu,
        }

    rows = [row("64-64-10", 46.4526, 3.0), row("16-4-4-2", 23.0, 12.0)]
    results = {1: {"rows": rows}}
    text = packing.table(results)
    assert "46,452.6" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    passed = {text.split(":")[0]: ok for ok, text in packing.verdicts(results)}
    assert passed == {
        "16-4-4-2": False,
        "64-64-10": True,
        "CPU time of the packing": False,
    }
