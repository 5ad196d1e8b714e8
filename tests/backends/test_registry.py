"""Names of backends: registering, saving, and what is shared by class."""

import gc
import importlib
import pathlib
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import ops
from keras_qpsbgd.backends import registry
from keras_qpsbgd.backends.graph import graph_backend
from keras_qpsbgd.backends.graph import native

pytestmark = pytest.mark.once

SEED = tf.constant([1, 2])


@pytest.fixture(autouse=True)
def same_registry(monkeypatch):
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


class Up(kq.backends.Backend):
    """All variables up."""

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


# Registering


def define(level):
    """The class as a notebook cell defines it, each time anew."""

    class Cell(Up):
        pass

    Cell.level = level
    return Cell


def test_a_class_may_be_registered_again():
    first, second = define(1), define(2)
    kq.backends.register("cell", first)
    old = kq.backends.get("cell")
    kq.backends.register("cell", second)
    assert type(kq.backends.get("cell")) is second
    assert second.name == "cell"
    # What was made before is saved under its name, too.
    assert kq.backends.serialize(old) == {"name": "cell"}


def test_a_module_may_be_reloaded(tmp_path, monkeypatch):
    pathlib.Path(tmp_path / "reloaded_backend.py").write_text(
        "import keras_qpsbgd as kq\n"
        "class Mine(kq.backends.Backend):\n"
        "    pass\n"
        "kq.backends.register('mine', Mine)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("reloaded_backend")
    first = module.Mine
    importlib.reload(module)
    assert module.Mine is not first
    assert type(kq.backends.get("mine")) is module.Mine


def test_a_name_that_is_taken():
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
    """Inherits a name that is another class's."""


class Named(Up):
    name = "never_registered"


@pytest.mark.parametrize("make", [Up, Fails, MyNative, Named])
def test_what_is_not_registered_is_not_saved(make, tmp_path):
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


def test_what_is_registered_is_saved(tmp_path):
    kq.backends.register("mine", MyNative)
    kq.backends.register("up", Up)
    made = model(MyNative("accurate"), on_failure=Up())
    made.save(tmp_path / "model.keras")
    optimizer = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert type(optimizer.backend) is MyNative
    assert optimizer.backend.preset == "accurate"
    assert kq.backends.serialize(native.NativeBackend())["name"] == "native"


def test_trains_without_a_name():
    made = model(Up())
    made.fit(np.ones((4, 5)), np.ones((4, 2)), verbose=0)
    failing = model(Fails())
    with pytest.raises(Exception, match="backend `Fails` failed on layer"):
        failing.fit(np.ones((4, 5)), np.ones((4, 2)), verbose=0)


# What is shared


class Constant(kq.backends.GraphBackend):
    """Forgets `get_config`."""

    def __init__(self, value=1.0):
        super().__init__()
        self.value = value

    def search(self, problem, seed):
        return tf.ones_like(problem.fields) * tf.reshape(self.value, ())


def problem(n=3, m=2):
    return ops.gram_problem(tf.ones((4, n)), tf.zeros((4, m)))


def found(backend, **shape):
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
def test_backends_that_forget_their_configuration(values):
    first, second = map(Constant, values)
    assert (found(first), found(second), found(first)) == (1, -1, 1)
    first.value = values[1]
    assert found(first) == -1


def test_a_list_that_changes():
    backend = Constant([1.0])
    assert found(backend) == 1
    backend.value[0] = -1.0
    assert found(backend) == -1
    assert found(Constant([1.0])) == 1


def test_equal_backends_share():
    class Counting(Constant):
        traced = 0

        def search(self, problem, seed):
            type(self).traced += 1
            return super().search(problem, seed)

    for _ in range(2):
        found(Counting(1.0))
        kept = Counting(np.ones((), "float32"))
        for _ in range(2):  # an object is equal to itself
            found(kept)
    assert Counting.traced == 3


def test_compiled_searches_are_bounded(monkeypatch):
    class Bounded(Constant):
        pass

    monkeypatch.setattr(graph_backend, "COMPILED", 3)
    backend = Bounded()
    dropped = []
    for m in (1, 2, 3, 1, 4, 5):
        found(backend, m=m)
        if m == 2:
            dropped.append(weakref.ref(list(Bounded._compiled.values())[-1]))
        assert len(Bounded._compiled) <= 3
    columns = {key[-1][1] for key in Bounded._compiled}
    assert columns == {1, 4, 5}  # those that were used last
    gc.collect()
    assert dropped[0]() is None


def test_a_graph_keeps_what_was_dropped(monkeypatch):
    class Dropped(Constant):
        pass

    monkeypatch.setattr(graph_backend, "COMPILED", 1)
    backend = Dropped(-1.0)
    step = tf.function(lambda: backend.solve_in_graph(problem(), SEED))
    assert float(step()[0, 0]) == -1
    found(backend, m=7)
    gc.collect()
    assert float(step()[0, 0]) == -1


def test_classes_are_collected():
    class Gone(Constant):
        pass

    found(Gone())
    found(Gone(np.ones((), "float32")))
    assert len(Gone._compiled) == 2
    reference = weakref.ref(Gone)
    del Gone
    gc.collect()
    assert reference() is None


def test_loading_a_model_whose_backend_is_not_registered(tmp_path):
    """The error says to import the module that registers it."""
    kq.backends.register("elsewhere", Up)
    model = tools.small_model()
    tools.fit(model, tools.optimizer(backend="elsewhere"), *tools.data())
    path = str(tmp_path / "model.keras")
    model.save(path)
    del registry._entries["elsewhere"]
    with pytest.raises(Exception, match="Import the module.*elsewhere"):
        keras.models.load_model(path)
    loaded = keras.models.load_model(path, compile=False)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    kq.backends.register("elsewhere", Up)
    keras.models.load_model(path)


@pytest.mark.parametrize("name", [3, "", None])
def test_names_are_strings(name):
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
def test_searches_that_return_something_else(found, received, compiled):
    backend = Searches(found)
    backend.compiled = compiled
    with pytest.raises(
        ValueError, match=f"`search` of .*`Searches`.*Received: {received}"
    ):
        tools.fit(
            tools.small_model(), tools.optimizer(backend=backend), *tools.data()
        )
