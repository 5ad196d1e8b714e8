"""Warnings of `kq.compare` about its arguments and grids."""

import ast
import re
import warnings

import numpy as np
import pytest
from comparing import splits
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.comparison import arguments
from keras_qpsbgd.comparison import data as own_data
from keras_qpsbgd.comparison import grids as own_grids
from keras_qpsbgd.comparison import network
from keras_qpsbgd.comparison.grids import default_grids
from keras_qpsbgd.comparison.statistics import VALIDATION_ACCURACY


def runs_of(grid, scores):
    """Returns tuning runs, one for each configuration."""
    return [
        {
            "stage": "tuning",
            "configuration": configuration,
            "seed": 0,
            "result": {"validation_accuracy": score},
        }
        for configuration, score in zip(grid, scores)
    ]


def warnings_of(grids, scores):
    runs = {key: runs_of(grids[key], scores.get(key, ())) for key in grids}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own_grids.warn_about_edges(runs, grids, VALIDATION_ACCURACY)
    return [str(warning.message) for warning in caught]


def warnings_of_adam(scores):
    grids = {"adam": [{"rate": rate} for rate in scores], "frozen": [{}]}
    return warnings_of(grids, {"adam": scores.values()})


def proposed(text):
    """Returns the grids in a warning."""
    return ast.literal_eval(re.search(r"grids = (\{.*\})", text, re.S)[1])


def test_edge_of_a_grid():
    (text,) = warnings_of_adam({0.1: 0.7, 0.2: 0.8, 0.4: 0.9})
    assert '"adam": `rate` 0.4 is the highest in its grid' in text
    rates = [one["rate"] for one in proposed(text)["adam"]]
    assert rates == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert "frozen" not in text
    (text,) = warnings_of_adam({0.1: 0.9, 0.2: 0.8, 0.4: 0.7})
    rates = [one["rate"] for one in proposed(text)["adam"]]
    assert rates == [0.025, 0.05, 0.1, 0.2, 0.4]


@pytest.mark.parametrize(
    "scores",
    [
        {0.1: 0.7, 0.2: 0.9, 0.4: 0.8},
        {0.1: 0.9, 0.2: 0.9, 0.4: 0.8},  # one between the ends is as good
        {0.1: 0.9, 0.2: 0.8},  # too few values
        {0.0: 0.9, 0.2: 0.8, 0.4: 0.7},  # nothing is below zero
    ],
)
def test_no_edge(scores):
    assert not warnings_of_adam(scores)


@pytest.mark.parametrize("has_other_variables", [False, True])
def test_proposed_grids_are_valid(has_other_variables):
    """They contain the old ones, so that the runs in `out` are reused."""
    default = default_grids(0.5, 2, 300, has_other_variables)
    grids = arguments.grids_of(None, list(default), default)
    scores = {key: (0.6, 0.9, 0.8, 0.7) for key in grids}
    scores |= {"bop": (0.9, 0.8, 0.7, 0.6), "proxquant": (0.6, 0.7, 0.8, 0.9)}
    if not has_other_variables:
        del scores["frozen"]
    (text,) = warnings_of(grids, scores)
    assert text.count("in its grid") == 2
    assert '"bop": `threshold`' in text and '"proxquant": `rate`' in text
    found = arguments.grids_of(proposed(text), list(default), default)
    assert ("frozen" in proposed(text)) == has_other_variables
    for key, grid in grids.items():
        if key in scores:
            assert len(found[key]) == 6
        assert all(one in found[key] for one in grid)


def test_wider_grids():
    grid = [
        {"rate": r, "regularization": 0.01 / r} for r in (1.0, 4.0, 16.0, 64.0)
    ]
    *lower, first, _, _, _ = own_grids.widen(grid[0], grid, "rate", "lowest")
    assert [one["rate"] for one in lower] == [0.062, 0.25]
    assert lower[0]["regularization"] == pytest.approx(0.16)
    assert first == grid[0]
    bop = [{"rate": 0.1, "threshold": t} for t in (1e-4, 1e-3, 1e-2, 1e-1)]
    *same, one, two = own_grids.widen(bop[-1], bop, "threshold", "highest")
    assert same == bop
    assert [one["threshold"], two["threshold"]] == [1.0, 10.0]
    assert {one["rate"], two["rate"]} == {0.1}
    # Between the ends: one more at each of them.
    below, *same, above = own_grids.widen(bop[1], bop)
    assert same == bop
    assert [below["threshold"], above["threshold"]] == [1e-5, 1.0]
    # Close values, and numbers of NumPy.
    close = [{"rate": rate} for rate in np.array([0.1, 0.101, 0.102])]
    found = own_grids.widen(close[-1], close, "rate", "highest")
    assert [one["rate"] for one in found[-2:]] == [0.2, 0.41]
    assert {type(one["rate"]) for one in found} == {float}


def test_equal_initial_kernels_give_a_warning():
    def fixed():
        initializer = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.layers.InputLayer((6,)),
                kq.layers.BinaryDense(2, kernel_initializer=initializer),
            ]
        )

    data = own_data.read(*splits(), has_loss=False)
    with pytest.warns(UserWarning, match="same binary kernels"):
        network.build_and_check(data, fixed, 2)
