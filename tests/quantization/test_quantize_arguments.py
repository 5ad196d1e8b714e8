"""Invalid arguments of `kq.quantize` raise before anything is solved."""

import json

import dimod
import numpy as np
import pytest
import quantizing
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.cost import Budget
from keras_qpsbgd.backends.solution import StepCost
from keras_qpsbgd.quantization.calibration import Calibration

X = quantizing.data(20, 8)
L = keras.layers


@pytest.fixture(scope="module")
def model():
    return quantizing.mlp()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bits": 0}, "`bits` must be"),
        ({"bits": True}, "`bits` must be"),
        ({"method": "best"}, "`method` must be"),
        ({"validation_split": 1.0}, "`validation_split` must be"),
        ({"bits": {}}, "`bits` must match"),
        ({"bits": {"first": 5}}, "`bits\\['first'\\]` must be"),
        ({"bits": {"third": 1}}, "Every key of `bits` must match"),
        ({"bits": {"(": 1}}, "`bits` must be a valid regular expression"),
        ({"bits": {".": None}}, "`bits` must match"),
        ({"seed": -1}, "`seed` must be"),
        ({"seed": 0.5}, "`seed` must be"),
        ({"damping": 0.0}, "`damping` must be"),
        ({"verbose": "loud"}, "`verbose` must be"),
        ({"layers": "conv"}, "`layers` must match"),
        ({"layers": "("}, "`layers` must be a valid regular expression"),
        ({"layers": ["first", "third"]}, "`layers` must contain"),
        ({"layers": ["norm"]}, "'norm' \\(normalization\\)"),
        ({"layers": lambda layer: False}, "`layers` must match"),
        ({"layers": 3}, "`layers` must be"),
        ({"backend": "none"}, "`backend` must be"),
    ],
)
def test_options(model, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        kq.quantize(model, X, **{"verbose": 0, **options})
    assert "Received: " in str(caught.value)


@pytest.mark.parametrize(
    "calibration, message",
    [
        (X[:0], "at least one sample"),
        (X[:, :5], r"shape \(None, 8\).*Received: an array of shape \(20, 5\)"),
        ([X, X], "no labels.* Received: 2 arrays"),
        ([], "one array per input .* Received: 0 arrays"),
        (np.where(X > 1, np.nan, X), "only finite numbers"),
        ({"wrong": X}, "one array per input"),
        (X.astype(str), "dtype float32 .*Received: an array of dtype string"),
        (X + 0j, "dtype float32 .*Received: an array of dtype complex"),
        (object(), "must be an array"),
        (np.full((2, 8), None), "must be an array.*Received: ndarray .*None"),
        (tf.data.Dataset.from_tensors(X).repeat(), "must be a finite dataset"),
        (tf.data.Dataset.from_tensors(X).take(0), "at least one batch"),
    ],
)
def test_calibration(model, calibration, message):
    with pytest.raises(ValueError, match=message) as caught:
        kq.quantize(model, calibration, verbose=0)
    assert "`calibration`" in str(caught.value)
    assert "Received: " in str(caught.value)


def test_equal_samples_prove_nothing(model):
    same = X[:1].repeat(20, 0)
    _, report = kq.quantize(model, same, layers="first", verbose=0)
    assert report.layers[0].proven is None


@pytest.mark.parametrize("is_dataset", [False, True])
def test_zeros_carry_no_information(model, is_dataset):
    zeros = np.zeros_like(X)
    if is_dataset:
        zeros = tf.data.Dataset.from_tensor_slices(zeros).batch(8)
    options = {"backend": "exact", "layers": "first", "verbose": 0}
    with pytest.warns(UserWarning, match="`calibration` .*no information"):
        _, report = kq.quantize(model, zeros, **options)
    # An optimum for these inputs would prove nothing.
    assert report.layers[0].proven is None
    assert report.layers[0].calls == 0


@pytest.mark.parametrize("bits", [np.int64(2), {".": np.int64(2)}])
def test_numpy_bits_can_be_stored_as_json(model, bits):
    _, report = kq.quantize(model, X, bits, method="nearest", verbose=0)
    assert json.loads(json.dumps(report.as_dict()))["bits"] == 2


def test_several_inputs():
    model = quantizing.two_inputs()
    with pytest.raises(ValueError, match="same number of samples"):
        kq.quantize(model, [X, quantizing.data(19, 5)], verbose=0)
    # The second entry of a tuple in a dataset is the target.
    pairs = tf.data.Dataset.from_tensors((X, quantizing.data(20, 5)))
    with pytest.raises(ValueError, match="contains the labels.*: 1 array$"):
        kq.quantize(model, pairs, verbose=0)
    a, b = keras.Input((8,), name="a"), keras.Input((5,), name="b")
    model = keras.Model({"a": a, "b": b}, L.Dense(2)(L.Concatenate()([a, b])))
    with pytest.raises(ValueError, match="must be a dictionary"):
        kq.quantize(model, [X, quantizing.data(20, 5)], verbose=0)


class Batches(
    keras.utils.PyDataset if _keras.KERAS_3 else keras.utils.Sequence
):
    """Twelve batches of two samples with their targets."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return X[index : index + 2], np.zeros(2)


def dataset(*parts):
    found = parts[0] if len(parts) == 1 else parts
    return tf.data.Dataset.from_tensor_slices(found).batch(8)


WEIGHTS = np.zeros(20)
LONG = quantizing.data(300, 8).astype(np.float64)


@pytest.mark.parametrize(
    "data, options, sizes, held_out",
    [
        (LONG, {}, [128, 128, 44], []),
        (LONG, {"whole": True, "validation_split": 0.2}, [300], []),
        (X, {"validation_split": 0.25}, [15], [5]),
        (dataset(X), {}, [8, 8, 4], []),
        (dataset(X, WEIGHTS, WEIGHTS), {}, [8, 8, 4], []),
        (Batches(), {"validation_split": 0.25}, [2] * 9, [2] * 3),
        (Batches(), {"validation_split": 0.9}, [2] * 6, [2] * 6),
    ],
)
def test_batches(model, data, options, sizes, held_out):
    found = Calibration(model, data, **options)
    assert [len(batch) for batch in found.batches] == sizes
    assert [len(batch) for batch in found.held_out] == held_out
    assert found.batches[0].dtype == tf.float32
    if not isinstance(data, Batches):
        read = np.concatenate([*found.batches, *found.held_out])
        np.testing.assert_allclose(read, X if len(read) == 20 else LONG)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def called(model):
    model(X)
    return model


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: "model", "must be a Keras model"),
        (lambda: called(Subclassed()), "Sequential or functional.*Subclass"),
        (lambda: keras.Sequential([L.Dense(2)]), "has been built. Call it"),
        (
            lambda: keras.Sequential([keras.Input((8,)), L.ReLU()]),
            "that can be quantized.*no layers with weights",
        ),
    ],
)
def test_model(make, message):
    with pytest.raises(ValueError, match=message):
        kq.quantize(make(), X)


def test_layers_must_have_a_configuration():
    class Scale(L.Layer):
        def __init__(self, factor):
            super().__init__(name="scale")
            self.factor = factor

        def call(self, inputs):
            return self.factor * inputs

        def get_config(self):
            return super().get_config()  # without the argument

    model = keras.Sequential([keras.Input((8,)), L.Dense(2), Scale(2.0)])
    with pytest.raises(ValueError, match="`scale` of type Scale"):
        kq.quantize(model, X, verbose=0)


def test_weights_and_activations_must_be_finite():
    model = quantizing.mlp()
    kernel = model.get_layer("second").kernel
    kernel.assign(np.full(kernel.shape, np.nan))
    with pytest.raises(ValueError, match="finite weights.*`second`"):
        kq.quantize(model, X, verbose=0)
    x = keras.Input((8,))
    y = L.Dense(4, name="after")(L.Lambda(lambda t: tf.math.log(t))(x))
    with pytest.raises(ValueError, match="activations.*`after` of the given"):
        kq.quantize(keras.Model(x, y), X, verbose=0)


class Counting(backends.Backend):
    """Counts its calls and has a maximum width."""

    max_variables = 12
    calls = 0

    def sample(self, qubo, seed):
        self.calls += 1
        return np.ones((1, qubo.num_variables, qubo.num_columns)), {}


def test_width_is_checked_before_the_first_call(model):
    """Only the second layer is too wide."""
    backend = Counting()
    with pytest.raises(backends.BackendUnavailable, match="at most 12 inputs"):
        kq.quantize(model, X, backend=backend, verbose=0)
    assert backend.calls == 0
    kq.quantize(model, X, backend=backend, layers="first|head", verbose=0)
    assert backend.calls == 2


class Priced(Counting):
    """Takes 0.1 s per column."""

    def __init__(self, seconds):
        super().__init__()
        self.budget = Budget(seconds)

    def step_cost(self, sizes):
        calls = sum(columns for _, columns in sizes)
        return StepCost(0.1 * calls, calls, "0.1 s per column")

    def sample(self, qubo, seed):
        seconds = self.budget.reserve(0.1 * qubo.num_columns)
        self.budget.settle(seconds, seconds)
        return super().sample(qubo, seed)


def test_any_sampler_solves_the_layers(tmp_path):
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    x = quantizing.data(20, 4)
    options = {"backend": dimod.ExactSolver(), "verbose": 0}
    _, report = kq.quantize(model, x, **options)
    assert report.calls > 0
    with pytest.raises(ValueError, match="`out` requires a backend") as caught:
        kq.quantize(model, x, out=tmp_path, **options)
    assert "Received: backend=" in str(caught.value)


def test_budget_covers_all_layers(model, capsys):
    """The first layer has 16 columns, and the last one 4."""
    backend = Priced(1.9)
    options = {"backend": backend, "layers": "first|head", "verbose": 0}
    with pytest.raises(backends.BudgetExceeded, match="up to 2 s") as caught:
        kq.quantize(model, X, **options)
    assert "Received: qpu_budget_seconds=1.9" in str(caught.value)
    assert backend.calls == 0 and backend.budget.charged == 0.0
    options["backend"] = backend = Priced(2.1)
    kq.quantize(model, X, **{**options, "verbose": 1})
    shown = capsys.readouterr().out
    assert shown.startswith("Estimated QPU time: 2 s\n")
    assert backend.calls == 2
    with pytest.raises(backends.BudgetExceeded, match="2 s are already spent"):
        kq.quantize(model, X, **options)


def test_an_error_of_the_solver_names_the_layer(model, monkeypatch):
    def fail(self, qubo, seed):
        raise backends.SolverError("no answer")

    monkeypatch.setattr(Counting, "sample", fail)
    options = {"backend": Counting(), "layers": "head", "verbose": 0}
    with pytest.raises(
        backends.SolverError, match="Layer `head`: no answer"
    ) as caught:
        kq.quantize(model, X, **options)
    assert caught.value.info["calls"] == 1
