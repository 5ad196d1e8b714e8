"""Sentences that are made from the records."""

import json
import pathlib

import pytest

from research.engine import statistics
from research.engine.methods import METHODS
from research.experiments import overview
from research.experiments import summary

pytestmark = pytest.mark.once

MEASURES = statistics.TEST_ACCURACY, statistics.TEST_LOSS
NOISE = (0.0, 0.01, -0.01, 0.005, -0.005)


def make_results(name, title, gain, loss_gain=0.0):
    """Results in which QP-SBGD is ahead of Adam by a gain."""

    def values(shift, scale=1.0):
        return {k: 0.8 + shift + scale * n for k, n in enumerate(NOISE)}

    accuracy = {summary.OURS: values(gain), summary.ADAM: values(0.0, 0.5)}
    loss = {summary.OURS: values(-loss_gain), summary.ADAM: values(0.0, 0.5)}
    return overview.Results(name, title, MEASURES, (accuracy, loss))


def test_sentences_say_what_the_tests_say():
    results = [
        make_results("cora", "A, one (1-2)", 0.1, 0.1),
        make_results("cora", "B", -0.05),
        make_results("cora", "C", 0.0),
    ]
    text = summary.sentences(results, summary.ADAM)
    assert text.startswith("More accurate on 1 of 3 (A, one), by 10.0 points; ")
    assert "less accurate on 1 of 3 (B), by 5.0 points; " in text
    assert "no significant difference on the other (-0.5 to +0.5" in text
    assert "A lower loss on 1; no significant difference in loss on 2." in text
    text = summary.sentences(results[2:], summary.ADAM)
    assert text.startswith("No significant difference on the only task (")


def test_sentences_are_corrected_for_their_tests():
    """A gain that is significant alone, but not among many."""
    weak = make_results("cora", "A", 0.007)
    (alone,) = summary.outcomes([weak], summary.ADAM, 0)[summary.AHEAD]
    assert 0.001 < alone[1].p < statistics.LEVEL
    words = summary.outcomes([weak] * 50, summary.ADAM, 0)
    assert len(words[statistics.NO_DIFFERENCE]) == 50


def test_the_best_other_method_is_corrected_for_its_choice():
    """It is the best of several, so one test alone would be too kind."""
    results = make_results("cora", "A", -0.007)
    words = summary.outcomes_of_best([results], 0)
    ((title, test),) = words[summary.BEHIND]
    assert title == "A" and test.difference < 0
    more = {f"Other {n}": results.values[0][summary.ADAM] for n in range(50)}
    results.values[0].update(more)
    words = summary.outcomes_of_best([results], 0)
    assert not words[summary.BEHIND] and not words[summary.AHEAD]
    lower = [make_results("cora", "A", 0.0, loss_gain=0.1)]
    assert summary.outcomes_of_best(lower, 1)[summary.AHEAD]
    blocks = summary.blocks(lower, [], {})
    assert "only task (" in blocks["summary/more"]
    assert "A lower loss on 1." in blocks["summary/more"]


def test_studies_of_cifar10_in_the_overview(tmp_path):
    """Both are there, without variants of the rule and without short rows."""
    shape = {"rate": 0.1, "settings": {}, "activation": "relu", "width": 64}
    for study, kind, lengths in (
        ("study", "pooled", {12: 5, 30: 2}),
        ("vgg-decay", "vgg", {200: 3}),
    ):
        runs = [
            {
                **shape,
                **{"program": program, "seed": seed, "epochs": epochs},
                **{"network": kind, "test": 0.5, "test_loss": 1.0},
                **{"loss": 2.0, "validation": 0.5},
            }
            for epochs, number in lengths.items()
            for program in ("averaged", "adam", "kappa-3", "float")
            for seed in (100, *range(number))
        ]
        path = tmp_path / study / "runs.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    short, long = overview.collect([], tmp_path)
    assert "12 epochs" in short.title and "200 epochs" in long.title
    found = [len(one.values[0][overview.OURS]) for one in (short, long)]
    assert found == [5, 3]
    assert short.values[0].keys() == {summary.OURS, summary.ADAM}
    assert set(short.values[1][summary.ADAM].values()) == {1.0}  # of the test


def test_bop_in_long_training():
    """RESULTS.md and docs/choosing.md say this by hand."""
    folder = pathlib.Path(__file__).parents[2] / "results" / "cifar10"
    bop = METHODS["bop"].label
    found = overview.collect([], folder)
    long = [
        one for one in found if one.title.endswith(("60 epochs", "200 epochs"))
    ]
    relu = [one for one in long if one.name == "cifar10/relu"]
    assert len(relu) == 2
    for one in relu:
        assert one.others(1)[0] == bop
        test = one.tests(1)[bop]
        assert test.p < statistics.LEVEL and test.difference > 0
        assert one.tests(0)[bop].p > statistics.LEVEL
    (vgg,) = (one for one in relu if "VGG" in one.title)
    assert vgg.others(0)[0] == bop and vgg.test(bop, 0).difference < 0
    assert vgg.test(bop, 0).pairs == 2


def test_choices_follow_from_the_accuracies():
    results = [
        make_results("cifar10/relu", "A", 0.1),
        make_results("cifar10/binary", "B", -0.1),
        make_results("mnist", "C", 0.0),
        make_results("cora", "D", 0.1),
        make_results("cora", "E", -0.1),
    ]
    blocks = summary.blocks(results, [], {})
    heads = [
        line.split(".")[0] for line in blocks["summary/groups"].split("\n")
    ]
    assert heads == [
        "- **Convolutions with binary weights (CIFAR-10)",
        "- **Graph networks",
        "- **Dense networks",
        "- **Convolutions with binary weights and activations (CIFAR-10)",
    ]
    assert "all tasks: more accurate on 2 of 5 (" in blocks["summary/adam"]
    rows = blocks["summary/choices"].split("\n")[2:]
    uses = [row.split(" | ")[1] for row in rows]
    assert uses == list(summary.CHOICES.values())
