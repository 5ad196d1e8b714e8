"""Tables, figures and pages of the experiments."""

import pathlib
import re
import types

import pytest
from made_runs import make_run

from research import pages
from research.engine import statistics
from research.engine import tables
from research.experiments import command
from research.experiments import overview
from research.experiments.tables import grids_table

pytestmark = pytest.mark.once

# A table of at least two rows.
TABLE = re.compile(r"^\| .*\n\|[ |-]+\|\n(?:\|.*\n){2,}", re.MULTILINE)
ROOT = pathlib.Path(__file__).parents[2]
ACCURACY = statistics.TEST_ACCURACY
LOSS = statistics.TEST_LOSS
OURS = "QP-SBGD"


def make_task(**changes):
    settings = {
        "name": "a",
        "title": "Task A",
        "measures": (ACCURACY, LOSS),
        "curves": (ACCURACY, LOSS),
        "paper": {OURS: 0.8, "SGD": "figure only"},
        "variants": (),
        "kind": "curves",
        "chosen_by": statistics.VALIDATION_ACCURACY,
    }
    return types.SimpleNamespace(**{**settings, **changes})


def of_method(method, values, **settings):
    return [
        make_run(seed, value, method=method, **settings)
        for seed, value in enumerate(values)
    ]


# Ours is about 0.80; the others are above, equal and below.
OUR_VALUES = (0.80, 0.81, 0.79, 0.80)
RUNS = [
    *of_method(OURS, OUR_VALUES),
    *of_method("Adam", (0.90, 0.92, 0.90, 0.91)),
    *of_method("SGD", (0.81, 0.80, 0.80, 0.79)),
    *of_method(
        "a method with a name that is far too long", (0.6, 0.7, 0.6, 0.7)
    ),
    *of_method("QP-SBGD (gurobi)", (0.80,)),
]


# --- Tables ---


def test_grids():
    tuning = [
        make_run(seed, validation=value, stage="tuning", rate=rate)
        for seed in (5, 6, 7)
        for rate, value in ((0.02, 0.7), (0.1, 0.6))
    ]
    runs = [*RUNS[:4], *tuning, *of_method("frozen", (0.5, 0.5))]
    text = grids_table(runs, make_task(), OURS)
    assert text.splitlines() == [
        "| method | fresh seeds | tuning seeds | tried | configurations with "
        "their validation accuracy (chosen one in bold) |",
        "| --- | --- | --- | --- | --- |",
        "| QP-SBGD | 0 to 3 | 5 to 7 | 2 | **rate 0.02, real rate 0.01: 70.0 "
        "+- 0.0 %**; rate 0.1, real rate 0.01: 60.0 +- 0.0 % |",
        "| frozen | 0, 1 | - | - | not tuned |",
    ]
    for run in tuning:
        run["result"]["validation_accuracy"] *= -1
        run["seed"] -= 3
    text = grids_table([*RUNS[:4], *tuning], make_task(), OURS)
    assert "| 0 to 3 (also tuned on: 2, 3) |" in text
    assert re.search(r"0.02, .*\*\* \(run, but not the best\); rate 0.1", text)


def test_verdicts():
    rows = tables.rows_of(RUNS, make_task(), OURS)
    accuracy, _ = overview.verdicts(rows, make_task()).splitlines()
    assert re.search(r"Test accuracy: ahead of a method .*long \(p", accuracy)
    assert "; behind Adam (p" in accuracy
    assert accuracy.endswith(
        "no significant difference from the other methods (1)."
    )


# --- Folders and pages ---


def test_blocks_are_filled(tmp_path):
    text = "a\n<!-- results:x -->\nold\n<!-- /results -->\nb\n"
    filled = pages.fill(text, {"x": "new x"})
    assert filled == (
        "a\n<!-- results:x -->\n\nnew x\n\n<!-- /results -->\nb\n"
    )
    assert pages.fill(filled, {"x": "new x"}) == filled
    assert pages.fill("no block\n", {}) == "no block\n"
    start, end = "<!-- results:x -->\n", "<!-- /results -->\n"
    for bad in (start, end, start + start + end, start + end + end):
        with pytest.raises(ValueError, match="`<!-- /results -->` .* Received"):
            pages.fill(bad, {"x": ""})
    with pytest.raises(ValueError, match="one of y. Received: x"):
        pages.fill(text, {"y": ""})
    # A page has all blocks, and text written later is kept.
    path = pages.write(tmp_path / "a.md", "Title", {"x": "one"})
    path.write_text(path.read_text() + "\nwritten\n")
    pages.write(path, "Title", {"x": "three", "y": "two"}, {"y": "y.png"})
    text = path.read_text()
    assert "three" in text and "one" not in text
    assert text.startswith("# Title") and "\nwritten\n" in text
    assert text.endswith("two\n\n<!-- /results -->\n\n![y](y.png)\n")


def test_no_table_is_on_two_pages():
    seen = {}
    paths = [*pages.files(ROOT), *(ROOT / "results").rglob("README.md")]
    for path in set(paths):
        for table in set(TABLE.findall(path.read_text(encoding="utf-8"))):
            assert table not in seen, (path, seen[table])
            seen[table] = path
    assert len(seen) > 50
    assert (ROOT / "RESULTS.md").stat().st_size <= 40_000


# A change of the code does not change the tables, but the notes above them.


def without_notes(text):
    return re.sub(r"^\*Older than the code: .*\*\n+", "", text, flags=re.M)


def test_pages_of_the_repository_have_the_tables_of_its_records():
    """They have what `python -m research pages` writes."""
    blocks = command.blocks_of(ROOT)
    blocks = {name: without_notes(text) for name, text in blocks.items()}
    for path in pages.files(ROOT):
        text = without_notes(path.read_text(encoding="utf-8"))
        message = f"{path}: run `python -m research pages`"
        assert pages.fill(text, blocks) == text, message
