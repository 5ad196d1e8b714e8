"""The documentation builds, its links and commands exist, and its code runs."""

import argparse
import html
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import types

import pytest
from tensorflow import keras

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
DATA = pathlib.Path(
    os.environ.get("KERAS_QPSBGD_DATA") or ROOT.parent / "shared" / "data"
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "models" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
# The one that changes Keras for Spektral is last, as they share a process.
NOTEBOOKS = sorted(
    (DOCS / "tutorials").glob("*.ipynb"),
    key=lambda path: (path.stem == "graph_network", path),
)
RARELY_RUN = "qubos_and_samples", "record_a_run"  # before a release
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
# Ten or more epochs.
LONG = re.compile(r"\b(epochs *=) *\d{2,}\b", re.IGNORECASE)
# The kernel has imported TensorFlow, which takes seconds in a new process.
SHELL = re.compile(r"^!python -m keras_qpsbgd (.*?)(?: 2>/dev/null)?$", re.M)
IN_KERNEL = r"assert __import__('keras_qpsbgd.cli').cli.main('\1'.split()) == 0"
# Keras has no copy of MNIST, and downloads it. Fewer images take less time.
FEW_IMAGES = """
from tensorflow import keras
def load_data(load=keras.datasets.mnist.load_data):
    import numpy as np
    path = {path!r}
    if path:
        with np.load(path) as file:
            x, y, x_test, y_test = (
                file[k] for k in ("x_train", "y_train", "x_test", "y_test")
            )
    else:
        (x, y), (x_test, y_test) = load()
    return (x[:2000], y[:2000]), (x_test[:1000], y_test[:1000])
keras.datasets.mnist.load_data = load_data
"""
# Folders whose files pages may name in backticks.
FOLDERS = r"(?:keras_qpsbgd|research|examples|models|tests|results|docs|\.ci)"


def page_id(path):
    return path.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("path", PAGES, ids=page_id)


# Links and names of files


@each_page
def test_links_exist(path):
    """They work in the repository. The build checks those of the site."""
    text = FENCE.sub("", path.read_text())
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@each_page
def test_named_files_exist(path):
    for name in re.findall(rf"`({FOLDERS}/[\w./-]*)`", path.read_text()):
        assert (ROOT / name).exists(), name


# Commands


class Parsed(Exception):
    """Ends a command once its arguments are parsed."""


def commands_of(text):
    """Yields every `python -m ...` of a page, without comments."""
    for line in re.findall(r"python -m [^`\n|]+", text):
        for command in line.split("#")[0].split("&&"):
            if "python -m" in command:
                yield command[command.index("python -m") :].strip()


@each_page
def test_commands_exist(path, monkeypatch):
    """The parser of every command accepts its arguments."""
    from keras_qpsbgd import cli
    from research import __main__ as research

    def stop(self, args=None, namespace=None):
        parse(self, args, namespace)
        raise Parsed

    parse = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    # The files of the documentation do not exist here.
    monkeypatch.setattr(cli.console, "existing_path", str)
    mains = {"keras_qpsbgd": cli.main, "research": research.main}
    placeholders = {"NAME": "cora", "SUITE": "step", "NETWORK": "16-4"}
    for command in commands_of(path.read_text()):
        module, *arguments = shlex.split(command)[2:]
        arguments = [placeholders.get(a, a) for a in arguments]
        assert importlib.util.find_spec(module), command
        if module in mains and arguments and "|" not in command:
            try:
                mains[module](arguments)
            except Parsed:
                continue
            except SystemExit as error:  # `--help` ends with 0
                assert error.code == 0, command


@pytest.mark.slow
@pytest.mark.parametrize("name", ["annealer", "few-solves"])
def test_output_of_qpu_cost_is_current(name, capsys):
    from keras_qpsbgd import cli

    def without_time(text):
        return re.sub(r"took [\d.]+ s", "", text)

    start = "$ python -m keras_qpsbgd "
    text = (DOCS / "guides" / f"{name}.md").read_text()
    shown = [
        code
        for _, _, code in FENCE.findall(text)
        if code.startswith(f"{start}qpu-cost")
    ]
    assert shown
    for code in shown:
        command, expected = code.split("\n", 1)
        assert cli.main(shlex.split(command[len(start) :])) == 0
        output = capsys.readouterr().out
        assert without_time(output) == without_time(expected)


# Code


def python_blocks(path):
    return [
        code
        for _, language, code in FENCE.findall(path.read_text())
        if language == "python"
    ]


@pytest.mark.parametrize(
    "path", [p for p in PAGES if python_blocks(p)], ids=page_id
)
def test_python_blocks_are_valid(path):
    for code in python_blocks(path):
        compile(code, str(path), "exec")


@pytest.mark.slow
def test_first_network_runs():
    pytest.importorskip("sklearn")
    namespace = {}
    first, *_ = python_blocks(ROOT / "README.md")
    assert first in python_blocks(ROOT / "docs" / "index.md")
    exec(first, namespace)
    history = namespace["model"].history.history
    assert 0.93 < history["val_accuracy"][-1] < 0.97  # "about 0.95"


# Names that the code blocks of a guide use without defining them.
PRELUDE = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
import keras_qpsbgd as kq
keras.utils.set_random_seed(0)
x = np.random.normal(size=(64, 6)).astype("float32")
y = (x[:, :3].argmax(axis=1)).astype("int32")
x1, x2, y1, y2, x_train, y_train = x[:32], x[32:], y[:32], y[32:], x, y
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loss_function = loss
optimizer = kq.QPSBGD(0.01)
model = keras.Sequential(
    [keras.layers.InputLayer((6,)), kq.layers.BinaryDense(3)]
)
model.compile(optimizer, loss)
float_model = keras.Sequential(
    [keras.layers.InputLayer((6,)), keras.layers.Dense(3)]
)
"""
GUIDES = (
    "faq",
    "guides/annealer",
    "guides/custom-backends",
    "guides/custom-loops",
    "guides/failures",
    "guides/few-solves",
    "guides/gpu",
    "guides/gurobi",
    "guides/solvers",
    "guides/troubleshooting",
    "guides/tuning",
    "inside/analysis",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_blocks_of_a_guide_run(name, tmp_path, monkeypatch):
    pytest.importorskip("dwave.samplers")
    pytest.importorskip("gurobipy")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(PRELUDE, namespace)
    for code in python_blocks(DOCS / f"{name}.md"):
        # Tests must not use QPU time.
        code = code.replace('"dwave",', '"dwave", "mock": True,')
        exec(code, namespace)


def test_callback_of_the_tuning_guide_changes_both_learning_rates():
    blocks = python_blocks(DOCS / "guides" / "tuning.md")
    (code,) = (block for block in blocks if "ReduceLROnPlateau" in block)
    schedule = "LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1))"
    code = re.sub(r"ReduceLROnPlateau\(.*\)", schedule, code)
    namespace = {}
    exec(PRELUDE + code, namespace)
    optimizer = namespace["optimizer"]
    assert float(optimizer.learning_rate) == pytest.approx(0.005)
    rate = float(optimizer.real_optimizer.learning_rate)
    assert rate == pytest.approx(0.0005)


@pytest.mark.slow
def test_deploy_guide_runs(tmp_path, monkeypatch, capfd):
    """Its code and its commands, in order, with the files it creates."""
    from keras_qpsbgd import cli

    pytest.importorskip("sklearn")
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    if not importlib.util.find_spec("ai_edge_litert"):
        import tensorflow as tf

        older = types.SimpleNamespace(Interpreter=tf.lite.Interpreter)
        monkeypatch.setitem(sys.modules, "ai_edge_litert", older)
        monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", older)
    monkeypatch.chdir(tmp_path)
    namespace = {}
    start = "python -m keras_qpsbgd "
    for _, language, code in FENCE.findall(
        (DOCS / "guides" / "deploy.md").read_text()
    ):
        if language == "python":
            exec(code, namespace)
        for line in code.splitlines():
            if line.startswith(start):
                assert cli.main(shlex.split(line[len(start) :])) == 0, line
    # The accuracy in ONNX Runtime, LiteRT and `Predictor`.
    printed = re.findall(r"^(0\.\d{4,})$", capfd.readouterr().out, re.M)
    assert len(printed) == 3 and len(set(printed)) == 1


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="needs the files of Cora")
def test_blocks_of_the_graph_guide_run(monkeypatch):
    pytest.importorskip("spektral")
    monkeypatch.setattr("spektral.datasets.citation.DATASET_FOLDER", str(DATA))
    namespace = {}
    with kq.spektral.enable_keras3():  # restores Spektral afterwards
        for code in python_blocks(DOCS / "guides" / "graphs.md"):
            exec(code.replace("epochs=200", "epochs=5"), namespace)


@pytest.fixture(scope="module")
def kernel():
    """A kernel for all notebooks, because each one imports TensorFlow."""
    manager = pytest.importorskip("jupyter_client").KernelManager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DWAVE_CONFIG_FILE", os.devnull)
        patch.delenv("DWAVE_API_TOKEN", raising=False)
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        folder = os.path.dirname(sys.executable)
        patch.setenv("PATH", folder + os.pathsep + os.environ["PATH"])
        manager.start_kernel()
        yield manager
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=[pytest.mark.exhaustive] * (path.stem in RARELY_RUN)
        )
        for path in NOTEBOOKS
    ],
    ids=lambda p: p.stem,
)
def test_tutorials_run(path, tmp_path, kernel):
    """Runs with few epochs and images. No cell depends on their number."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    committed = [cell.get("outputs") for cell in notebook.cells]
    assert any(committed), "save it with its outputs"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = LONG.sub(r"\1 3", cell.source)
            cell.source = SHELL.sub(IN_KERNEL, cell.source)
    start = f"%reset -f\n%cd -q {tmp_path}"
    if "mnist.load_data" in "".join(cell.source for cell in notebook.cells):
        start = few_images() + start
    notebook.cells.insert(0, nbformat.v4.new_code_cell(start))
    nbclient.NotebookClient(notebook, km=kernel, timeout=300).execute()


def few_images():
    """Returns code that makes MNIST smaller, and needs no network."""
    path = DATA / "mnist.npz"
    if path.exists():
        return FEW_IMAGES.format(path=str(path))
    try:
        keras.datasets.mnist.load_data()  # from the cache, or a download
    except Exception as error:  # Keras raises an `Exception`
        pytest.skip(f"requires MNIST. {error}")
    return FEW_IMAGES.format(path=None)


# The site


def words_of(index, page):
    """Returns what the search finds on a page: names are split at dots."""
    texts = [d["text"] for d in index["docs"] if d["location"].startswith(page)]
    text = html.unescape(re.sub("<[^>]*>", " ", " ".join(texts)))
    return re.split(index["config"]["separator"], text)


@pytest.mark.slow
def test_site(tmp_path):
    """The site builds without warnings, and loads nothing from elsewhere."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25
    remote = r"<(?:img|script|source|iframe)[^>]* src=.?(?:https?:)?//"
    style = r"<link[^>]*stylesheet[^>]* href=.?(?:https?:)?//"
    for path in pages:
        found = re.search(f"{remote}|{style}", path.read_text())
        assert not found, f"{path}: {found}"
    index = json.loads((tmp_path / "search/search_index.json").read_text())
    assert "load_model" in words_of(index, "faq/")
    assert "load_model" in words_of(index, "tutorials/first_network/")
    for path in NOTEBOOKS:  # for download
        folder = tmp_path / "tutorials" / path.stem
        assert f'href="{path.name}"' in (folder / "index.html").read_text()
        assert (folder / path.name).read_bytes() == path.read_bytes()
