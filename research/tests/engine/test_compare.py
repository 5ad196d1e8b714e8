"""`kq.compare`: a whole comparison, its result, and how it resumes."""

import pathlib
import re
import shutil
import subprocess
import sys
import warnings

import pytest
from comparing import QUICK
from comparing import X
from comparing import Y
from comparing import small_model
from comparing import splits
from tensorflow import keras

import keras_qpsbgd as kq
from research.engine import plan
from research.engine import records


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison, its folder, and the warnings about edges."""
    out = tmp_path_factory.mktemp("whole")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = kq.compare(
            small_model,
            *splits(),
            methods=["signum", "adam", "frozen"],
            seeds=2,
            out=out,
            **QUICK,
        )
    messages = [str(w.message) for w in caught if "in its grid" in str(w)]
    return found, out, messages


# --- The result ---


def test_results(whole):
    comparison, *_ = whole
    assert {*comparison.results} == {"signum", "adam", "frozen"}
    for values in comparison.results.values():
        assert {*values} == {0, 1}
        assert all(0 <= value <= 1 for value in values.values())
    assert {*comparison.p_values} == {"adam", "frozen"}
    assert comparison.reference == "signum"
    assert comparison.chosen["frozen"] == {}
    assert {*comparison.chosen["adam"]} == {"rate"}


def test_every_method_gets_the_same_number_of_runs(whole):
    comparison, *_ = whole
    counts = {}
    for run in comparison.runs:
        key = run["method"], run["stage"]
        counts[key] = counts.get(key, 0) + 1
        scores = {*run["result"], *run["curves"]}
        tested = any(name.startswith("test_") for name in scores)
        assert tested == (run["stage"] == "fresh")
        assert len(run["curves"]["epoch"]) == 3
    assert counts == {
        ("signum", "tuning"): 4,
        ("adam", "tuning"): 4,
        ("signum", "fresh"): 2,
        ("adam", "fresh"): 2,
        ("frozen", "fresh"): 2,
    }
    seeds = {
        s: {r["seed"] for r in comparison.runs if r["stage"] == s}
        for s in ("tuning", "fresh")
    }
    assert not seeds["tuning"] & seeds["fresh"]


def test_best_on_validation_data_is_chosen(whole):
    comparison, *_ = whole
    tuning = [
        run
        for run in comparison.runs
        if run["stage"] == "tuning" and run["method"] == "adam"
    ]
    best = max(run["result"]["validation_accuracy"] for run in tuning)
    chosen = [
        run
        for run in tuning
        if run["configuration"] == comparison.chosen["adam"]
    ]
    assert chosen[0]["result"]["validation_accuracy"] == best


def test_table_and_figure(whole, tmp_path):
    pytest.importorskip("matplotlib")
    comparison, out, _ = whole
    lines = comparison.table().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert repr(comparison) == str(comparison) == comparison.table()
    assert comparison._repr_markdown_() == comparison.markdown()
    assert comparison.markdown() in (out / "table.md").read_text()
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    figure = comparison.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()
    assert figure._repr_png_().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert comparison.plot(axes) is axes


def test_rows_are_evaluated_in_parts(whole, monkeypatch):
    """The scores are the same, even if the last part is smaller."""
    comparison, *_ = whole
    monkeypatch.setitem(kq.compare.__globals__, "EVALUATION_ROWS", 7)
    found = kq.compare(
        small_model, *splits(), methods=["frozen"], seeds=1, **QUICK
    )
    (run,) = found.runs
    (expected,) = [
        r for r in comparison.runs if (r["method"], r["seed"]) == ("frozen", 0)
    ]
    assert run["curves"].keys() == expected["curves"].keys()
    for name, curve in run["curves"].items():
        assert curve == pytest.approx(expected["curves"][name], abs=1e-5)


# --- A second call ---


def test_second_call_makes_no_runs(whole, monkeypatch):
    comparison, out, _ = whole
    monkeypatch.setattr(plan.Work, "__call__", None)
    again = kq.compare(
        small_model,
        *splits(),
        methods=["signum", "adam", "frozen"],
        seeds=2,
        out=out,
        **QUICK,
    )
    assert again.runs == comparison.runs


def test_wider_grid_reuses_the_runs_in_out(whole, tmp_path, monkeypatch):
    comparison, out, _ = whole
    folder = tmp_path / "copy"
    shutil.copytree(out, folder)
    original, made = plan.Work.__call__, []

    def counted(self, job):
        made.append(job["stage"])
        return original(self, job)

    monkeypatch.setattr(plan.Work, "__call__", counted)
    grid = [
        run["configuration"]
        for run in comparison.runs
        if (run["method"], run["stage"]) == ("signum", "tuning")
    ]
    arguments = {"methods": ["signum"], "seeds": 2, "out": folder, **QUICK}
    rates = [one["rate"] for one in grid]
    wider = [*grid, {"rate": min(rates) / 3}, {"rate": 3 * max(rates)}]
    found = kq.compare(
        small_model, *splits(), grids={"signum": wider}, **arguments
    )
    same = found.chosen == {"signum": comparison.chosen["signum"]}
    assert made == ["tuning"] * 2 + ["fresh"] * (0 if same else 2)
    # The table has the methods of this call.
    assert found.markdown() in (folder / "table.md").read_text()


def test_interrupted_comparison_resumes(whole, tmp_path, monkeypatch):
    comparison, _, _ = whole
    original, count = plan.Work.__call__, [0]

    def interrupted(*arguments):
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    arguments = {"methods": ["signum"], "seeds": 2, "out": tmp_path, **QUICK}
    monkeypatch.setattr(plan.Work, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kq.compare(small_model, *splits(), **arguments)
    assert len(records.read(tmp_path)) == 3
    found = kq.compare(small_model, *splits(), **arguments)
    assert found.runs == [r for r in comparison.runs if r["method"] == "signum"]
    assert count[0] == 4 + 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"epochs": 3}, "epochs=3 instead of 2"),
        ({"batch_size": 10}, "batch_size=10 instead of 20"),
        ({"train": (X[:80] + 1.0, Y[:80])}, "different data"),
        ({"loss": "mse"}, "loss=mse instead of None"),
    ],
)
def test_folder_of_another_comparison_raises(whole, change, message):
    _, out, _ = whole
    names = ("train", "validation", "test")
    arguments = {**dict(zip(names, splits())), **QUICK, **change}
    with pytest.raises(ValueError, match=f"`out` must be .*{message}"):
        kq.compare(small_model, methods=["signum"], out=out, **arguments)


def test_folder_of_another_network_raises(whole):
    def other():
        model = small_model()
        model.layers[0].activation = keras.activations.relu
        return model

    _, out, _ = whole
    with pytest.raises(ValueError, match="`out` must be .*different outputs"):
        kq.compare(other, *splits(), methods=["signum"], out=out, **QUICK)


def test_folder_of_another_grid_raises(whole):
    _, out, _ = whole
    grids = {"signum": [{"rate": r} for r in (0.1, 0.2, 0.3, 0.4)]}
    with pytest.raises(ValueError, match="`out` must not contain .*outside"):
        kq.compare(
            small_model,
            *splits(),
            methods=["signum"],
            grids=grids,
            out=out,
            **QUICK,
        )


def test_runs_do_not_depend_on_each_other(whole):
    """The second seed gives the same result before and after the first."""
    comparison, *_ = whole
    chosen = comparison.chosen["signum"]
    original = plan.Item.jobs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            plan.Item, "jobs", lambda self, stage: original(self, stage)[::-1]
        )
        found = kq.compare(
            small_model,
            *splits(),
            methods=["signum"],
            grids={"signum": [chosen]},
            seeds=2,
            **QUICK,
        )
    assert found.results["signum"] == comparison.results["signum"]


def test_warnings_of_a_whole_comparison(whole):
    """They name the methods whose best rate is at the edge."""
    comparison, _, messages = whole
    for message in messages:
        for key, value in re.findall('"(.*)": `rate` (.*) is', message):
            assert comparison.chosen[key]["rate"] == float(value)


# --- Processes ---

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
import numpy as np
from tensorflow import keras
import keras_qpsbgd as kq

x = np.random.default_rng(0).normal(size=(60, 4))
y = (x[:, 0] > 0).astype(int)


def build_model():
    return keras.Sequential(
        [keras.layers.InputLayer((4,)), kq.layers.BinaryDense(UNITS)]
    )


UNITS = 2
arguments = [build_model, (x[:30], y[:30]), (x[30:40], y[30:40])]
grids = {key: [{"rate": 0.1}] for key in ("signsgd", "adam")}
settings = dict(methods=["signsgd", "adam"], grids=grids, seeds=2, epochs=1)
found = [
    kq.compare(*arguments, (x[40:], y[40:]), processes=n, **settings)
    for n in (2, 1)
]
assert found[0].runs == found[1].runs
print(found[0])


def broken():
    if len(made) == 2:  # two models are built before the processes start
        raise KeyError("mine")
    made.append(1)
    return build_model()


made = []
settings["grids"] = {"adam": grids["adam"]}
settings["methods"] = ["adam"]
arguments[0] = broken
try:
    kq.compare(*arguments, (x[40:], y[40:]), processes=2, **settings)
except RuntimeError as error:
    print("error:", error)
"""


@pytest.mark.slow  # five processes that import TensorFlow
@pytest.mark.once
def test_processes_from_a_script_without_a_main_guard(tmp_path):
    """It comes from standard input, so like a notebook it has no module."""
    pytest.importorskip("joblib")
    done = subprocess.run(
        [sys.executable, "-"],
        input=SCRIPT,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "BinaryConnect (Adam)" in done.stdout
    error = re.search("error: .*", done.stdout)[0]
    expected = 'Training failed for method "adam" in "comparison": '
    assert f"{expected}KeyError: 'mine'" in error
