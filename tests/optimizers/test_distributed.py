"""Tests the example that trains on two workers in separate processes."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        importlib.util.find_spec("tf_keras") is None,
        reason="Keras 3 does not train on several workers, and tf_keras is "
        "not installed",
    ),
]

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "distributed.py"
REPLICAS = "equal kernels on two replicas and on one device"
ONE = "equal kernels on two workers and on one device"
BOTH = "equal kernels on both workers"


@pytest.mark.slow  # three processes; `test_replicas.py` uses one
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
    for line in (REPLICAS, ONE, BOTH):
        assert f"{line}: True" in done.stdout.splitlines()
    # Only the first worker calls the solver.
    (calls,) = re.findall(r"solver by worker: \[(.*)\]$", done.stdout, re.M)
    first, second = map(int, calls.split(", "))
    assert first > 0
    assert second == 0


KERNELS = [[0.02, -0.04], [0.02, -0.04]]
OTHERS = [[0.02, -0.04], [0.02, -0.04000000000000001]]


@pytest.mark.parametrize(
    "where, what, wrong",
    [
        (None, {}, []),
        ("mirrored", {"two": OTHERS}, [REPLICAS]),
        ("first", {"two": OTHERS}, [ONE, BOTH]),
        ("second", {"two": OTHERS}, [BOTH]),
        ("first", {"calls": 0}, []),
        ("second", {"calls": 1}, []),
    ],
)
def test_example_detects_differences(monkeypatch, capsys, where, what, wrong):
    spec = importlib.util.spec_from_file_location("distributed", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = {
        "mirrored": {"one": KERNELS, "two": KERNELS, "calls": 55},
        "first": {"two": KERNELS, "calls": 55},
        "second": {"two": KERNELS, "calls": 0},
    }
    if where:
        found[where].update(what)
    results = iter(found.values())
    # Replace the results of the processes.
    monkeypatch.setattr(
        example, "start", lambda *processes: [next(results) for _ in processes]
    )
    assert example.main() is (where is None)
    lines = capsys.readouterr().out.splitlines()
    for line in (REPLICAS, ONE, BOTH):
        assert f"{line}: {line not in wrong}" in lines
