"""The suite `inference`."""

import numpy as np
import pytest

from research.bench.inference import onnx_network
from research.bench.inference import suite
from research.bench.options import Options

pytestmark = pytest.mark.once


def test_suite(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "SIZES", (20, 30, 3))
    monkeypatch.setattr(suite, "BATCHES", (1, 2))
    monkeypatch.setattr(suite, "SECONDS", 1e-4)
    monkeypatch.setattr(suite, "QUICK_BLOCKS", 1)
    options = Options(quick=True, only=("binary", "keras", "numpy"))
    results = {1: suite.measure(options)}
    assert set(results[1]) == {"binary"}
    text = suite.table(results)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.count("binary  ") == 2
    verdicts = suite.verdicts(results)
    # Two batch sizes and two rivals, one of them not measured, and memory.
    assert [passed for passed, _ in verdicts].count(None) == 2
    assert len(verdicts) == 5
    suite.draw(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").is_file()


def test_names_of_the_suite():
    assert set(suite.names()) >= {
        name for pair in suite.TARGETS for name in pair
    }


@pytest.mark.parametrize("activation", ["binary", "hard_tanh"])
def test_network_in_onnx_runtime(activation):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    shapes = [(5, 4), (4, 3)]
    weights = [
        (
            rng.normal(size=shape).astype("float32"),
            rng.normal(size=shape[1]).astype("float32"),
        )
        for shape in shapes
    ]
    x = rng.normal(size=(6, 5)).astype("float32")
    hidden = x @ weights[0][0] + weights[0][1]
    if activation == "binary":
        hidden = np.where(hidden >= 0, 1, -1)
    else:
        hidden = np.clip(hidden, -1, 1)
    expected = hidden @ weights[1][0] + weights[1][1]
    found = onnx_network.runner(weights, activation)(x)
    np.testing.assert_allclose(found, expected, atol=1e-5)
