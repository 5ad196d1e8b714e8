"""The report page: content, escaping, limits, accessibility."""

import html.parser
import math
import re

import numpy as np
import pytest
import recorded

from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.report import page as pages
from keras_qpsbgd.report import render
from keras_qpsbgd.report import svg
from keras_qpsbgd.report import text

pytestmark = pytest.mark.once

VOID = {"meta", "link", "wbr", "path", "rect", "circle"}


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
        if tag not in VOID or tag in ("rect", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data.strip())

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def labels(page):
    return [a["aria-label"] for a in page.all("svg") if a.get("role") == "img"]


def test_content(run):
    page = Page(render(run, "wine.run"))
    for expected in (
        "wine.run",
        "complete",
        "hidden",
        "output",
        "6 variables × 3 columns, 10 recorded updates",
        "Energy of the applied states",
        "Similarity of the best reads",
        "1.2.3",
        "dwave",
        "1.5 ms",  # the mean QPU time of an update
        "25.0 %",  # broken chains
    ):
        assert expected in page.text, expected
    assert "incomplete" not in page.text
    assert len(page.all("figure")) == 5 + 2 * 6
    assert len(labels(page)) == 5 + 2 * 5
    (loss,) = [label for label in labels(page) if label.startswith("Loss.")]
    assert "training: 1 at epoch 1, 0.2 at 5" in loss
    assert "validation: 1.2 at epoch 1, 0.24 at 5" in loss
    (accuracy,) = [x for x in labels(page) if x.startswith("Accuracy.")]
    assert "50.0 % at epoch 1, 90.0 % at 5" in accuracy
    (breaks,) = [x for x in labels(page) if x.startswith("Broken chains.")]
    assert "3.0 % at epoch 1" in breaks


def cards(run):
    """Returns the headline: titles with values and notes."""
    facts = r"<dt>(.*?)</dt><dd><b>(.*?)</b><span>(.*?)</span>"
    return {k: (v, note) for k, v, note in re.findall(facts, render(run))}


def test_totals_are_those_of_all_updates(run):
    found = cards(run)
    assert found["Solver calls"] == ("40", "5 of them repeated")
    assert found["Fallbacks"] == ("10", "15 failed solves")
    assert found["QPU time"] == ("2.5 s", "in all updates")
    assert found["Broken chains"] == ("3.0 %", "on average")
    assert found["Recorded updates"] == ("20", "of 2 layers")
    del run.updates[2:]
    fewer = cards(run)
    assert fewer.pop("Recorded updates") == ("2", "of 2 layers")
    assert fewer.items() <= found.items()
    run.complete = False
    assert cards(run)["QPU time"] == ("2.5 s", "in 5 epochs")
    del run.epochs[1:]
    run.epochs[0]["solver_failures"] = 1
    assert cards(run)["QPU time"] == ("500 ms", "in 1 epoch")
    assert cards(run)["Fallbacks"] == ("2", "1 failed solve")
    run.epochs = []
    assert "QPU time" not in cards(run)


def test_counts_that_change_have_a_chart(run):
    def charts():
        return {label.partition(".")[0] for label in labels(Page(render(run)))}

    counts = {"Solver calls", "Repeated calls", "Failed solves", "Fallbacks"}
    assert not counts & charts()
    run.epochs[2]["solver_fallbacks"] = 0
    assert counts & charts() == {"Fallbacks"}


def test_budget(run):
    run.settings["optimizer"]["backend"]["qpu_budget_seconds"] = 1.5
    assert not [title for title in cards(run) if "budget" in title]
    run.epochs[-1]["solver_budget_s"] = 0.25
    assert cards(run)["QPU budget left"] == ("250 ms", "of 1.5 s")
    run.budget_spent_at = 57
    found = cards(run)
    assert found["QPU budget spent at"] == ("step 57", "budget: 1.5 s")
    assert "QPU budget left" not in found


@pytest.mark.parametrize(
    "name, expected",
    [
        ("loss", "Loss"),
        ("val_loss", "Validation loss"),
        ("sparse_categorical_accuracy", "Sparse categorical accuracy"),
        ("val_auc", "Validation AUC"),
        ("lr", "Learning rate"),
        ("solver_s", "Solver time"),
        ("", ""),
    ],
)
def test_names_of_logs_in_words(name, expected):
    assert text.words(name) == expected


def test_settings_without_nulls_and_noise(run):
    run.settings["optimizer"] |= {
        "learning_rate": float(np.float32(0.03)),
        "loss_scale_factor": None,
        "betas": [float(np.float32(0.9)), 1e-12, 7],
        "nothing": {"inside": None},
    }
    found = Page(render(run)).text
    assert "0.03" in found and "[0.9, 1e-12, 7]" in found
    for noise in ("null", "None", "loss_", "nothing", "0.0299", "0.8999"):
        assert noise not in found, noise


def test_times_of_the_mock_qpu_are_estimates(run):
    assert "estimate" not in Page(render(run)).text
    run.settings["optimizer"]["backend"]["mock"] = True
    page = Page(render(run)).text
    for expected in (
        "estimate (mock)",  # headline
        "QPU time (estimate)",  # table
        "It reports Ocean's estimate",
        "An estimate: the QPU is a mock.",  # chart of the epochs
    ):
        assert expected in page, expected


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": 3}, {"optimizer": {"backend": "dwave"}}]
)
def test_settings_that_do_not_tell_the_backend(run, settings):
    run.settings = settings
    assert "estimate" not in Page(render(run)).text


def test_nothing_is_loaded_or_executed(run):
    source = render(run)
    page = Page(source)
    assert not page.all("script")
    assert not [a for _, a in page.tags for k in a if k.startswith("on")]
    assert not re.search(r"https?://|url\(|@import", source)
    loads = [a.get("src") or a.get("href") for _, a in page.tags]
    assert all(x.startswith(("#", "data:,")) for x in loads if x)
    for link in page.all("a"):
        assert any(a.get("id") == link["href"][1:] for _, a in page.tags)


HOSTILE = (
    "\"><script>alert('1')</script><img src=x onerror=alert(2)>&\x00\ud800"
)


def test_text_from_the_file_is_escaped():
    run = recorded.make_run(layers=[HOSTILE])
    run.settings = {HOSTILE: {HOSTILE: [HOSTILE]}, "versions": {"a": HOSTILE}}
    run.epochs = [{HOSTILE: 1.0, "val_" + HOSTILE: 2.0, "loss": HOSTILE}]
    for update in run.updates:
        update.info = {HOSTILE: HOSTILE, "calls": HOSTILE}
    source = render(run, HOSTILE)
    source.encode()  # a lone surrogate is not valid UTF-8
    page = Page(source)
    assert not page.all("script") and not page.all("img")
    assert not [a for _, a in page.tags if "onerror" in a]
    assert "<script" not in source
    assert "alert('1')" in page.text


def test_incomplete_run(run):
    run.complete = False
    page = Page(render(run))
    assert "This run is incomplete" in page.text


def test_runs_without_some_parts(run):
    empty = Page(render(Run()))
    assert "No update was recorded" in empty.text
    assert not empty.all("figure")
    only_logs = Page(render(Run(epochs=run.epochs)))
    assert len(only_logs.all("figure")) == 5
    for update in run.updates:
        update.samples = update.sample_energies = None
    no_reads = Page(render(Run(updates=run.updates)))
    assert len(no_reads.all("figure")) == 2 * 4
    assert "Energies of the reads" not in no_reads.text
    one = Page(render(Run(updates=run.updates[:1], epochs=run.epochs[:1])))
    assert len(one.all("figure")) == 5 + 4
    assert "nan" not in " ".join(labels(one)).lower()


def test_values_that_are_not_finite(run):
    run.epochs[0]["loss"] = float("nan")
    run.epochs[2]["loss"] = float("inf")
    run.epochs[3]["loss"] = 1e308
    run.epochs[4]["new"] = -3.0
    run.epochs[1]["flag"] = "text"
    run.updates[0].qubo.fields[:] = np.nan
    run.updates[4].qubo.couplings[:] = np.inf
    run.updates[-1].sample_energies[0] = np.nan
    source = render(run)
    Page(source)
    for value in re.findall(r'(?:d|x|y|cx|cy|width|height)="([^"]*)"', source):
        assert not re.search("nan|inf", value), value


def test_all_values_not_finite():
    curve = svg.Series("a", np.full(3, np.nan))
    drawing = svg.lines("title", np.arange(3.0), [curve], "step")
    assert "no finite value" in drawing and "nan" not in drawing


def test_large_runs_stay_small():
    names = [f"layer_{k}_" + "x" * 500 for k in range(30)]
    run = recorded.make_run(2, 3000, names, n=3, m=2, reads=200)
    hidden = run.of_layer(names[0])
    run.updates += hidden * 1000
    run.settings = {f"key_{k}": "v" * 2000 for k in range(5000)}
    for epoch in run.epochs:
        epoch.update({f"metric_{k}": 0.5 for k in range(40)})
    source = render(run)
    assert len(source.encode()) < 2_000_000
    page = Page(source)
    curves = [a["d"] for a in page.all("path") if "line" in a["class"]]
    assert max(d.count("L") + 1 for d in curves) == 200
    assert "6 more layers are not drawn" in page.text
    assert "21 more logs are not shown" in page.text
    assert "4,800 more settings are not shown" in page.text
    assert len([a for a in page.all("section") if "layer-" in a["id"]]) == 24


def path_points(drawing, css_class):
    (d,) = re.findall(f'<path class="{css_class}" d="M([^"]*)"', drawing)
    return np.array([p.split() for p in d.split("L")], dtype=float)


def test_a_curve_is_where_its_axis_says():
    x = np.array([0.0, 10.0, 20.0, 40.0])
    y = np.array([3.0, 5.0, 11.0, 7.0])
    drawing = svg.lines("title", x, [svg.Series("a", y)], "step")
    points = path_points(drawing, "line s1")

    def positions(css_class, axis):
        found = re.findall(
            rf'class="{css_class}" x="([\d.]+)" y="([\d.]+)">([^<]*)<', drawing
        )
        values = [float(label) for *_, label in found]
        places = [float(place[axis]) for place in found]
        return np.polyfit(values, places, 1)

    slope, start = positions("middle", 0)
    np.testing.assert_allclose(points[:, 0], slope * x + start, atol=0.2)
    slope, start = positions("end", 1)
    # The text is 4 units below its line.
    np.testing.assert_allclose(points[:, 1], slope * y + start - 4, atol=0.2)
    assert points.min() >= 0 and points[:, 0].max() <= svg.WIDTH
    assert points[:, 1].max() <= svg.HEIGHT


def test_a_constant_is_inside_of_its_axis():
    def axis(value, y_range):
        curve = svg.Series("a", np.full(3, value))
        drawing = svg.lines("t", np.arange(3.0), [curve], "step", True, y_range)
        labels = re.findall('class="end"[^>]*>([^<]*) %<', drawing)
        return float(labels[0]), float(labels[-1])

    assert axis(0.0, (0.0, None)) == (0, 100)
    assert axis(0.2, (0.0, None)) == (0, 20)
    assert axis(0.2, (None, None)) == (10, 30)


def test_histogram_counts_every_value():
    values = np.array([0, 0, 0, 1.0, 5.0, 10.0])  # four in the first bin
    drawing = svg.histogram("title", values, "energy")
    counts = re.findall(r"<title>[^:]*: (\d+)</title>", drawing)
    assert sum(map(int, counts)) == 6
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"', drawing)]
    assert heights[0] == pytest.approx(4 * heights[-1], abs=0.3)
    assert svg.histogram("title", np.zeros(5), "energy").count("<rect") == 1


@pytest.mark.parametrize(
    "value, expected",
    [
        (0, "0"),
        (0.5, "0.5"),
        (12345.6, "12,346"),
        (0.012345, "0.01235"),
        (1e-7, "1.00e-7"),
        (-3.14159, "-3.142"),
        (2e9, "2.00e9"),
        (float("nan"), "not finite"),
    ],
)
def test_numbers_as_text(value, expected):
    assert text.number(value) == expected


def test_means_of_counts():
    values = (2.0, 2 / 3, 12.345, 1234.5, 0.004)
    assert [text.mean(value) for value in values] == [
        *("2", "0.67", "12.35", "1,234", "0.004"),
    ]


def test_percent():
    values = (0.0, 0.5, 0.0123, 0.0004, math.nan)
    assert [text.percent(value) for value in values] == [
        *("0.0 %", "50.0 %", "1.2 %", "0.04 %", "not finite"),
    ]


def test_ticks():
    assert text.ticks([0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert text.ticks([0, 0.5, 1.0]) == ["0.0", "0.5", "1.0"]
    assert text.ticks([0, 1000.0]) == ["0", "1,000"]
    assert text.ticks([0, 0.2], share=True) == ["0 %", "20 %"]
    assert text.ticks([0, 2e-6]) == ["0", "2.00e-6"]


def luminance(color):
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in channels
    ]
    return np.dot([0.2126, 0.7152, 0.0722], linear)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_contrast(mode):
    """WCAG 2.2, level AA: 4.5 for text, 3 for the lines of a chart."""
    block = re.findall(r":root \{(.*?)\}", pages.CSS, re.S)[mode]
    colors = dict(re.findall(r"--([\w-]+): (#\w{6})", block))

    def contrast(a, b):
        a, b = sorted((luminance(colors[a]), luminance(colors[b])))
        return (b + 0.05) / (a + 0.05)

    for name in ("text", "muted", "accent"):
        assert contrast(name, "card") > 4.5 and contrast(name, "page") > 4.5
    assert contrast("good", "good-bg") > 4.5
    assert contrast("warn", "warn-bg") > 4.5
    for name in ("s1", "s2"):
        assert contrast(name, "card") > 3
