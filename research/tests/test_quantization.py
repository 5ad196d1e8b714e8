"""The experiment on quantized networks: runs, AWQ, tables, the page."""

import dataclasses
import pathlib

import numpy as np
import pytest

from keras_qpsbgd.quantization.numerics.layer import quantize_layer
from keras_qpsbgd.quantization.numerics.output_error import Statistics
from research import pages
from research.quantization import groups
from research.quantization import methods
from research.quantization import page
from research.quantization import study
from research.quantization import summary
from research.quantization import tasks

pytestmark = pytest.mark.once

RESULTS = pathlib.Path(__file__).parents[2] / "results" / "quantize"


def arrays(rows=60, inputs=20):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, inputs)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    return tasks.Arrays((x, y), (x, y), batch=20, epochs=1)


@pytest.fixture
def tiny(monkeypatch):
    """A task that takes little time."""
    task = dataclasses.replace(
        tasks.TASKS["mnist"],
        load=lambda data_dir, quick: arrays(),
        build=lambda: tasks.mlp((6,), 20),
    )
    monkeypatch.setitem(tasks.TASKS, "mnist", task)
    monkeypatch.setattr(tasks, "BITS", (1, 4))
    monkeypatch.setattr(study.os, "environ", {})  # the command sets threads
    tasks.load.cache_clear()
    yield
    tasks.load.cache_clear()


def test_runs_and_page(tiny, tmp_path, monkeypatch):
    def run():
        study.run(["mnist"], 2, tmp_path, quick=True, processes=1)
        return study.open_store(tmp_path)

    store = run()
    # For two seeds: the float network, two times all methods, and Keras.
    # With one bit, there are no scales to search for two of them.
    assert len(store) == 2 * (2 * len(methods.METHODS))
    job = {"task": "mnist", "seed": 0, "bits": 1, "method": "qubo"}
    for layer in store[job]["layers"]:
        errors = layer["errors"]
        assert set(errors) == set(methods.OWN)
        assert errors["qubo"] <= errors["descent+scales"] * (1 + 1e-6)
        assert layer["held_out"] > 0 and layer["improved"] is not None
    # A second command has nothing to do.
    monkeypatch.setattr(study.Work, "__call__", None)
    assert len(run()) == len(store)
    written = page.write(tmp_path).read_text()
    assert "<!-- results:mnist/results -->" in written
    assert "`Keras int4`" in written
    assert (tmp_path / page.FIGURE).exists()


# Methods


def statistics(kind, inputs=30, outputs=4, rows=200):
    random = np.random.default_rng(1)
    sizes = np.exp(random.normal(size=inputs))  # inputs of different sizes
    x = random.normal(size=(rows, inputs)) * sizes
    found = kind(random.normal(size=(inputs, outputs)), bias=False)
    found.add(x, x)
    return found, x


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_baselines_are_not_worse_than_nearest(bits):
    plain, _ = statistics(Statistics)
    nearest = quantize_layer(plain, bits=bits, method="nearest", backend=None)
    nearest = nearest.errors["nearest"]
    found, _ = statistics(Statistics)
    searched = methods.nearest_layer(found, bits=bits).errors["nearest"]
    found, x = statistics(methods.WithMagnitudes)
    result = methods.awq_layer(found, bits=bits, searched=True)
    if bits == 1:  # the scales do not change the levels
        assert searched == pytest.approx(nearest)
    else:
        assert searched < 0.99 * nearest
    # With few bits, the best exponent is 0 here.
    factor = 0.97 if bits == 3 else 1 + 1e-9
    assert result.errors["nearest"] <= factor * searched
    # The stated error is that of the kernel.
    outputs = x @ found.kernel[0]
    error = np.square(x @ result.kernel[0] - outputs).sum()
    assert error / np.square(outputs).sum() == pytest.approx(
        result.errors["nearest"], rel=1e-6
    )
    # Divided by the scale of its column, the kernel has few values per input.
    levels = np.abs(result.levels[0])
    assert all(
        len(np.unique(row.round(9))) <= 2 ** (bits - 1) for row in levels
    )


@pytest.mark.parametrize("size", [None, 12])
def test_group_layer_has_the_best_scales(size):
    found, x = statistics(Statistics)
    result = groups.group_layer(found, size, bits=2)
    kernel, outputs = result.kernel[0], x @ found.kernel[0]
    error = np.square(x @ kernel - outputs).sum() / np.square(outputs).sum()
    assert error == pytest.approx(result.errors["descent+scales"], rel=1e-6)
    assert error <= result.errors["gptq+scales"] * 1.01
    parts = np.split(np.arange(30), range(12, 30, 12) if size else [])
    assert result.solver["scales"] == 4 * len(parts)
    for column in range(4):
        own = [np.abs(kernel[part, column]).round(9) for part in parts]
        assert all(len(np.unique(values)) <= 2 for values in own)
    # Other scales of one group have a larger damped error.
    problem = statistics(Statistics)[0].problem(0.01)
    grouped = groups.Grouped(problem, size, bits=2)
    lowest = grouped.errors(kernel)
    for part in parts:
        for factor in (0.99, 1.01):
            other = kernel.copy()
            other[part] *= factor
            assert (grouped.errors(other) > lowest).all()


# Tables


def record(method, seed, test, bits=1, task="mnist", **errors):
    layer = {
        "name": "a",
        "inputs": 20,
        "outputs": 4,
        "errors": {**errors, method: 0.1},
        "held_out": 0.2,
        "improved": 3,
    }
    return {
        "task": task,
        "seed": seed,
        "bits": bits,
        "method": method,
        "test": test,
        "weights": 100,
        "cpu": 1.0,
        "layers": [layer],
    }


def test_tables():
    others = {"nearest": 0.4, "gptq": 0.2, "gptq+scales": 0.2}
    others["descent+scales"] = 0.125
    found = []
    for seed, (ours, theirs) in enumerate([(0.91, 0.9), (0.95, 0.93)]):
        for task in ("mnist", "transformer"):
            found += [
                record("float", seed, 0.99, study.FLOAT_BITS, task),
                record("qubo", seed, ours, 1, task, **others),
                *(
                    record(method, seed, theirs, 1, task)
                    for method in methods.methods_of(1)[:-1]
                ),
            ]
    # A method, and a task of which only one method, are not complete.
    found.append(record(methods.NEAREST_SCALES, 0, 0.9))
    found.append(record("qubo", 0, 0.9, 1, "digits", **others))
    numbers = page.Numbers(found)
    assert numbers.bits == {"mnist": [1], "transformer": [1]}
    table = page.result_table(numbers, "mnist")
    assert "| `gptq` | 91.50 +- 1.50 (p = 0.205) |" in table
    assert methods.NEAREST_SCALES not in table
    assert "| 1 to 32 | 1 | 4 | 0.250 | 0.500 | 0.500 | 0.800 |" in (
        page.width_table(numbers)
    )
    assert "75% of 8" in page.solver_table(numbers)
    found = summary.verdicts(numbers, 1)["mnist", "gptq"]
    assert (found.text, found.word) == ("+1.50", summary.NEITHER)
    # Fewer bits per character are better.
    assert summary.verdicts(numbers, 1)["transformer", "gptq"].text == "-0.015"


@pytest.mark.parametrize("noise", [0.0002, 0.002])
def test_verdicts_are_corrected_for_their_number(noise):
    found = []
    for seed in range(4):
        for method in methods.methods_of(2):
            test = 0.8 if method == "qubo" else 0.79 + noise * seed
            test += 0.02 * (method == "gptq")
            found.append(record(method, seed, test, 2))
    numbers = page.Numbers(found)
    words = {
        other: verdict.word
        for (_, other), verdict in summary.verdicts(numbers, 2).items()
    }
    assert len(words) == len(methods.METHODS) - 1
    behind = words.pop("gptq")
    if noise > 0.001:  # p is 0.012 for most of them, times 5
        assert set(words.values()) == {summary.NEITHER}
    else:
        assert set(words.values()) == {summary.AHEAD}
    assert behind == summary.BEHIND
    line = summary._verdict_line(numbers, 2)
    assert "behind `gptq` on mnist (-1" in line


def test_page_has_the_tables_of_the_records():
    numbers = page.Numbers(study.open_store(RESULTS).records)
    written = (RESULTS / "README.md").read_text()
    assert pages.fill(written, page.blocks_of(numbers)) == written
    assert numbers.tasks == list(tasks.TASKS)
    counts = {
        len(numbers.results(task, bits, method))
        for task in numbers.tasks
        for bits in numbers.bits[task]
        for method in methods.OWN
    }
    assert min(counts) == 5  # float networks, for every method
