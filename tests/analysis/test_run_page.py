"""The report page: numbers, escaping, limits, and what is missing."""

import base64
import dataclasses
import html.parser
import io
import re
import sys

import numpy as np
import pytest
import recorded

from keras_qpsbgd import cli
from keras_qpsbgd.analysis import report
from keras_qpsbgd.analysis import run_figures
from keras_qpsbgd.analysis.run import HEADER
from keras_qpsbgd.analysis.run import Run

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.once

VOID = {"meta", "link", "img"}


@pytest.fixture
def run():
    return recorded.make_run()


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and text, and checks that tags are closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert not self.open
        self.text = " ".join(self.texts)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data.strip())

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture
def quick(monkeypatch):
    """Runs everything but Matplotlib, which takes most of the time."""
    monkeypatch.setattr(run_figures, "draw", lambda paint: b"picture")


def cards(run):
    """Returns the headline: titles with values and notes."""
    facts = r"<dt>(.*?)</dt><dd><b>(.*?)</b> (.*?)</dd>"
    found = re.findall(facts, report.render(run))
    return {k: (v, note) for k, v, note in found}


# Pictures


def test_pictures_and_tables(run):
    from matplotlib import image

    page = Page(report.render(run, "wine.run"))
    for expected in (
        "wine.run",
        "complete",
        "6 variables × 3 columns, 10 recorded updates",
        "1.2.3",
        "dwave",
        "1.5 ms",  # the mean QPU time of an update
        "25 %",  # broken chains
    ):
        assert expected in page.text, expected
    assert "incomplete" not in page.text
    pictures = page.all("img")
    titles = [picture["alt"] for picture in pictures]
    assert titles[:2] == ["Loss", "Accuracy"]
    assert titles.count("Energy of the applied states") == 2
    assert len(titles) == 5 + 2 * 6
    for picture in pictures:
        content = picture["src"].removeprefix("data:image/png;base64,")
        pixels = image.imread(io.BytesIO(base64.b64decode(content)))
        # A transparent background with something on it, for both modes.
        assert pixels[0, 0, 3] == 0 and pixels[..., 3].max() == 1


def test_axes_of_curves(monkeypatch):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    monkeypatch.setattr(run_figures, "draw", lambda paint: paint(axes) or b"")
    x = np.arange(4.0)
    series = {"a": [1.0, np.nan, 1e308, 2.0], "b": [2.0, 2.0, 2.0, 2.0]}
    run_figures.curves("t", "", x, series, "step", bottom=0.0)
    first, second = axes.get_lines()
    np.testing.assert_array_equal(first.get_ydata(), [1, np.nan, np.nan, 2])
    np.testing.assert_array_equal(second.get_ydata(), series["b"])
    assert axes.get_ylim()[0] == 0 and 2 <= axes.get_ylim()[1] < 3
    assert [text.get_text() for text in axes.get_legend().texts] == ["a", "b"]


@pytest.mark.slow
def test_values_that_are_not_finite(run):
    run.epochs[0]["loss"] = float("nan")
    run.epochs[2]["loss"] = float("inf")
    run.epochs[3]["loss"] = 10**400
    run.epochs[4]["new"] = -3.0
    run.epochs[1]["flag"] = "text"
    run.updates[0].qubo.fields[:] = np.nan
    run.updates[4].qubo.couplings[:] = np.inf
    run.updates[-1].sample_energies[0] = np.nan
    run.updates[-2].sample_energies[:] = np.inf
    Page(report.render(run))


@pytest.mark.parametrize("count", [1, 200, 201, 5000])
def test_thin(count):
    found = run_figures.thin(count)
    assert len(found) == min(count, 200)
    assert found[0] == 0 and found[-1] == count - 1
    assert np.ptp(np.diff(found)) <= 1 if count > 1 else True


# Numbers


def test_totals_are_those_of_all_updates(run, quick):
    found = cards(run)
    assert found["Solver calls"] == ("40", "5 of them repeated")
    assert found["Fallbacks"] == ("10", "15 failed solves")
    assert found["QPU time"] == ("2.5 s", "in all updates")
    assert found["Broken chains"] == ("3 %", "on average")
    assert found["Recorded updates"] == ("20", "of 2 layers")
    assert found["Accuracy"] == ("90 %", "after epoch 5")
    del run.updates[2:]
    fewer = cards(run)
    assert fewer.pop("Recorded updates") == ("2", "of 2 layers")
    assert fewer.items() <= found.items()
    run.complete = False
    assert cards(run)["QPU time"] == ("2.5 s", "in complete epochs")
    run.epochs = []
    assert "QPU time" not in cards(run)


def test_counts_that_change_have_a_picture(run, quick):
    counts = {"Solver calls", "Fallbacks, solves by the on_failure backend"}

    def titles():
        return {a["alt"] for a in Page(report.render(run)).all("img")}

    assert not counts & titles()
    run.epochs[2]["solver_fallbacks"] = 0
    assert counts & titles() == {"Fallbacks, solves by the on_failure backend"}


def test_budget(run, quick):
    run.settings["optimizer"]["backend"]["qpu_budget_seconds"] = 1.5
    assert not [title for title in cards(run) if "budget" in title]
    run.epochs[-1]["solver_budget_s"] = 0.25
    assert cards(run)["QPU budget left"] == ("250 ms", "of 1.5 s")
    run.budget_spent_at = 57
    found = cards(run)
    assert found["QPU budget spent at"] == ("step 57", "budget: 1.5 s")
    assert "QPU budget left" not in found


def test_means_of_what_the_backend_reported(run):
    updates = run.of_layer("hidden")
    fallback = dataclasses.replace(
        updates[0], info={"reads": 1, "fallback": "native"}
    )
    held = dataclasses.replace(
        updates[0], info={"calls": 0, "error": "BudgetExceeded"}
    )
    updates = [*updates, fallback, held]
    found = [report.reported_mean(updates, name) for name in report.REPORTED]
    assert found == pytest.approx([2, 12, 0.1, 1500.0, 0.25])
    for update in updates:
        update.info = {"calls": "many", "retries": None, "reads": np.nan}
    found = [report.reported_mean(updates, name) for name in report.REPORTED]
    assert found == [None] * 5


def test_times_of_the_mock_qpu_are_estimates(run, quick):
    assert "estimate" not in Page(report.render(run)).text
    run.settings["optimizer"]["backend"]["mock"] = True
    page = Page(report.render(run)).text
    for expected in ("estimate (mock)", "QPU time (estimate)"):
        assert expected in page, expected
    for settings in ({}, {"optimizer": 3}, {"optimizer": {"backend": "dwave"}}):
        run.settings = settings
        assert "estimate" not in Page(report.render(run)).text


def test_settings_are_json(run, quick):
    run.settings["optimizer"]["learning_rate"] = float(np.float32(0.03))
    found = Page(report.render(run)).text
    assert '"learning_rate": 0.03' in found and "0.0299" not in found


# Safety


HOSTILE = (
    "\"><script>alert('1')</script><img src=x onerror=alert(2)>&$\\x\x00\ud800"
)


def test_text_from_the_file_is_escaped():
    run = recorded.make_run(2, layers=[HOSTILE])
    run.settings = {HOSTILE: {HOSTILE: [HOSTILE]}, "versions": {"a": HOSTILE}}
    run.epochs = [{HOSTILE: 1.0, "val_" + HOSTILE: 2.0, "loss": HOSTILE}]
    for update in run.updates:
        update.info = {HOSTILE: 1, "calls": HOSTILE}
    run.budget_spent_at = HOSTILE
    source = report.render(run, HOSTILE)
    source.encode()  # a lone surrogate is not valid UTF-8
    page = Page(source)
    assert "<script" not in source and not page.all("script")
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        loads = attributes.get("src") or attributes.get("href") or "data:,"
        assert loads.startswith("data:")
    assert not re.search(r"https?://|url\(|@import", source)
    assert page.text.count("alert('1')") >= 5


def test_runs_without_some_parts(run, quick):
    empty = Page(report.render(Run()))
    assert "No update was recorded" in empty.text
    assert "This run is incomplete" in empty.text
    assert not empty.all("img")
    assert len(Page(report.render(Run(epochs=run.epochs))).all("img")) == 5
    for update in run.updates:
        update.samples = update.sample_energies = None
    no_reads = Page(report.render(Run(updates=run.updates)))
    assert len(no_reads.all("img")) == 2 * 4
    one = Run(updates=run.updates[:1], epochs=run.epochs[:1])
    assert len(Page(report.render(one)).all("img")) == 5 + 4


def test_large_runs_stay_small(quick):
    names = [f"layer_{k}_" + "x" * 500 for k in range(30)]
    run = recorded.make_run(2, 300, names, n=3, m=2, reads=200)
    run.settings = {f"key_{k}": "v" * 2000 for k in range(5000)}
    for epoch in run.epochs:
        epoch.update({f"metric_{k}": 0.5 for k in range(40)})
    source = report.render(run)
    page = Page(source)
    assert len(source.encode()) < 500_000
    assert len(page.all("img")) == 24 + 24 * 6
    assert "6 more layers are not drawn" in page.text
    assert "At most 24 logs are shown" in page.text
    assert "4,802 more lines are not shown" in page.text


# The command


def error_line(capsys):
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    return captured.err


def test_command(run, tmp_path, capsys, quick):
    path = recorded.save(run, tmp_path / "wine.run")
    assert cli.main(["report", str(path)]) == 0
    page = tmp_path / "wine.html"
    assert str(page) in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "wine.run" in text
    path.write_bytes(path.read_bytes()[:-50])
    out = tmp_path / "new" / "other.html"
    assert cli.main(["report", str(path), "--output", str(out)]) == 0
    assert "This run is incomplete" in out.read_text(encoding="utf-8")
    capsys.readouterr()
    below = str(page / "a.html")  # a file is no folder
    assert cli.main(["report", str(path), "--output", below]) == 1
    assert f"not written to {below}" in error_line(capsys)


@pytest.mark.parametrize("kind", ["folder", "damaged"])
def test_bad_files(kind, tmp_path, capsys):
    path = tmp_path / "a.run"
    if kind == "folder":
        path.mkdir()
    else:  # valid checksums, but not our records
        import struct
        import zlib

        frame = struct.pack("<QI", 3, zlib.crc32(b"abc"))
        path.write_bytes(HEADER + frame + b"abc")
    assert cli.main(["report", str(path)]) == 1
    assert "`RUN` must be a file" in (line := error_line(capsys))
    assert str(path) in line
    assert not path.with_suffix(".html").exists()


def test_page_does_not_replace_the_run(run, tmp_path, capsys):
    path = recorded.save(run, tmp_path / "wine.html")
    before = path.read_bytes()
    assert cli.main(["report", str(path)]) == 1
    assert "`--output` must be another file" in error_line(capsys)
    assert path.read_bytes() == before


def test_without_matplotlib(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    path = recorded.save(run, tmp_path / "wine.run")
    assert cli.main(["report", str(path)]) == 1
    assert 'python -m pip install "keras_qpsbgd[plots]"' in error_line(capsys)
    assert not path.with_suffix(".html").exists()
