"""`kq.compare`: a whole comparison, its protocol, and what it returns."""

import json
import math
import pathlib
import random
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import sparse
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.compare import checkpoint
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.engine import worker
from keras_qpsbgd.compare.own_data import data as own_data
from keras_qpsbgd.compare.own_data import edges
from keras_qpsbgd.compare.own_data import network

ROOT = pathlib.Path(__file__).parents[2]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 6))
Y = (X[:, 0] - X[:, 1] > 0).astype(int)
PARTS = {"train": slice(0, 80), "validation": slice(80, 100)}
PARTS["test"] = slice(100, 120)
QUICK = {"epochs": 2, "batch_size": 20, "tuning_seeds": 1, "verbose": 0}


def splits(x=X, y=Y):
    return [(x[part], y[part]) for part in PARTS.values()]


def small_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer((6,)),
            kq.layers.BinaryDense(4, activation="hard_tanh", use_bias=False),
            keras.layers.Dropout(0.3),
            kq.layers.BinaryDense(2, use_bias=False),
        ]
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison, and the folder that it wrote."""
    out = tmp_path_factory.mktemp("whole")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = kq.compare(
            small_model,
            *splits(),
            methods=["sign", "adam", "frozen"],
            seeds=2,
            out=out,
            **QUICK,
        )
    messages = [str(w.message) for w in caught if "of its grid" in str(w)]
    return found, out, messages


# --- What it returns ---


def test_results(whole):
    comparison, *_ = whole
    assert {*comparison.results} == {"sign", "adam", "frozen"}
    for values in comparison.results.values():
        assert {*values} == {0, 1}
        assert all(0 <= value <= 1 for value in values.values())
    assert {*comparison.p_values} == {"adam", "frozen"}
    assert comparison.reference == "sign"
    assert comparison.chosen["frozen"] == {}
    assert {*comparison.chosen["adam"]} == {"rate"}


def test_every_method_gets_as_many_runs(whole):
    comparison, *_ = whole
    counts = {}
    for run in comparison.runs:
        key = run["method"], run["stage"]
        counts[key] = counts.get(key, 0) + 1
        scores = {*run["result"], *run["curves"]}
        tested = any(name.startswith("test_") for name in scores)
        assert tested == (run["stage"] == "fresh")
        assert len(run["curves"]["epoch"]) == 3
    assert sorted(counts.values()) == [2, 2, 2, 4, 4]
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
        if run["stage"] == "tuning" and "Adam" in run["method"]
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
    assert "paper" not in comparison.table()
    assert repr(comparison) == str(comparison) == comparison.table()
    assert comparison._repr_markdown_() == comparison.markdown()
    assert comparison.markdown() in (out / "table.md").read_text()
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    figure = comparison.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()
    assert figure._repr_png_().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert comparison.plot(axes) is axes


# --- Goes on ---


def test_second_call_makes_no_run(whole, monkeypatch):
    comparison, out, _ = whole
    monkeypatch.setattr(worker, "one_run", None)
    again = kq.compare(
        small_model,
        *splits(),
        methods=["sign", "adam", "frozen"],
        seeds=2,
        out=out,
        **QUICK,
    )
    assert again.runs == comparison.runs


def test_interrupted_comparison_goes_on(whole, tmp_path, monkeypatch):
    comparison, _, _ = whole
    original, count = worker.one_run, [0]

    def interrupted(*arguments):
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    arguments = {"methods": ["sign"], "seeds": 2, "out": tmp_path, **QUICK}
    monkeypatch.setattr(worker, "one_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kq.compare(small_model, *splits(), **arguments)
    assert len(records.read(tmp_path)) == 3
    found = kq.compare(small_model, *splits(), **arguments)
    assert found.runs == [r for r in comparison.runs if "sign" in r["method"]]
    assert count[0] == 4 + 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"epochs": 3}, "epochs=3 instead of 2"),
        ({"batch_size": 10}, "batch_size=10 instead of 20"),
        ({"train": (X[:80] + 1.0, Y[:80])}, "other data"),
        ({"loss": "mse"}, "loss=mse instead of None"),
    ],
)
def test_folder_of_another_comparison_is_refused(whole, change, message):
    _, out, _ = whole
    names = ("train", "validation", "test")
    arguments = {**dict(zip(names, splits())), **QUICK, **change}
    with pytest.raises(ValueError, match=f"`out` must be .*{message}"):
        kq.compare(small_model, methods=["sign"], out=out, **arguments)


def test_folder_of_another_network_is_refused(whole):
    def other():
        model = small_model()
        model.layers[0].activation = keras.activations.relu
        return model

    _, out, _ = whole
    with pytest.raises(ValueError, match="`out` must be .*other outputs"):
        kq.compare(other, *splits(), methods=["sign"], out=out, **QUICK)


def test_folder_of_another_grid_is_refused(whole):
    _, out, _ = whole
    grids = {"sign": [{"rate": r} for r in (0.1, 0.2, 0.3, 0.4)]}
    with pytest.raises(ValueError, match="`out` must not contain .*another"):
        kq.compare(
            small_model,
            *splits(),
            methods=["sign"],
            grids=grids,
            out=out,
            **QUICK,
        )


# --- The same start for all methods ---


def conv_model():
    return keras.Sequential(
        [
            kq.layers.BinaryConv2D(2, 2, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            kq.layers.BinaryDense(2),
        ]
    )


def test_convolution_kernels_start_from_the_seed():
    """And equal for all methods, random states of dropout included."""
    x = RNG.normal(size=(40, 3, 3, 1))
    parts = [(x, Y[:40])] * 3
    data = own_data.read(*parts, has_loss=False)
    source = network.Source(data, conv_model, [0, 1, 1_000])
    kernel, other = source.first_weights(0)[0], source.first_weights(1)[0]
    assert kernel.shape == (2, 2, 1, 2)
    assert (kernel != other).all()
    again = network.Source(data, conv_model, [1, 0])
    for left, right in zip(source.first_weights(0), again.first_weights(0)):
        np.testing.assert_array_equal(left, right)
    states = [source.first_weights(seed)[-1] for seed in (0, 1)]
    assert (states[0] != states[1]).any()

    seen = {}
    original = worker.one_run

    def watched(item, trainers, *arguments):
        result = original(item, trainers, *arguments)
        (trainer,) = trainers.values()
        seed = arguments[2]
        trainer._reset(seed)
        values = [v.numpy() for v in trainer.model_variables()]
        seen.setdefault(seed, []).append(values)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "one_run", watched)
        kq.compare(
            conv_model,
            *parts,
            methods=["signsgd", "real"],
            grids={key: [{"rate": 0.1}] for key in ("signsgd", "real")},
            seeds=2,
            **QUICK,
        )
    for seed in (0, 1):
        first, second = seen[seed]
        assert len(first) == len(source.first_weights(seed)) == 9
        for ours, theirs, drawn in zip(
            first, second, source.first_weights(seed)
        ):
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(ours, drawn)


def test_runs_do_not_depend_on_each_other(whole):
    """The second seed alone gives what it gave after the first."""
    comparison, *_ = whole
    original, kept = worker.one_run, []

    def reversed_runs(item, *arguments):
        run = original(item, *arguments)
        kept.append(run[0])
        return run

    chosen = comparison.chosen["sign"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "one_run", reversed_runs)
        patch.setattr(
            kq.compare.__globals__["Item"],
            "missing",
            lambda self, stage: (
                [(chosen, 1), (chosen, 0)] if stage == "fresh" else []
            ),
        )
        patch.setattr(
            kq.compare.__globals__["Item"], "check", lambda self: None
        )
        kq.compare(
            small_model,
            *splits(),
            methods=["sign"],
            grids={"sign": [chosen]},
            seeds=2,
            **QUICK,
        )
    assert [run["seed"] for run in kept] == [1, 0]
    for run in kept:
        value = comparison.results["sign"][run["seed"]]
        assert run["result"]["test_accuracy"] == pytest.approx(value, abs=1e-6)


def test_notebook_is_not_disturbed():
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    with network.random_seed(7):
        random.random()
    assert (random.random(), np.random.random()) == expected


# --- Modes of the network ---


def test_real_and_latent_weights():
    data = own_data.read(*splits(), has_loss=False)
    source = network.Source(data, small_model, [0])
    x = X[:5].astype("float32")
    for mode in ("binary", "latent", "real"):
        model = source.model(mode)
        layer = model.layers[0]
        kernel = np.asarray(layer.kernel)
        signs = np.where(kernel < 0, -1.0, 1.0) / math.sqrt(6)
        latent = kernel / math.sqrt(6)
        trained = {"binary": signs, "latent": latent, "real": kernel}[mode]
        evaluated = kernel if mode == "real" else signs
        for training, weights in ((True, trained), (False, evaluated)):
            np.testing.assert_allclose(
                layer(x, training=training),
                np.clip(x @ weights, -1, 1),
                rtol=1e-5,
                atol=1e-5,
            )


@pytest.mark.once
def test_methods_that_need_other_weights():
    found = kq.compare(
        small_model,
        *splits(),
        methods=["proxquant", "real", "bop", "sgd"],
        grids={
            "proxquant": [{"rate": 1.0, "regularization": 0.01}],
            "real": [{"rate": 0.1}],
            "bop": [{"rate": 0.1, "threshold": 1e-3}],
            "sgd": [{"rate": 1.0}],
        },
        seeds=1,
        reference="real",
        **QUICK,
    )
    assert {*found.results} == {"proxquant", "real", "bop", "sgd"}
    assert all(math.isnan(p) for p in found.p_values.values())


# --- Other data ---


def test_regression():
    y = X[:, 0] + 2.0 * X[:, 1]

    class Model(keras.Model):
        """Subclassed, and built only when it is called."""

        def __init__(self):
            super().__init__()
            self.hidden = kq.layers.BinaryDense(8, activation="relu")
            self.last = keras.layers.Dense(1)

        def call(self, inputs, training=None):
            return self.last(self.hidden(inputs, training=training))

    found = kq.compare(
        Model,
        *splits(y=y),
        methods=["adam", "frozen"],
        grids={
            "adam": [{"rate": 0.3, "real_rate": 0.1}],
            "frozen": [{"real_rate": 0.1}],
        },
        seeds=2,
        loss=keras.losses.Huber(),
        **{**QUICK, "epochs": 10},
    )
    for run in found.runs:
        assert "test_accuracy" not in run["result"]
        loss = run["curves"]["train_loss"]
        assert loss[-1] < 0.8 * loss[0]
    assert "test loss" in found.table() and "accuracy" not in found.table()


def test_loss_is_the_mean_over_rows():
    """And not over all pairs of rows, for targets without a second axis."""
    y = X[:, 0]

    def linear():
        return keras.Sequential(
            [keras.layers.InputLayer((6,)), kq.layers.BinaryDense(1)]
        )

    for loss in ("mse", keras.losses.MeanSquaredError()):
        found = kq.compare(
            linear,
            *splits(y=y),
            methods=["frozen"],
            seeds=1,
            loss=loss,
            **QUICK,
        )
        data = own_data.read(*splits(y=y), has_loss=True)
        source = network.Source(data, linear, [0])
        kernel, bias = source.first_weights(0)
        signs = np.where(kernel < 0, -1.0, 1.0)
        outputs = X[100:] @ signs / math.sqrt(6) + bias
        expected = np.mean((outputs[:, 0] - y[100:]) ** 2)
        first = found.runs[-1]["curves"]["test_loss"][0]
        assert first == pytest.approx(expected, rel=1e-4)


def test_graph():
    rng = np.random.default_rng(0)
    nodes = 30
    y = np.arange(nodes) % 2
    x = rng.normal(size=(nodes, 4)) + y[:, None]
    a = sparse.random(nodes, nodes, 0.1, random_state=0)
    a = kq.layers.BinaryGraphConv.preprocess(a + a.T)

    def build():
        features = keras.Input((4,))
        adjacency = keras.Input((None,), sparse=True)
        hidden = kq.layers.BinaryGraphConv(3, "hard_tanh")(
            [features, adjacency]
        )
        outputs = kq.layers.BinaryGraphConv(2)([hidden, adjacency])
        return keras.Model([features, adjacency], outputs)

    mask = np.arange(nodes) < 14
    found = kq.compare(
        build,
        ((x, a), y, mask),
        ((x, a), y, np.arange(14, 20)),
        ((x, a), y, np.arange(20, 30)),
        methods=["signsgd"],
        grids={"signsgd": [{"rate": 0.1}]},
        seeds=1,
        **QUICK,
    )
    (run,) = found.runs
    # Two passes over the training nodes, in one batch each.
    assert run["curves"]["epoch"] == [0, 1, 2]
    assert run["result"]["test_accuracy"] * 10 == pytest.approx(
        round(run["result"]["test_accuracy"] * 10)
    )


def test_several_inputs_and_an_embedding():
    words = RNG.integers(5, size=(120, 3))

    def build():
        numbers = keras.Input((6,))
        tokens = keras.Input((3,), dtype="int32")
        embedded = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(tokens))
        joined = keras.layers.Concatenate()([numbers, embedded])
        return keras.Model([numbers, tokens], kq.layers.BinaryDense(1)(joined))

    parts = [((X[p], words[p]), Y[p]) for p in PARTS.values()]
    found = kq.compare(
        build,
        *parts,
        methods=["signsgd"],
        grids={"signsgd": [{"rate": 0.1}]},
        seeds=1,
        **QUICK,
    )
    assert len(found.runs) == 1


# --- Warnings ---


def test_edge_of_a_grid():
    with pytest.warns(UserWarning) as caught:
        edges.warn_of_edges(
            {"adam": {"rate": 0.4}, "sgd": {"rate": 2.0}, "frozen": {}},
            {
                "adam": [{"rate": r} for r in (0.1, 0.2, 0.4)],
                "sgd": [{"rate": r} for r in (1.0, 2.0, 4.0)],
                "frozen": [{}],
            },
        )
    (warning,) = caught
    text = str(warning.message)
    assert 'The best `rate` of "adam", 0.4, is the highest of its grid' in text
    grid = re.search(r"`grids=(\{.*\})`", text)[1].replace("'", '"')
    rates = [one["rate"] for one in json.loads(grid)["adam"]]
    assert rates == [0.4, 0.8, 1.6]


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


def test_warnings_of_a_whole_comparison(whole):
    """Exactly those whose choice is at the edge."""
    comparison, _, messages = whole
    expected = set()
    for key, label in (("sign", "(sign)"), ("adam", "(Adam)")):
        rates = {
            run["configuration"]["rate"]
            for run in comparison.runs
            if label in run["method"] and run["stage"] == "tuning"
        }
        if comparison.chosen[key]["rate"] in (min(rates), max(rates)):
            expected.add(key)
    assert {re.search('of "(.*)",', m)[1] for m in messages} == expected


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


# --- Several processes ---

SCRIPT = '''
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
    if kq.layers.BinaryDense.__name__ in made:
        raise KeyError("mine")
    made.append(1)
    return build_model()


class Breaks(list):
    """Sent to a process it has no room for another model."""

    def __contains__(self, name):
        return len(self) >= 2


made = Breaks()
try:
    arguments[0] = broken
    kq.compare(*arguments, (x[40:], y[40:]), processes=2, **settings)
except KeyError as error:
    print("told:", error)
'''


@pytest.mark.once
def test_processes_from_a_script_without_a_main_guard(tmp_path):
    """From standard input, as in a notebook: nobody can import it."""
    pytest.importorskip("loky")
    done = subprocess.run(
        [sys.executable, "-"],
        input=SCRIPT,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "BinaryConnect (Adam)" in done.stdout
    told = re.search("told: .*", done.stdout)[0]
    assert "failed on comparison" in told and "'mine'" in told
    assert re.search('Method "(signsgd|adam)"', told)


def test_checkpoints_of_a_comparison(whole, tmp_path, monkeypatch):
    """Killed between two epochs, it goes on with the same dropout."""
    comparison, *_ = whole
    saved = []

    class Saved(checkpoint.Checkpoint):
        def save(self, *arguments):
            super().save(*arguments)
            saved.append(1)
            if len(saved) == 1:
                raise KeyboardInterrupt

    chosen = comparison.chosen["sign"]
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(worker, "Checkpoint", Saved)
    arguments = {
        "methods": ["sign"],
        "grids": {"sign": [chosen]},
        "seeds": 1,
        "out": tmp_path,
        **QUICK,
    }
    with pytest.raises(KeyboardInterrupt):
        kq.compare(small_model, *splits(), **arguments)
    (kept,) = (tmp_path / "runs").iterdir()
    assert kept.suffix == ".npz"
    found = kq.compare(small_model, *splits(), **arguments)
    assert len(saved) == 2  # one epoch, and the other one
    (run,) = found.runs
    (whole_run,) = [
        r
        for r in comparison.runs
        if (r["stage"], r["seed"]) == ("fresh", 0) and "sign" in r["method"]
    ]
    assert run == whole_run
