"""Tools that look into a QUBO say so if they receive something else."""

import numpy as np
import pytest

import keras_qpsbgd as kq

QUBO = kq.Qubo.from_rows(np.eye(3), np.ones((3, 2)))
UPDATE = kq.analysis.Update(0, "dense", QUBO, np.ones((3, 2), np.int8))
TOOLS = {
    "embedding": kq.analysis.embedding,
    "optimality_gap": lambda qubo: kq.analysis.optimality_gap(qubo, "sign"),
    "spectral_gap": kq.analysis.spectral_gap,
}


@pytest.mark.parametrize("name", TOOLS)
def test_update_instead_of_qubo(name):
    pytest.importorskip("networkx")
    with pytest.raises(ValueError, match="`qubo` of the update.*: Update"):
        TOOLS[name](UPDATE)


@pytest.mark.parametrize("name", TOOLS)
def test_neither_update_nor_qubo(name):
    pytest.importorskip("networkx")
    with pytest.raises(ValueError, match="`qubo` must be a `Qubo`. Rec.*: str"):
        TOOLS[name]("hidden")
