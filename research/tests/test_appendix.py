"""The figures of the paper's appendix: numbers, figures, the table."""

import json
import pathlib

import numpy as np
import pytest

import keras_qpsbgd as kq
from research.analysis import appendix
from research.analysis import appendix_page

pytest.importorskip("scipy")
pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "results" / "appendix"


# Values that JSON can store


def test_a_result_survives_json():
    rng = np.random.default_rng(0)
    updates = []
    for step in range(3):
        rows, v = rng.normal(size=(8, 4)), rng.normal(size=(8, 2))
        qubo = kq.Qubo.from_rows(rows, v)
        states = kq.backends.get("exact").solve(qubo).states
        updates.append(kq.analysis.Update(step, "a", qubo, states))
    run = kq.analysis.Run(updates=updates)
    found = kq.analysis.qubo_evolution(run, "a")
    text = json.dumps(appendix.plain(found), allow_nan=False)
    again = appendix.restored(kq.analysis.QuboEvolution, json.loads(text))
    assert again.layer == "a" and np.isnan(again.field_cosines[0])
    for name in ("steps", "field_cosines", "coupling_norms"):
        np.testing.assert_allclose(
            getattr(again, name), getattr(found, name), rtol=1e-4
        )


def test_table_is_made_from_the_numbers():
    """`python -m research pages` writes it, and draws the figures."""
    study = json.loads((RESULTS / appendix.NUMBERS).read_text())
    assert study["gaps"] == appendix.least_gaps()
    assert study["direction"] == appendix.plain(appendix.directions())
    assert appendix_page.table(study) in (RESULTS / "README.md").read_text()
    for name in ("histogram", "direction"):
        figure = appendix_page.FIGURES[name](study)
        assert all(axis.has_data() for axis in figure.axes)
