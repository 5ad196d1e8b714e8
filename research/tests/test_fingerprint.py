"""Tests which changes of the code change a fingerprint."""

import sys

import pytest
import tensorflow as tf

from research.engine import plan
from research.engine import records
from research.engine.methods import METHODS
from research.experiments import catalogue
from research.experiments import provenance
from research.experiments.options import Options
from research.fingerprint import ROOT
from research.fingerprint import closure
from research.fingerprint import fingerprint

pytestmark = pytest.mark.once

TASK = '''
"""A task."""

import numpy as np

from research import steps
from research.steps import first as begin

RATES = [rate for rate in (0.1, 0.2)]
GRIDS = grids(first=spread(1, 10))


def run(x):
    """Runs."""
    if x < 0:
        raise ValueError(f"`x` must be positive. Received: {x}")
    y = np.abs(x, title="A", size=2)
    return begin(x) + steps.second(x) + RATES[0] + GRIDS + y


def show(x):
    from research import pictures

    return pictures.draw(x)
'''
STEPS = """
from research import constants
from research.constants import FACTOR


def first(x: int) -> int:
    return _helper(x)


def _helper(x):
    return FACTOR * x


def second(x):
    from research.late import third

    return third(x)


def unused(x):
    return constants.OTHER
"""
FILES = {
    "task": TASK,
    "steps": STEPS,
    "constants": "FACTOR = 2\nOTHER = 3\nprint('loaded')\nregister(FACTOR)\n",
    "late": "def third(x):\n    return x\n",
    "pictures": "def draw(x):\n    return x\n",
}


def write(folder, **changes):
    for name, text in FILES.items():
        old, new = changes.get(name, ("", ""))
        assert old in text
        path = folder / "research" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(old, new, 1))
    return folder


def of_run(folder):
    return fingerprint(["research.task.run"], folder)


def test_closure_follows_names_through_imports(tmp_path):
    found = closure(["research.task.run"], write(tmp_path))
    assert {name for name in found if not name.endswith("*")} == {
        "research.task.run",
        "research.task.GRIDS",
        "research.task.RATES",
        "research.steps.first",
        "research.steps._helper",
        "research.steps.second",
        "research.constants.FACTOR",
        "research.late.third",
    }
    assert "register" in found["research.constants.*"]
    names = ["research.task.run", "research.task.show"]
    found = closure(names, tmp_path, without=["research.steps.first"])
    assert "research.pictures.draw" in found
    assert "research.steps.second" in found
    assert "research.steps._helper" not in found


@pytest.mark.parametrize(
    "changes",
    [
        {"task": ('"""Runs."""', '"""Performs\n\n    a run."""')},
        {"steps": ("return _helper", '"""Steps."""\n    return _helper')},
        {"task": ("must be positive", "must not be negative")},
        {"task": ("RATES = [", "# Chosen on validation data.\nRATES = [")},
        {"task": ("spread(1, 10)", "spread(1, 100)")},
        {"task": ('title="A"', 'title="B"')},
        {"task": ("def show(x):", "def show(x, y=2):")},
        {"steps": ("(x: int) -> int", "(x)")},
        {"steps": ("constants.OTHER", "constants.OTHER + 1")},
        {"constants": ("OTHER = 3", "OTHER = 4")},
        {"constants": ("'loaded'", "'imported'")},
        {
            "late": (
                "def third",
                "if __name__ == '__main__':\n    main()\ndef third",
            )
        },
        {"pictures": ("return x", "return 2 * x")},
    ],
)
def test_changes_that_do_not_count(changes, tmp_path):
    before = of_run(write(tmp_path))
    assert of_run(write(tmp_path, **changes)) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"task": ("x < 0", "x <= 0")},
        {"task": ("size=2", "size=3")},
        {"task": ("(0.1, 0.2)", "(0.1, 0.3)")},
        {"steps": ("FACTOR * x", "FACTOR + x")},
        {"steps": ("third(x)", "third(x + 1)")},
        {"constants": ("FACTOR = 2", "FACTOR = 3")},
        {"constants": ("register(FACTOR)", "register(OTHER)")},
        {"late": ("return x", "return -x")},
    ],
)
def test_changes_that_count(changes, tmp_path):
    before = of_run(write(tmp_path))
    assert of_run(write(tmp_path, **changes)) != before


def test_a_moved_module_does_not_count(tmp_path):
    before = of_run(write(tmp_path))
    moved = TASK.replace("import steps", "import moved as steps")
    moved = moved.replace("research.steps", "research.moved")
    (tmp_path / "research" / "task.py").write_text(moved)
    (tmp_path / "research" / "steps.py").rename(tmp_path / "research/moved.py")
    later = (tmp_path / "research" / "late.py").rename
    later(tmp_path / "research" / "later.py")
    text = STEPS.replace("research.late", "research.later")
    (tmp_path / "research" / "moved.py").write_text(text)
    assert of_run(tmp_path) == before


# Experiments


def test_methods_depend_on_their_own_code():
    def covered(key):
        names, without = provenance.definitions("cora", METHODS[key].label)
        return closure(names, without=without)

    native, bop, dwave = map(covered, ("native", "bop", "dwave"))
    assert "keras_qpsbgd.optimizers.averaged_rule.averages" in native
    assert "keras_qpsbgd.backends.graph.native.NativeBackend" in native
    assert "keras_qpsbgd.optimizers.baselines.Bop" not in native
    assert not [name for name in native if ".dwave." in name]
    assert "keras_qpsbgd.optimizers.baselines.Bop" in bop
    assert not [name for name in bop if ".backends.graph." in name]
    assert "keras_qpsbgd.backends.dwave.mock.MockQPU" in dwave
    for found in (native, bop, dwave):
        assert "research.engine.training.Trainer" in found
        assert "keras_qpsbgd.layers.binary_graph_conv.BinaryGraphConv" in found
        assert not [name for name in found if "Table" in name]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs co_qualname")
def test_fingerprint_covers_what_a_run_calls(tmp_path):
    key = "native"
    options = Options(quick=True, methods=(key,))
    runs = records.Runs(tmp_path)
    (item,) = catalogue.items_of("logistic", options, runs)
    names, without = provenance.definitions("logistic", item.method.label)
    (job,) = item._jobs("fresh", item.grid[:1], [0])
    called = set()

    def profile(frame, event, argument):
        del argument
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)):
            module = path[len(str(ROOT)) + 1 : -3].replace("/", ".")
            called.add((module, frame.f_code.co_qualname.partition(".")[0]))

    tf.config.run_functions_eagerly(True)
    sys.setprofile(profile)
    try:
        plan.Work([item])(job)
    finally:
        sys.setprofile(None)
        tf.config.run_functions_eagerly(False)
    found = closure(names, without=without)
    missing = {
        f"{module}.{name}"
        for module, name in called
        if f"{module}.{name}" not in found
        # The objects of host solvers are created, but not used.
        and not module.startswith(provenance.HOST)
        and module != __name__
    }
    assert len(called) > 30
    assert not missing
