"""`kq.compare` in several processes, from a script without a file."""

import pathlib
import re
import subprocess
import sys

import pytest

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
except KeyError as error:
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
    assert f"{expected}KeyError: mine" in error
