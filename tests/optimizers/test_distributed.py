"""Tests the example that trains on two workers in separate processes."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,  # three processes
    pytest.mark.once,
    pytest.mark.skipif(
        importlib.util.find_spec("tf_keras") is None,
        reason="Keras 3 does not train on several workers, and tf_keras is "
        "not installed",
    ),
]

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "distributed.py"
EQUAL = (
    "equal kernels on two replicas and on one device",
    "equal kernels on two workers and on one device",
    "equal kernels on both workers",
)


def test_example(tmp_path):
    pytest.importorskip("dwave.samplers")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,  # longer than the timeout of the example's processes
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in EQUAL:
        assert f"{line}: True" in done.stdout.splitlines()
    # Only the first worker calls the solver.
    (calls,) = re.findall(r"solver by worker: \[(.*)\]$", done.stdout, re.M)
    first, second = map(int, calls.split(", "))
    assert first > 0
    assert second == 0
