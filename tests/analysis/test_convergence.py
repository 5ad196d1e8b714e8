"""Tests fixed points against an enumeration, and directions by hand."""

import csv
import itertools
import math

import dimod
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats
from tensorflow import keras

import keras_qpsbgd as kq

N, M, KAPPA = 4, 2, 3.0
ACTIVE = [0, 1, 3]  # the other input is zero in all samples


def data(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, N))
    x[:, 2] = 0.0
    y = x @ rng.choice([-1.0, 1.0], size=(N, M)) + rng.normal(size=(30, M)) > 0
    return x.astype("float32"), y.astype("float32")


def network(**arguments):
    model = keras.Sequential(
        [keras.Input((N,)), kq.layers.BinaryDense(M, name="only")]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    eager = arguments.pop("run_eagerly", False)
    arguments = {"real_optimizer": "sgd", "kappa": KAPPA, **arguments}
    model.compile(kq.QPSBGD(**arguments), loss, run_eagerly=eager)
    return model


def set_weights(model, weights):
    model.get_layer("only").kernel.assign(0.3 * np.asarray(weights))


def candidates():
    """All pairs of columns. The weight of the zero input is arbitrary."""
    columns = list(itertools.product((1.0, -1.0), repeat=len(ACTIVE)))
    for index, pair in enumerate(itertools.product(columns, repeat=M)):
        weights = np.full((N, M), 1.0 if index % 2 else -1.0)
        weights[ACTIVE] = np.transpose(pair)
        yield weights


def qubo_of_averages(x, v):
    """Returns the couplings and fields of the averaged rule."""
    couplings, gradient = x.T @ x / (x**2).sum(), x.T @ v
    others = couplings - np.diag(np.diag(couplings))
    force = np.sqrt((others**2).sum() / N)
    rms = np.sqrt((gradient**2).mean())
    return couplings, -2 * KAPPA * force * gradient / rms


def qubo_of_paper(x, v):
    """Returns the couplings and fields of Definition 1 of the paper."""
    z = x / (x**2).sum(axis=1, keepdims=True)
    return z.T @ z, -2 * z.T @ v


QUBOS = {"averaged": qubo_of_averages, "paper": qubo_of_paper}


def columns_at_fixed_points(x, y, weights, rule="averaged"):
    """Enumerates all states. Returns a list, one entry per column."""
    x, y = x.astype("float64"), y.astype("float64")
    outputs = x @ weights / np.sqrt(N)
    v = (1 / (1 + np.exp(-outputs)) - y) / np.sqrt(N)  # a sum over samples
    if rule == "averaged":
        v /= y.size
    couplings, fields = QUBOS[rule](x, v)
    couplings = couplings[np.ix_(ACTIVE, ACTIVE)]
    found = []
    for column in range(M):
        energies = {}
        for active in itertools.product((1.0, -1.0), repeat=len(ACTIVE)):
            g = np.array(active)
            energies[active] = g @ couplings @ g + fields[ACTIVE, column] @ g
        best, second = sorted(energies, key=energies.get)[:2]
        gap = energies[second] - energies[best]
        assert gap > 1e-3 * np.ptp(list(energies.values()))  # not a tie
        found.append(np.array_equal(weights[ACTIVE, column], -np.array(best)))
    return found


@pytest.mark.parametrize(
    "optimizer_backend, backend",
    [
        pytest.param("native", None, marks=pytest.mark.slow),
        ("sign", dimod.ExactSolver()),
    ],
    ids=["native", "host"],
)
def test_finds_exactly_the_fixed_points(optimizer_backend, backend):
    x, y = data()
    model = network(backend=optimizer_backend)
    callback = kq.callbacks.FixedPoint(x, y, backend=backend, stop=True)
    callback.set_model(model)
    callback.on_train_begin()
    found = []
    for weights in candidates():
        expected = columns_at_fixed_points(x, y, weights)
        set_weights(model, weights)
        model.stop_training = False
        logs = {}
        callback.on_epoch_end(0, logs)
        share = np.mean(expected)
        assert logs == {"fixed_point": share, "only_fixed_point": share}
        assert model.stop_training == all(expected)
        found.append(share)
    assert {0.0, 0.5, 1.0} == set(found)


@pytest.mark.parametrize("rule", ["averaged", "paper"])
def test_fixed_points_of_each_column(rule):
    x, y = data()
    model = network(run_eagerly=True, rule=rule)
    # Keras takes the mean over samples and columns. The rule of the paper
    # depends on the scale of the loss.
    weight = np.full(len(x), y.size if rule == "paper" else 1.0)
    # One example of no, the first, the second and both columns.
    examples = {
        tuple(columns_at_fixed_points(x, y, weights, rule)): weights
        for weights in candidates()
    }
    assert len(examples) == 4
    for expected, weights in examples.items():
        set_weights(model, weights)
        points = kq.analysis.fixed_points(model, x, y, weight, backend="exact")
        assert tuple(points.columns["only"]) == expected
        assert points.shares == {"only": np.mean(expected)}
        assert points.share == np.mean(expected)
        assert points.converged == all(expected)


def fixed_weights(x, y):
    for weights in candidates():
        if all(columns_at_fixed_points(x, y, weights)):
            return weights


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_fit(tmp_path, eager):
    """Training stops, and all logs have a value for every epoch."""
    x, y = data()
    model = network(learning_rate=1e-3, backend="exact", run_eagerly=eager)
    set_weights(model, fixed_weights(x, y))
    path = tmp_path / "log.csv"
    history = model.fit(
        x,
        y,
        epochs=9,
        verbose=0,
        callbacks=[
            kq.callbacks.FixedPoint(x, y, every=3, batch_size=8, stop=True),
            keras.callbacks.CSVLogger(str(path)),
        ],
    )
    found = history.history["fixed_point"]
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1.0])
    assert history.history["only_fixed_point"][-1] == 1.0
    with open(path) as file:
        assert [row["fixed_point"] for row in csv.DictReader(file)] == [
            "nan",
            "nan",
            "1.0",
        ]


class Broken(kq.backends.Backend):
    def sample(self, qubo, seed):
        raise kq.backends.SolverError("broken")


def test_a_failed_solve():
    x, y = data()
    for on_failure in ("raise", "hold"):
        model = network(backend="sign", on_failure=on_failure, run_eagerly=True)
        callback = kq.callbacks.FixedPoint(x, y, Broken())
        fit = dict(verbose=0, callbacks=[callback])
        if on_failure == "raise":
            with pytest.raises(kq.backends.SolverError, match="broken"):
                model.fit(x, y, **fit)
        else:
            with pytest.warns(UserWarning, match="FixedPoint.*broken"):
                history = model.fit(x, y, **fit)
            assert np.isnan(history.history["fixed_point"]).all()


def test_columns_without_a_gradient_and_infinite_gradients():
    x, y = data()
    model = network(run_eagerly=True)
    fixed_points = kq.analysis.fixed_points
    points = fixed_points(model, x, y, sample_weight=np.zeros(len(x)))
    assert points.converged  # a step holds all weights
    x[0] = 3e38
    assert fixed_points(model, x, y).share == 0.0


def test_arguments():
    x, y = data()
    for arguments in ({"every": 0}, {"batch_size": 0}, {"backend": "none"}):
        with pytest.raises(ValueError, match="Received: "):
            kq.callbacks.FixedPoint(x, y, **arguments)
    model = network()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`optimizer` .*Received: "):
        model.fit(x, y, callbacks=[kq.callbacks.FixedPoint(x, y)], verbose=0)


@pytest.mark.once
def test_plot_of_fixed_points():
    points = kq.analysis.FixedPoints(
        {"a": np.array([True, False]), "b": np.array([True] * 3)}
    )
    ax = Figure().subplots()
    assert kq.analysis.plot_fixed_points(points, ax) is ax
    assert [bar.get_width() for bar in ax.patches] == [0.5, 1.0]
    assert [text.get_text() for text in ax.texts] == ["1 of 2", "3 of 3"]


# Direction of updates


@pytest.mark.once
def test_direction():
    states = np.array([[1, -1], [1, 0], [-1, 1]], np.int8)
    gradient = np.array([[0.5, 2.0], [0.0, 1.0], [-1e-9, 3.0]])
    test = kq.analysis.direction_test(states, gradient)
    # Four comparisons: yes, no, yes, yes.
    assert (test.agreed, test.comparisons) == (3, 4)
    assert test.agreement == 0.75
    assert test.z == 0.25 / math.sqrt(1 / 16)
    assert test.p_value == pytest.approx(2 * (1 + 4) / 16)
    for alternative, expected in (("greater", 5 / 16), ("less", 15 / 16)):
        test = kq.analysis.direction_test(states, gradient, alternative)
        assert test.p_value == pytest.approx(expected)


@pytest.mark.once
def test_directions_of_layers():
    layers = [np.ones((2, 3)), -np.ones(4)]
    test = kq.analysis.direction_test(layers, [layers[0], -layers[1]])
    assert (test.agreed, test.comparisons) == (6, 10)


@pytest.mark.once
def test_directions_without_a_comparison():
    test = kq.analysis.direction_test(np.zeros(3), np.ones(3))
    assert test.comparisons == 0
    assert all(map(math.isnan, (test.agreement, test.z, test.p_value)))


@pytest.mark.once
def test_errors_of_direction_test():
    with pytest.raises(ValueError, match="same shapes.*Received: "):
        kq.analysis.direction_test(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="`alternative` .*Received: "):
        kq.analysis.direction_test(np.ones(3), np.ones(3), "more")


@pytest.mark.once
def test_plot_of_directions():
    tests = {
        "first": kq.analysis.DirectionTest(60, 100),
        "second": kq.analysis.DirectionTest(5, 10),
    }
    ax = Figure().subplots()
    assert kq.analysis.plot_direction_test(tests, ax) is ax
    assert [text.get_text() for text in ax.texts] == [
        "Z = 2.0, N = 100",
        "Z = 0.0, N = 10",
    ]
    ends = [line.get_segments()[0][:, 0] for line in ax.collections]
    for (low, high), test in zip(ends, tests.values()):
        interval = stats.binomtest(test.agreed, test.comparisons).proportion_ci(
            method="wilson"
        )
        np.testing.assert_allclose((low, high), interval, rtol=1e-9)
