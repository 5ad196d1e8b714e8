"""Test how much of Spektral works with and without `enable_keras3`.

    python -m research.bench.spektral.support
    python -m research.bench.spektral.support --suite DIR [--convert]
        [--toarray]

The commands use the Keras version of the environment (`TF_USE_LEGACY_KERAS=1`
for legacy Keras). The first command runs 29 small training runs, with and
without the fixes. The second command runs the tests of Spektral, which are in
its repository but not in its package. DIR is a clone of that repository.
`tests/test_datasets.py` is skipped, because it downloads data.

Two problems in those tests are not caused by Spektral and can be fixed in a
temporary copy of the tests. With `--convert`, models that are called with a mix
of NumPy arrays and sparse tensors, which Keras 3 rejects, are called with
tensors. With `--toarray`, `.A`, which SciPy has removed, is replaced by
`.toarray()`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import traceback

ROOT = pathlib.Path(__file__).parents[3]
TENSORS = """
import numpy as np
import tensorflow as tf


def tensors(data):
    return [
        tf.convert_to_tensor(part) if isinstance(part, np.ndarray) else part
        for part in data
    ]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--suite",
        metavar="DIR",
        type=pathlib.Path,
        help="run the tests in DIR, a clone of the Spektral repository "
        "(default: run small training runs)",
    )
    parser.add_argument(
        "--convert",
        action="store_true",
        help="call the models in the tests with tensors",
    )
    parser.add_argument(
        "--toarray",
        action="store_true",
        help="replace `.A` by `.toarray()` in the tests",
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument(
        "--patched", action="store_true", help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments)
        return
    with contextlib.ExitStack() as stack:
        folder = "."
        if arguments.suite:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            copy_suite(arguments, pathlib.Path(folder))
        kind = "suite" if arguments.suite else "scenarios"
        bare = child(kind, folder)
        patched = child(kind, folder, "--patched")
    show(kind, bare, patched)


def child(kind, folder, *options):
    """Runs a separate process and returns its outcomes by name."""
    command = [sys.executable, "-m", __spec__.name, "--child", kind]
    # The working directory must be the parent of Spektral's folder `tests`.
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("results: ")]
    if not lines:
        sys.exit(f"The {kind} process failed with exit code {done.returncode}.")
    return json.loads(lines[-1].removeprefix("results: "))


def show(kind, bare, patched):
    versions = patched.pop("versions")
    bare.pop("versions")
    names = sorted(bare | patched) if kind == "suite" else list(patched)
    width = max(map(len, names))
    failing = [n for n in names if not bare.get(n) == patched.get(n) == "pass"]
    print(versions)
    print(f"{'':{width}}  bare  patched")
    for name in failing if kind == "suite" else names:
        # A file that cannot be imported has no outcomes of single tests.
        outcomes = [runs.get(name, "-") for runs in (bare, patched)]
        print(f"{name:{width}}  {outcomes[0]:4}  {outcomes[1]}")
    counts = [sum(x == "pass" for x in r.values()) for r in (bare, patched)]
    print(f"{f'passed of {len(names)}':{width}}  {counts[0]:<4}  {counts[1]}")


def run_child(arguments):
    import scipy
    import spektral
    import tensorflow as tf

    from keras_qpsbgd import _keras
    from keras_qpsbgd.spektral import enable_keras3

    if arguments.patched:
        enable_keras3()
    run = run_suite if arguments.child == "suite" else run_scenarios
    results = run()
    keras = "Keras 3" if _keras.KERAS_3 else "legacy Keras"
    results["versions"] = (
        f"{keras}, TensorFlow {tf.__version__}, SciPy {scipy.__version__}, "
        f"Spektral {spektral.__version__}"
    )
    print("\nresults: " + json.dumps(results))


# The tests of Spektral.


def copy_suite(arguments, folder):
    shutil.copytree(arguments.suite / "tests", folder / "tests")
    (folder / "tests" / "test_datasets.py").unlink(missing_ok=True)
    # Otherwise another folder `tests` on the path could be imported.
    (folder / "tests" / "__init__.py").touch()
    (folder / "tensors.py").write_text(TENSORS)
    for path in (folder / "tests").rglob("*.py"):
        text = path.read_text()
        if arguments.convert:
            text, count = re.subn(
                r"\bmodel\((input_data|\[x, a, e\])\)",
                r"model(tensors(\1))",
                text,
            )
            if count:
                text = "from tensors import tensors\n" + text
        if arguments.toarray:
            text = re.sub(r"(?<=[\w\]])\.A\b", ".toarray()", text)
        path.write_text(text)


def run_suite():
    import pytest

    class Outcomes:
        def __init__(self):
            self.found = {}

        def pytest_runtest_logreport(self, report):
            name = report.nodeid.removeprefix("tests/")
            if report.when == "call" or report.failed:
                outcome = "pass" if report.passed else "fail"
                self.found[name] = outcome

        def pytest_collectreport(self, report):
            if report.failed:
                name = report.nodeid.removeprefix("tests/")
                self.found[f"{name} (all: import fails)"] = "fail"

    outcomes = Outcomes()
    sys.path.insert(0, os.getcwd())
    pytest.main(
        [
            "tests",
            "-q",
            "-pno:cacheprovider",
            "-Wignore",
            "--tb=line",
            "--continue-on-collection-errors",
        ],
        plugins=[outcomes],
    )
    return outcomes.found


def run_scenarios():
    from tensorflow import keras

    # Imported afterwards, because the fixes can replace classes.
    from research.bench.spektral.scenarios import scenarios

    results = {}
    for name, scenario in scenarios().items():
        keras.utils.set_random_seed(0)
        try:
            scenario()
            results[name] = "pass"
        except Exception:  # any error is an outcome for the table
            if os.environ.get("SHOW_ERRORS"):
                traceback.print_exc()
            results[name] = "fail"
        keras.backend.clear_session()
    return results


if __name__ == "__main__":
    main()
