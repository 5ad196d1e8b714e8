"""Tests the default grids of `compare` on the choices of the experiments."""

import math
import pathlib

import numpy as np
import pytest

from research.engine import records
from research.engine import statistics
from research.engine.methods import METHODS
from research.engine.methods import default_grids
from research.engine.network import latent_scale
from research.engine.task import marked_kernels
from research.experiments import catalogue
from research.experiments.options import Options
from research.experiments.tasks import networks

pytestmark = pytest.mark.once

LEAST_SLACK = 0.005
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


def tuning_of(folder, task):
    """Returns the tuning runs by method, and the measure that chooses."""
    keys = {method.label: key for key, method in METHODS.items()}
    found = {}
    for run in records.read(RESULTS / folder):
        if run["task"] == task and run["stage"] == "tuning":
            found.setdefault(keys[run["method"]], []).append(run)
    tasks = catalogue.describe(folder, Options()).tasks
    (measure,) = [one.chosen_by for one in tasks if one.name == task]
    return found, measure


@pytest.mark.parametrize(
    "folder, task, sizes, steps", TASKS, ids=[task[1] for task in TASKS]
)
def test_default_grids_cover_good_settings(folder, task, sizes, steps):
    """For most methods, no setting outside of the grid is clearly better."""
    model = networks.mlp(sizes, "binary")
    count = len(marked_kernels(model))
    grids = default_grids(latent_scale(model), count, steps, False)
    tuning, measure = tuning_of(folder, task)
    tuning.pop("frozen", None)
    assert len(tuning) >= 9
    covered = 0
    for key, runs in tuning.items():
        setting = "threshold" if key == "bop" else "rate"
        values = [one[setting] for one in grids[METHODS[key].like or key]]
        low, high = min(values) / 1.2, 1.2 * max(values)
        best, best_inside, error = -math.inf, -math.inf, 0.0
        for configuration, group in statistics.by_configuration(runs):
            score = statistics.score(group, measure)
            if score > best:
                best = score
                seeds = list(statistics.by_seed(group, measure).values())
                _, error = statistics.mean_and_error(seeds)
            if low <= configuration[setting] <= high:
                best_inside = max(best_inside, score)
        # The error of a single seed is not known.
        slack = max(2 * np.nan_to_num(error), LEAST_SLACK)
        covered += best_inside >= best - slack
    assert covered >= len(tuning) - 3


def test_all_methods_get_four():
    for scale, layers, steps in ((1.2, 1, 1), (0.05, 20, 10**6)):
        grids = default_grids(scale, layers, steps, True)
        assert {*grids} == {*METHODS} - {"gurobi", "dwave"}
        for grid in grids.values():
            assert len({records.text_of(one) for one in grid}) == 4
            for one in grid:
                assert all(0 < value < math.inf for value in one.values())
    assert default_grids(1.0, 1, 1, False)["frozen"] == [{}]
