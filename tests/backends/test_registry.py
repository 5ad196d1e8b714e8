"""Registering and saving backends, and sharing compiled searches."""

import gc
import re
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends import registry
from keras_qpsbgd.backends.graph import graph_backend
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.qubo import ops

pytestmark = pytest.mark.once

SEED = tf.constant([1, 2])


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


class Up(kq.backends.Backend):
    """Sets all variables to +1."""

    def sample(self, qubo, seed):
        return np.ones((1, qubo.num_variables, qubo.num_columns)), {}


class Fails(kq.backends.Backend):
    def sample(self, qubo, seed):
        raise kq.backends.SolverError("out of order")


def model(backend, **arguments):
    model = keras.Sequential(
        [keras.layers.InputLayer((5,)), kq.layers.BinaryDense(2)]
    )
    model.compile(kq.QPSBGD(0.1, backend, seed=0, **arguments), "mse")
    return model


@pytest.mark.parametrize(
    "name, similar",
    [
        ("nativ", "native"),
        ("D-Wave", "dwave"),
        ("annealing", "simulated_annealing"),
        ("leap-hybrid", "leap_hybrid"),
    ],
)
def test_similar_names(name, similar):
    message = f"must be one of .* Did you mean `{similar}`.*Received: backend="
    with pytest.raises(ValueError, match=message):
        kq.backends.get(name)
    with pytest.raises(ValueError, match=f"Did you mean `{similar}`") as caught:
        kq.QPSBGD(on_failure=name)
    assert str(caught.value).count("Received") == 1
    with pytest.raises(ValueError) as caught:
        kq.backends.get("my_own_solver")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("value", ["ignore", "skip", "stop", "warn"])
def test_on_failure_is_no_backend(value):
    with pytest.raises(ValueError, match='"raise".*"hold".*Received') as caught:
        kq.QPSBGD(on_failure=value)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "config, hint",
    [
        ({"nam": "dwave"}, " Did you mean `name`[?]"),
        ({"num_reads": 5}, ""),
        ({"name": None}, ""),
        ({}, ""),
    ],
)
def test_configuration_without_a_name(config, hint):
    received = re.escape(f"Received: backend={config!r}")
    with pytest.raises(ValueError, match=f"a backend[.]{hint} {received}"):
        kq.QPSBGD(backend=config)
    secret = {**config, "token": "abc-123"}
    with pytest.raises(ValueError, match="Do not pass secrets") as caught:
        kq.QPSBGD(backend=secret)
    assert "abc-123" not in str(caught.value)


# Registering


def define(level):
    """Defines the class again, like a notebook cell that runs again."""

    class Cell(Up):
        pass

    Cell.level = level
    return Cell


def test_class_can_be_registered_again():
    first, second = define(1), define(2)
    kq.backends.register("cell", first)
    old = kq.backends.get("cell")
    kq.backends.register("cell", second)
    assert type(kq.backends.get("cell")) is second
    assert second.name == "cell"
    # Existing instances are also saved under the name.
    assert kq.backends.serialize(old) == {"name": "cell"}


def test_name_of_another_class():
    kq.backends.register("cell", define(1))
    message = (
        "already belongs to .*define.<locals>.Cell. Choose another name.*"
        "Received: name='cell', backend_class=.*Up"
    )
    with pytest.raises(ValueError, match=message):
        kq.backends.register("cell", Up)
    with pytest.raises(ValueError, match="native.NativeBackend.*Received"):
        kq.backends.register("native", Up)


# Saving


class MyNative(native.NativeBackend):
    """Inherits the name of another class."""


class Named(Up):
    name = "never_registered"


@pytest.mark.parametrize("make", [Up, Fails, MyNative, Named])
def test_unregistered_backends_cannot_be_saved(make, tmp_path):
    backend = make()
    assert make.__name__ in repr(backend)
    message = (
        f"`{make.__name__}` cannot be saved.*`keras_qpsbgd.backends.register"
        f".*Received: backend={make.__name__}"
    )
    with pytest.raises(ValueError, match=message):
        kq.backends.serialize(backend)
    for arguments in ({"backend": backend}, {"on_failure": backend}):
        optimizer = {"backend": "native", **arguments}
        with pytest.raises(ValueError, match=message):
            model(**optimizer).save(tmp_path / "model.keras")


def test_registered_backends_are_saved(tmp_path):
    kq.backends.register("mine", MyNative)
    kq.backends.register("up", Up)
    original = model(MyNative("once"), on_failure=Up())
    original.save(tmp_path / "model.keras")
    optimizer = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert type(optimizer.backend) is MyNative
    assert optimizer.backend.preset == "once"
    assert kq.backends.serialize(native.NativeBackend())["name"] == "native"


def test_unregistered_backends_can_train():
    working = model(Up())
    working.fit(np.ones((4, 5)), np.ones((4, 2)), verbose=0)
    failing = model(Fails())
    with pytest.raises(Exception, match="backend `Fails` failed on layer"):
        failing.fit(np.ones((4, 5)), np.ones((4, 2)), verbose=0)


# Sharing compiled searches


class Constant(kq.backends.GraphBackend):
    """Does not define `get_config`."""

    def __init__(self, value=1.0):
        super().__init__()
        self.value = value

    def search(self, problem, seed):
        return tf.ones_like(problem.fields) * tf.reshape(self.value, ())


def problem(n=3, m=2):
    return ops.Problem(tf.ones((n, n)), tf.zeros((n, m)))


def first_state(backend, **shape):
    return float(backend.solve_in_graph(problem(**shape), SEED)[0, 0])


@pytest.mark.parametrize(
    "values",
    [
        (1.0, -1.0),
        (np.float32(1), np.float32(-1)),
        (np.array(1, "float32"), np.array([-1], "float32")),
        ([1.0], [-1.0]),
        (tf.constant(1.0), tf.constant(-1.0)),
    ],
    ids=["float", "numpy", "array", "list", "tensor"],
)
def test_backends_without_get_config(values):
    first, second = map(Constant, values)
    found = [first_state(backend) for backend in (first, second, first)]
    assert found == [1, -1, 1]
    first.value = values[1]
    assert first_state(first) == -1


def test_list_modified_in_place():
    backend = Constant([1.0])
    assert first_state(backend) == 1
    backend.value[0] = -1.0
    assert first_state(backend) == -1
    assert first_state(Constant([1.0])) == 1


def test_equal_backends_share_searches():
    class Counting(Constant):
        traced = 0

        def search(self, problem, seed):
            type(self).traced += 1
            return super().search(problem, seed)

    for _ in range(2):
        first_state(Counting(1.0))
        kept = Counting(np.ones((), "float32"))
        for _ in range(2):  # an array only equals itself
            first_state(kept)
    assert Counting.traced == 3


def test_number_of_compiled_searches_is_bounded(monkeypatch):
    class Bounded(Constant):
        pass

    monkeypatch.setattr(graph_backend, "COMPILED", 3)
    backend = Bounded()
    dropped = []
    for m in (1, 2, 3, 1, 4, 5):
        first_state(backend, m=m)
        if m == 2:
            dropped.append(weakref.ref(list(Bounded._compiled.values())[-1]))
        assert len(Bounded._compiled) <= 3
    # The key ends with the couplings, the fields, no start and no mask.
    columns = {key[-3][0][1] for key in Bounded._compiled}
    assert columns == {1, 4, 5}  # the most recently used ones
    gc.collect()
    assert dropped[0]() is None


def test_graph_keeps_dropped_searches(monkeypatch):
    class Dropped(Constant):
        pass

    monkeypatch.setattr(graph_backend, "COMPILED", 1)
    backend = Dropped(-1.0)
    step = tf.function(lambda: backend.solve_in_graph(problem(), SEED))
    assert float(step()[0, 0]) == -1
    first_state(backend, m=7)
    gc.collect()
    assert float(step()[0, 0]) == -1


def test_classes_are_garbage_collected():
    class Gone(Constant):
        pass

    first_state(Gone())
    first_state(Gone(np.ones((), "float32")))
    assert len(Gone._compiled) == 2
    reference = weakref.ref(Gone)
    del Gone
    gc.collect()
    assert reference() is None


def test_load_model_with_unregistered_backend(tmp_path):
    """The error asks to import the module that registers the backend."""
    kq.backends.register("elsewhere", Up)
    model = tools.small_model()
    tools.fit(model, tools.optimizer(backend="elsewhere"), *tools.data())
    path = str(tmp_path / "model.keras")
    model.save(path)
    del registry._registered["elsewhere"]
    with pytest.raises(Exception, match="Import the module.*elsewhere"):
        keras.models.load_model(path)
    loaded = keras.models.load_model(path, compile=False)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    kq.backends.register("elsewhere", Up)
    keras.models.load_model(path)


@pytest.mark.parametrize("name", [3, "", None])
def test_names_must_be_non_empty_strings(name):
    with pytest.raises(ValueError, match="`name`.*Received"):
        kq.backends.register(name, Up)


class Searches(kq.backends.GraphBackend):
    compiled = False

    def __init__(self, found):
        super().__init__()
        self.found = found

    def search(self, problem, seed):
        return self.found(problem.fields)


@pytest.mark.parametrize(
    "found, received",
    [
        (lambda fields: None, "NoneType"),
        (lambda fields: tf.ones_like(fields)[:-1], r"float32 of shape \(4, 3"),
        (lambda fields: tf.ones_like(fields, tf.int8), "int8 of shape"),
    ],
    ids=["none", "shape", "dtype"],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_searches_must_return_states(found, received, compiled):
    backend = Searches(found)
    backend.compiled = compiled
    with pytest.raises(
        ValueError, match=f"`search` of .*`Searches`.*Received: {received}"
    ):
        tools.fit(
            tools.small_model(), tools.optimizer(backend=backend), *tools.data()
        )
