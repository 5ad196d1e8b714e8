"""The figures of the paper's appendix: numbers, figures, the table."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import keras_qpsbgd as kq
from research.analysis import appendix
from research.analysis import appendix_page

pytest.importorskip("scipy")
pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "results" / "appendix"


@pytest.fixture(scope="module")
def study():
    return json.loads((RESULTS / appendix.NUMBERS).read_text())


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


def test_plain():
    values = {"a": np.array([1 / 3, np.nan]), "b": (np.int8(2), "c", None)}
    expected = {"a": [0.33333, None], "b": [2, "c", None]}
    assert appendix.plain(values) == expected


# Reads


def test_reads_are_compared_with_the_optimum():
    """Two of four reads are optimal, and no read of the other update is."""
    qubo = kq.Qubo(np.zeros((2, 2)), [[1.0], [2.0]])
    samples = np.array([[-1, -1], [-1, -1], [1, -1], [1, 1]])[:, :, None]

    def update(step, chosen):
        reads = samples[chosen]
        energies = np.stack([qubo.energy(states) for states in reads])
        best = reads[energies.argmin()]
        return kq.analysis.Update(
            step, appendix.FIRST, qubo, best, reads, energies
        )

    run = kq.analysis.Run(updates=[update(0, [0, 1, 2, 3])])
    found = appendix.reads(run)
    assert (found["hits"], found["columns"]) == (0.5, 1)
    run = kq.analysis.Run(updates=[update(0, [2, 3])])
    found = appendix.reads(run)
    assert found["hits"] == 0.0
    # {0} and {0, 1} share one of two variables.
    assert found["similarity"] == 0.5


def test_the_column_in_the_middle_is_shown():
    """One, three and two of three reads are optimal. One column is held."""
    qubo = kq.Qubo(np.zeros((1, 1)), np.ones((1, 4)))
    reads = -np.ones((3, 1, 4))
    reads[1:, 0, 0] = reads[0, 0, 2] = 1
    energies = np.stack([qubo.energy(states) for states in reads])
    states = np.array([[-1, -1, -1, 0]])
    update = kq.analysis.Update(
        7, appendix.FIRST, qubo, states, reads, energies
    )
    found = appendix.reads(kq.analysis.Run(updates=[update]))
    assert found["columns"] == 3
    assert found["hits"] == pytest.approx((1 + 3 + 2) / 9)
    for shown in found["updates"]:
        assert shown["step"] == 7
        assert shown["histogram"].hits == pytest.approx(2 / 3)


# Results of other experiments


def test_results_of_other_experiments_are_current(study):
    assert study["gaps"] == appendix.least_gaps()
    assert study["direction"] == appendix.plain(appendix.directions())


def test_directions():
    rows = appendix.directions()
    assert len(rows) == 3
    table = (ROOT / "results" / "direction" / "table.md").read_text()
    for row in rows:
        assert f"{np.mean(row['agreement']):.4f}" in table
        assert set(row) == {"method", "agreement", "z", "comparisons"}


# The page


def test_table_is_made_from_the_numbers(study):
    assert appendix_page.table(study) in (RESULTS / "RESULTS.md").read_text()
    pictures = {path.stem: path for path in RESULTS.glob("*.png")}
    assert set(pictures) == set(appendix_page.FIGURES)
    assert all(path.stat().st_size < 150_000 for path in pictures.values())


@pytest.mark.parametrize(
    "name", [name for name in appendix_page.FIGURES if name != "embedding"]
)
def test_figures(study, name):
    pytest.importorskip("matplotlib")
    figure = appendix_page.FIGURES[name](study)
    assert all(axis.has_data() for axis in figure.axes)


@pytest.mark.slow  # the tests above check the parts
@pytest.mark.skipif(not DATA.exists(), reason="needs the files of UCI Adult")
def test_study(monkeypatch, tmp_path, capsys):
    pytest.importorskip("dwave.system")
    rng = np.random.default_rng(0)
    bits = rng.choice([-1.0, 1.0], size=(80, 16))
    data = bits, (bits[:, 0] > 0).astype("int32")
    monkeypatch.setattr(appendix, "images", lambda data_dir: data)
    found = appendix.study(DATA, epochs=1, seeds=2, widths=(2,))
    assert capsys.readouterr().out.splitlines()[-1] == "5/5 Fixed points"
    assert len(found["evolution"]["steps"]) == 4  # batches of 20
    for row in found["fixed_points"]:
        assert row["steps"] == [4]
        assert np.shape(row["shares"]) == np.shape(row["flips"]) == (2, 1)
    shutil.copy(RESULTS / "RESULTS.md", tmp_path)
    appendix.store(found, tmp_path)
    appendix_page.write(tmp_path)
    page = (tmp_path / "RESULTS.md").read_text()
    assert appendix_page.table(found) in page
    assert len(list(tmp_path.glob("*.png"))) == len(appendix_page.FIGURES)
