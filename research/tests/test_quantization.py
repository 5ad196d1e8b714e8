"""The experiment on quantized networks: runs, records, targets, the page."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.quantization.numerics.output_error import Statistics
from research import pages
from research import studies
from research.quantization import page
from research.quantization import quantizing
from research.quantization import study
from research.quantization import tasks
from research.quantization.data import Arrays
from research.quantization.numbers import Numbers
from research.quantization.numbers import targets
from research.quantization.tasks import Binary
from research.quantization.tasks import Float
from research.quantization.tasks import mlp

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "results" / "quantize"


def arrays(rows=60, inputs=20):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, inputs)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    part = (x, y)
    return Arrays(part, part, part, x, batch=20, num_classes=2)


@pytest.fixture
def tiny(monkeypatch):
    """A task that takes little time, with two of five rates."""
    task = tasks.TASKS["mnist"]
    grids = {
        key: dataclasses.replace(grid, rates=grid.rates[:2])
        for key, grid in task.grids.items()
    }
    task = dataclasses.replace(
        task,
        grids=grids,
        load=lambda data_dir, quick: arrays(),
        build=lambda layers, data: mlp(layers, data, (6,)),
        bits=(1,),
        starts=(tasks.QUANTIZED, tasks.SCRATCH),
        keras_gptq=False,
    )
    monkeypatch.setitem(tasks.TASKS, "mnist", task)
    tasks.load.cache_clear()
    yield task
    tasks.load.cache_clear()


# Runs


def run(folder):
    study.run(["mnist"], 1, folder, quick=True, processes=1)
    store = study.open_store(folder)
    return {record["key"]: record for record in store.records}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The command sets the number of threads."""
    monkeypatch.setattr(study.os, "environ", {})


@pytest.mark.slow
def test_runs_of_a_task(tiny, tmp_path, monkeypatch):
    found = run(tmp_path)
    tuning = [r for r in found.values() if r["seed"] == study.TUNING_SEED]
    assert not any("test" in record for record in tuning)
    grid = tiny.grids[tasks.QUANTIZED, tasks.ADAM].rates
    assert sum(r["kind"] == "train" for r in tuning) == 4 * len(grid)

    record = found["mnist/0/quantize/1/qubo"]
    for layer in record["layers"]:
        errors = layer["errors"]
        assert set(errors) == set(quantizing.METHODS)
        assert errors["qubo"] <= errors["descent"] * (1 + 1e-6)
    assert record["cpu"] > 0
    scratch = [
        r
        for r in found.values()
        if r["kind"] == "train" and r["seed"] == 0 and r["start"] == "scratch"
    ]
    for optimizer in (tasks.ADAM, tasks.QPSBGD):
        curves = [r for r in scratch if r["optimizer"] == optimizer]
        assert max(len(r["test"]) for r in curves) == 3
    # A second command has nothing to do.
    monkeypatch.setattr(study.Work, "__call__", None)
    assert run(tmp_path) == found
    # The page is made from these records.
    text = page.write(tmp_path).read_text()
    assert "<!-- results:mnist/training -->" in text
    assert (tmp_path / page.ERRORS).exists()


def test_network_from_scratch_is_the_quantized_one():
    data = arrays()
    model = mlp(Float, data, (6,))
    quantized, _ = kq.quantize(model, data.calibration, bits=2, verbose=0)
    built = mlp(Binary(2), data, (6,))
    assert [type(x) for x in built.layers] == [
        type(x) for x in quantized.layers
    ]
    for one, two in zip(built.weights, quantized.weights):
        assert one.shape == two.shape and one.name == two.name


# Numerics


def statistics(inputs, outputs=4, rows=200):
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, inputs)) @ random.normal(
        size=(inputs, inputs)
    )
    found = Statistics(random.normal(size=(inputs, outputs)), bias=False)
    found.add(x, x)
    return found


def test_ablation_is_between_descent_and_qubo():
    found = statistics(30)
    result = quantizing.quantize_layer(
        found,
        bits=1,
        method="qubo",
        backend=kq.backends.get(quantizing.ONCE),
    )
    error, qubo = quantizing.without_qubo(found, 1)
    assert qubo.num_variables == 30 and qubo.num_columns == 4
    assert error <= result.errors["descent"]
    assert result.errors["qubo"] <= error * (1 + 1e-9)


def test_excess_over_the_proven_optimum():
    pytest.importorskip("gurobipy")
    _, qubo = quantizing.without_qubo(statistics(17, outputs=3), 1)
    proof = quantizing.prove(qubo, seed=0)
    assert (proof["columns"], proof["proven"]) == (3, 3)
    assert proof["excess"]["once"] == pytest.approx([0, 0, 0], abs=1e-6)


def test_excess_of_a_bad_answer(monkeypatch):
    """Against all states: the excess of the state that a QUBO starts from."""
    pytest.importorskip("gurobipy")
    _, qubo = quantizing.without_qubo(statistics(10, outputs=2), 1)
    qubo.start = np.ones((10, 2), np.int8)
    states = 2 * (np.arange(2**10) >> np.arange(10)[:, None] & 1) - 1
    energies = np.einsum("ib,ij,jb->b", states, qubo.couplings, states)
    energies = energies[:, None] + states.T @ qubo.fields + qubo.offset
    get = kq.backends.get

    def start_only(config):
        is_native = config["name"] == "native"
        return quantizing.KeepStart() if is_native else get(config)

    monkeypatch.setattr(quantizing.backends, "get", start_only)
    proof = quantizing.prove(qubo, seed=0)
    # A backend negates a state if its opposite is better.
    given = np.minimum(energies[-1], energies[0])
    np.testing.assert_allclose(
        proof["excess"]["once"], given / energies.min(axis=0) - 1, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("inputs", "expected"), [(16, False), (17, True), (64, True), (65, False)]
)
def test_provable_layers(inputs, expected):
    qubo = kq.Qubo(np.eye(inputs), np.ones((inputs, 1)))
    assert quantizing.is_provable(qubo) is expected
    assert not quantizing.is_provable(None)


# Methods of Keras


def test_keras_gptq_has_no_single_bit_and_needs_a_tokenizer():
    with pytest.raises(ValueError, match="2, 3, 4"):
        keras.quantizers.GPTQConfig(None, None, weight_bits=1)
    data = arrays()
    model = mlp(Float, data, (6,))
    config = keras.quantizers.GPTQConfig(
        None, None, quantization_layer_structure={"sequential_blocks": []}
    )
    with pytest.raises(ValueError, match="dataset and a tokenizer"):
        model.quantize("gptq", config=config)


def test_keras_int4_skips_convolutions():
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, name="conv")(inputs)
    x = keras.layers.Dense(2, name="dense")(keras.layers.Flatten()(x))
    model = keras.Model(inputs, x)
    found = quantizing.keras_int4(model)
    assert found.get_layer("conv").quantization_mode is None
    assert found.get_layer("dense").quantization_mode == "int4"
    np.testing.assert_array_equal(
        found.get_layer("conv").get_weights()[0],
        model.get_layer("conv").get_weights()[0],
    )


def test_keras_gptq_on_images():
    data = arrays()
    model = mlp(Float, data, (6,))
    x = data.calibration
    found = quantizing.keras_gptq(model, x, 4)
    exact = model(x).numpy()
    error = np.square(found(x).numpy() - exact).sum() / np.square(exact).sum()
    assert 0 < error < 0.05


# Targets and tables


def errors(qubo, descent, gptq, **others):
    return {
        "nearest": 1.0,
        "gptq": gptq,
        "descent": descent,
        quantizing.SCALES_ONLY: descent,
        "qubo": qubo,
        **others,
    }


def made_up():
    """Two seeds of MNIST with two layers each."""
    found = []

    def add(seed, **values):
        found.append({"task": "mnist", "seed": seed, **values})

    for seed in (0, 1):
        add(seed, kind="float", test=0.98, validation=0.98)
        for method, test, cpu in (("gptq", 0.90, 2.0), ("qubo", 0.95, 8.0)):
            layers = [
                {"name": "a", "errors": errors(0.2, 0.26, 0.8)},
                {"name": "b", "errors": errors(0.1, 0.1, 0.1)},
            ]
            layers = [
                {"type": "Dense", "inputs": 20, "outputs": 2, **layer}
                for layer in layers
            ]
            layers[0]["proof"] = {
                "columns": 3,
                "proven": 2,
                "excess": {"accurate": [0.0, 0.004], "once": [0.0, 0.006]},
            }
            add(
                seed,
                kind="quantize",
                bits=1,
                method=method,
                layers=layers,
                compression=20.0,
                cpu=cpu,
                validation=0.9,
                test=test + 0.01 * seed,
            )
    return found


def test_targets():
    bench = {"wide": {"cpu": 300.0, "peak": 3 * 2**30}}
    found = targets(Numbers(made_up(), bench))
    assert [goal[2:] for goal in found] == [
        ("50.0%", "no"),  # one of two layers is lower
        ("11.5% lower", "yes"),  # the mean of 23.1 % and 0 %
        ("2.00", "yes"),  # the geometric mean of 4 and 1
        ("50.0%", "no"),
        ("+5.00 pp", "yes"),
        ("-", "not measured"),  # no CIFAR-10
        ("4.00", "yes"),
        ("5.0 minutes", "yes"),
        ("3.00 GiB", "no"),
        ("-", "not measured"),
        ("-", "not measured"),
    ]


def test_rate_is_chosen_on_the_tuning_seed():
    found = []
    for seed, rate, curve in (
        (study.TUNING_SEED, 0.1, [0.5, 0.6, 0.9]),
        (study.TUNING_SEED, 0.2, [0.7, 0.6, 0.8]),
        (0, 0.3, [1.0, 1.0, 1.0]),
    ):
        found.append(
            {
                "kind": "train",
                "seed": seed,
                "task": "mnist",
                "bits": 1,
                "start": tasks.SCRATCH,
                "optimizer": tasks.ADAM,
                "rate": rate,
                "validation": curve,
            }
        )
    arguments = (found, "mnist", 1, tasks.SCRATCH, tasks.ADAM)
    assert study.chosen_rate(*arguments, 1) == 0.2
    assert study.chosen_rate(*arguments, 3) == 0.1
    # Equal after two epochs: the order of the records does not matter.
    for order in (1, -1):
        arguments = (found[::order], *arguments[1:])
        assert study.chosen_rate(*arguments, 2) == 0.1


def test_tables():
    numbers = Numbers(made_up())
    assert "| qubo | 95.50 +- 0.50 |" in page.accuracy_table(numbers, "mnist")
    assert "| qubo / gptq | 0.500 (50%) |" in page.ratio_table(numbers)
    line = page.proof_table(numbers).splitlines()[-1]
    assert line.endswith("| 6 | 4 | 100.0% | 0.40 % | 50.0% | 0.60 % |")


def test_folder_of_other_settings(tmp_path):
    (tmp_path / study.SETTINGS).write_text(json.dumps({"quick": True}))
    with pytest.raises(ValueError, match="other options"):
        study.run(["digits"], 1, tmp_path, quick=False)


def test_command_knows_all_tasks():
    assert studies.QUANTIZE == tuple(tasks.TASKS)
    lengths = {
        len(grid.rates)
        for task in tasks.TASKS.values()
        for grid in task.grids.values()
    }
    assert lengths == {5}  # as many rates for every optimizer


# The page


def test_page_has_the_tables_of_the_records():
    numbers = page.load(RESULTS)
    text = (RESULTS / "RESULTS.md").read_text()
    assert pages.fill(text, page.blocks_of(numbers)) == text
    assert numbers.tasks == list(tasks.TASKS)
    counts = {
        len(numbers.accuracy(task, bits, method))
        for task in numbers.tasks
        for bits in tasks.TASKS[task].bits
        for method in quantizing.METHODS
    }
    assert counts == {5}  # float networks, for every method
