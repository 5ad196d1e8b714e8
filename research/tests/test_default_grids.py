"""Tests the default grids of `compare` on the choices of the experiments."""

import math
import pathlib

import pytest

from keras_qpsbgd.comparison import records
from keras_qpsbgd.comparison.methods import METHODS
from keras_qpsbgd.comparison.methods import default_grids
from keras_qpsbgd.comparison.network import latent_scale
from keras_qpsbgd.comparison.task import marked_kernels
from research.experiments.tasks import networks

pytestmark = pytest.mark.once

RESULTS = pathlib.Path(__file__).parents[2] / "results"
# Folder, task, network, steps.
TASKS = (
    ("logistic", "logistic", (3, 1), 100),
    ("adult-small", "adult-small", (3, 5, 2), 30),
    ("adult-2layer", "adult-2layer", (15, 10, 1), 64),
    ("adult-10layer", "adult-10layer", (123, *[128] * 9, 1), 64),
    ("mnist-pairs", "mnist-pairs-0-2", (16, 4, 4, 2), 300),
    ("mnist-pairs", "mnist-pairs-1-2", (16, 4, 4, 2), 300),
    ("mnist-pairs", "mnist-pairs-1-7", (16, 4, 4, 2), 300),
    ("karate", "karate", (6, 8, 4), 150),
    ("mnist", "mnist", (784, 256, 10), 2340),
)


def chosen_of(folder, task):
    """Returns the chosen configurations by method."""
    keys = {method.label: key for key, method in METHODS.items()}
    return {
        keys[run["method"]]: run["configuration"]
        for run in records.read(RESULTS / folder)
        if run["task"] == task and run["stage"] == "fresh"
    }


@pytest.mark.parametrize(
    "folder, task, sizes, steps", TASKS, ids=[task[1] for task in TASKS]
)
def test_default_grids_cover_what_was_chosen(folder, task, sizes, steps):
    """Most choices lie in the grid. Some losses hardly depend on the rate."""
    model = networks.mlp(sizes, "binary")
    count = len(marked_kernels(model))
    grids = default_grids(latent_scale(model), count, steps, False)
    inside = 0
    chosen = chosen_of(folder, task)
    chosen.pop("frozen")
    for key, configuration in chosen.items():
        setting = "threshold" if key == "bop" else "rate"
        values = [one[setting] for one in grids[METHODS[key].like or key]]
        value = configuration[setting]
        inside += min(values) / 1.2 <= value <= 1.2 * max(values)
    assert inside >= len(chosen) - 3


def test_all_methods_get_four():
    for scale, layers, steps in ((1.2, 1, 1), (0.05, 20, 10**6)):
        grids = default_grids(scale, layers, steps, True)
        assert {*grids} == {*METHODS} - {"gurobi", "dwave"}
        for grid in grids.values():
            assert len({records.text_of(one) for one in grid}) == 4
            for one in grid:
                assert all(0 < value < math.inf for value in one.values())
    assert default_grids(1.0, 1, 1, False)["frozen"] == [{}]
