"""Warnings of `kq.compare`."""

import json
import re
import warnings

import pytest
from comparing import splits
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.compare.own_data import data as own_data
from keras_qpsbgd.compare.own_data import edges
from keras_qpsbgd.compare.own_data import network
from keras_qpsbgd.compare.report.protocol import VALIDATION_ACCURACY


def runs_of(key, scores):
    """Tuning runs, one for each rate."""
    return [
        {
            "stage": "tuning",
            "configuration": {"rate": rate},
            "seed": 0,
            "result": {"validation_accuracy": score},
        }
        for rate, score in scores.items()
    ]


def warnings_of(scores):
    grids = {"adam": [{"rate": rate} for rate in scores], "frozen": [{}]}
    runs = {"adam": runs_of("adam", scores), "frozen": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        edges.warn_of_edges(runs, grids, VALIDATION_ACCURACY)
    return [str(warning.message) for warning in caught]


def test_edge_of_a_grid():
    (text,) = warnings_of({0.1: 0.7, 0.2: 0.8, 0.4: 0.9})
    assert 'The best `rate` of "adam", 0.4, is the highest of its grid' in text
    grid = re.search(r"`grids=(\{.*\})`", text)[1].replace("'", '"')
    rates = [one["rate"] for one in json.loads(grid)["adam"]]
    assert rates == [0.4, 0.8, 1.6]
    assert not warnings_of({0.1: 0.7, 0.2: 0.9, 0.4: 0.8})
    # As good between the ends.
    assert not warnings_of({0.1: 0.9, 0.2: 0.9, 0.4: 0.8})
    # Two are not a grid.
    assert not warnings_of({0.1: 0.9, 0.2: 0.8})


def test_beyond_the_edge():
    grid = [
        {"rate": r, "regularization": 0.01 / r} for r in (1.0, 4.0, 16.0, 64.0)
    ]
    lower = edges.beyond(grid[0], grid, "rate", "lowest")
    assert [one["rate"] for one in lower] == [0.062, 0.25, 1.0, 4.0]
    assert lower[0]["regularization"] == pytest.approx(0.16)
    bop = [{"rate": 0.1, "threshold": t} for t in (1e-4, 1e-3, 1e-2, 1e-1)]
    higher = edges.beyond(bop[-1], bop, "threshold", "highest")
    assert [one["threshold"] for one in higher] == [0.01, 0.1, 1.0, 10.0]
    assert {one["rate"] for one in higher} == {0.1}


def test_equal_first_kernels_are_told():
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
        network.look_at(data, fixed, 2)
