"""Damaged and hostile files: the same model or a clear error, no code runs.

Random mutations of the bytes are found by the checksum. Mutations of the header
with a correct checksum are found by the other checks, or give another valid
model with the weights of the file.
"""

import contextlib
import functools
import json
import os
import random
import warnings

import exporting
import numpy as np
import pytest
from exporting import joined
from exporting import parts
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving


@pytest.fixture(scope="module")
def content():
    model = keras.Sequential(
        [
            keras.layers.InputLayer((6,)),
            kq.layers.BinaryDense(4, activation="relu", bits=2),
            kq.layers.BinaryDense(3, output_scale="channel"),
            keras.layers.Dense(5),
        ]
    )
    exporting.randomize(model)
    # A rounded kernel, with a scale for each of its outputs.
    kernel = np.sign(model.layers[-1].kernel) * np.arange(1, 6)
    model.layers[-1].kernel.assign(kernel)
    return saving.content_of(model)


def load(content, path, **arguments):
    path.write_bytes(content)
    return kq.export.load_packed(path, **arguments)


def test_mutated_bytes(content, tmp_path):
    rng = random.Random(0)
    for _ in range(200):
        mutated = bytearray(content)
        start = rng.randrange(len(content))
        stop = start + rng.choice((1, 2, 8, 64))
        junk = rng.randbytes(rng.choice((0, 1, 4, 100)))
        mutated[start : rng.choice((start, stop, len(content)))] = junk
        if mutated == content:
            continue
        with pytest.raises(
            ValueError, match="must be a file written by"
        ) as caught:
            load(bytes(mutated), tmp_path / "model.kq")
        assert str(caught.value).endswith("model.kq")


JUNK = (
    *(None, True, 0, -1, 1, 2, 7, 2**31, 2**62, 2**70, 1e300, "", "x"),
    *([], {}, [[]], [1] * 50, {"class_name": "Lambda"}, "binary", "float16"),
    {"module": "builtins", "class_name": "function", "config": "eval"},
    {"class_name": "__lambda__", "config": {"value": "4wEAAAA="}},
)


def mutate_header(header, rng):
    """Changes a random value of the header, deep inside."""
    header = json.loads(json.dumps(header))
    for _ in range(rng.choice((1, 1, 2))):
        places = []
        stack = [header]
        while stack:
            value = stack.pop()
            if isinstance(value, dict):
                places += [(value, key) for key in value]
                stack += value.values()
            elif isinstance(value, list):
                places += [(value, key) for key in range(len(value))]
                stack += value
        if not places:
            return header
        owner, key = rng.choice(places)
        kind = rng.randrange(4)
        if kind == 0:
            del owner[key]
        elif kind == 1:
            other, place = rng.choice(places)
            owner[key] = json.loads(json.dumps(other[place]))
        else:
            owner[key] = rng.choice(JUNK)
    return header


@pytest.mark.parametrize(
    "count", [30, pytest.param(300, marks=pytest.mark.exhaustive)]
)
def test_mutated_header_with_correct_checksum(content, count, tmp_path):
    header, data = parts(content)
    rng = random.Random(1)
    loaded = 0
    for _ in range(count):
        mutated = mutate_header(header, rng)
        path = tmp_path / "model.kq"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = load(joined(mutated, data), path)
            except ValueError as error:
                assert "must be a file written by" in str(error)
                continue
            loaded += 1
            # A valid file: the model has the weights of the file.
            again = container.decode(saving.content_of(model))[1]
        places = {(each.layer, each.index): data for each, data in again}
        for entry, stored in container.decode(path.read_bytes())[1]:
            assert places[entry.layer, entry.index] == stored
    assert 0 < loaded < count


@pytest.mark.once
def test_mutated_steps(tmp_path):
    """A predictor, or a clear error when the file is read or used."""
    model = keras.Sequential(
        [
            keras.layers.InputLayer((5, 5, 2)),
            kq.layers.BinaryConv2D(3, 2, activation="binary", bits=2),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            kq.layers.BinaryDense(3, activation="softmax"),
        ]
    )
    header, data = parts(saving.content_of(exporting.randomize(model)))
    steps = header["predictor"]
    path = tmp_path / "model.kq"
    rng = random.Random(2)
    computed = 0
    for _ in range(100):
        header["predictor"] = mutate_header(steps, rng)
        path.write_bytes(joined(header, data))
        try:
            predictor = kq.inference.Predictor(path)
        except ValueError as error:
            assert "its steps are wrong" in str(error)
            continue
        with contextlib.suppress(ValueError, IndexError):
            predictor(np.zeros((2, 5, 5, 2)))
            computed += 1
    assert 0 < computed < 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: b"", "another kind of file"),
        (lambda c: c[:40], "truncated"),
        (lambda c: c[:-1], "checksum"),
        (lambda c: joined(*parts(c), version=2), "version 2 .*Update"),
        (lambda c: joined(*parts(c), version=0), "version"),
        (lambda c: joined(b"{", parts(c)[1]), "not JSON"),
        (lambda c: joined(b"\xff", parts(c)[1]), "not JSON"),
        (lambda c: joined(b"[" * 100_000, b""), "not JSON"),
        (lambda c: joined([], parts(c)[1]), "no list of arrays"),
        (lambda c: joined(parts(c)[0], b""), "position of its array"),
        (lambda c: joined(parts(c)[0], parts(c)[1] + b"\0"), "size of its"),
    ],
)
def test_messages(content, change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(change(content), tmp_path / "model.kq")


def changed(content, change):
    header, data = parts(content)
    change(header)
    return joined(header, data)


def layer(header, number=1):
    return header["model"]["config"]["layers"][number]


ARRAY_CHANGES = {
    "shape": lambda h: h["arrays"][0].update(shape=[4, 6]),
    "bits": lambda h: h["arrays"][0].update(bits=1),
    "no bits": lambda h: h["arrays"][0].pop("bits"),
    "bits of bias": lambda h: h["arrays"][1].update(bits=1),
    "dtype": lambda h: h["arrays"][1].update(dtype="int32"),
    "object": lambda h: h["arrays"][1].update(dtype="object"),
    "huge": lambda h: h["arrays"][0].update(shape=[2**62, 2**62]),
    "negative": lambda h: h["arrays"][0].update(offset=-8),
    "overlap": lambda h: h["arrays"][1].update(offset=0),
    "no axes": lambda h: h["arrays"][-2].pop("axes"),
    "no bits, axes": lambda h: h["arrays"][-2].pop("bits"),
    "axes of binary kernel": lambda h: h["arrays"][0].update(axes=[]),
    "other axes": lambda h: h["arrays"][-2].update(axes=[0]),
    "all axes": lambda h: h["arrays"][-2].update(axes=[0, 1]),
    "no scales": lambda h: h["arrays"][-2].update(axes=[]),
    "missing axis": lambda h: h["arrays"][-2].update(axes=[2]),
    "negative axis": lambda h: h["arrays"][-2].update(axes=[-1]),
    "axis twice": lambda h: h["arrays"][-2].update(axes=[1, 1]),
    "axes without a list": lambda h: h["arrays"][-2].update(axes=1),
    "missing": lambda h: h["arrays"].pop(),
    "twice": lambda h: h["arrays"].append(h["arrays"][-1]),
    "layer": lambda h: h["arrays"][0].update(layer="other"),
    "other Keras": lambda h: h.update(keras="keras 4"),
    "other bits in layer": lambda h: layer(h)["config"].update(bits=1),
    "wider layer": lambda h: layer(h)["config"].update(units=5),
    # A kernel of two terabytes, which must not be allocated.
    "large layer": lambda h: layer(h)["config"].update(units=10**11),
}


def test_arrays_must_fit_the_model(content, tmp_path):
    for change in ARRAY_CHANGES.values():
        with pytest.raises(ValueError, match="must be a file written by"):
            load(changed(content, change), tmp_path / "model.kq")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scales_are_finite(content, value, tmp_path):
    header, data = parts(content)
    start = header["arrays"][-2]["offset"]
    scale = np.array([value], "<f4").tobytes()
    hostile = joined(header, data[:start] + scale + data[start + 4 :])
    path = tmp_path / "model.kq"
    with pytest.raises(ValueError, match="a scale of .* is not finite"):
        load(hostile, path)
    with pytest.raises(ValueError, match="a scale of .* is not finite"):
        kq.inference.Predictor(path)


@pytest.mark.parametrize("depth", [50, 200, 900])
@pytest.mark.parametrize("is_model", [False, True])
def test_deeply_nested_models(content, depth, is_model, tmp_path):
    header, data = parts(content)
    text = json.dumps(header["model"])
    before, after = "[", "]"
    if is_model:  # each model is a layer of the next one
        header["model"]["config"]["layers"][1:] = ["inner"]
        before, after = json.dumps(header["model"]).split('"inner"')
    header["model"] = "nested"
    nested = before * depth + text + after * depth
    header = json.dumps(header).replace('"nested"', nested).encode()
    with pytest.raises(ValueError, match="must be a file written by"):
        load(joined(header, data), tmp_path / "model.kq")


def described(module, name, config, registered=None):
    """Returns an object as Keras describes it in a configuration."""
    return {
        "module": module,
        "class_name": name,
        "config": config,
        "registered_name": registered,
    }


def hostile_objects(folder):
    """Objects that Keras would build, and that must not be built."""
    target = str(folder / "written")
    for name, config in (
        ("Lambda", {"name": "x", "function": {"class_name": "__lambda__"}}),
        ("TFSMLayer", {"name": "x", "filepath": target}),
        ("StringLookup", {"name": "x", "vocabulary": "/etc/passwd"}),
        ("TFOpLambda", {"name": "x", "function": "io.write_file"}),
    ):
        yield described("keras.layers", name, config)
    yield described("os", "system", {"command": f"touch {target}"})
    yield described("keras.layers", "Dense", {"units": 3}, "other>Evil")
    yield described(
        "keras_qpsbgd.optimizers.qpsbgd", "QPSBGD", {}, "keras_qpsbgd>QPSBGD"
    )
    for module, name in (
        ("builtins", "eval"),
        ("builtins", "exec"),
        ("os", "system"),
        ("keras.utils", "get_file"),
        ("keras.config", "enable_unsafe_deserialization"),
        ("keras_qpsbgd.disk", "write"),
    ):
        function = described(module, "function", name, name)
        yield described("keras.layers", "Activation", {"activation": function})


# As a layer, in place of the model, and as a part of a layer.
PLACES = (
    lambda found, h: h["model"]["config"]["layers"].append(found),
    lambda found, h: h.update(model=found),
    lambda found, h: layer(h)["config"].update(kernel_initializer=found),
)


def test_nothing_runs(content, tmp_path):
    (tmp_path / "files").mkdir()
    for found in hostile_objects(tmp_path):
        for put in PLACES:
            hostile = changed(content, functools.partial(put, found))
            with pytest.raises(ValueError, match="its model contains"):
                load(hostile, tmp_path / "files" / "model.kq")
    assert [each.name for each in tmp_path.iterdir()] == ["files"]


def test_loading_neither_writes_nor_starts_anything(content, tmp_path):
    """The same model loads while an audit hook watches."""
    import sys

    path = tmp_path / "model.kq"
    load(content, path)  # imports everything
    seen = []
    watching = True

    def hook(event, arguments):
        if not watching:
            return
        if event.startswith(("subprocess.", "os.system", "socket.", "pickle.")):
            seen.append(event)
        elif event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            seen.append(arguments)

    sys.addaudithook(hook)
    try:
        model = kq.export.load_packed(path)
    finally:
        watching = False
    assert not seen
    assert _keras.inner_layers(model)
