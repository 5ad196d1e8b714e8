"""`python -m research compare FILE`: compares methods on your own data.

The file is a Python file that defines

    build_model         a function without arguments that returns a new model
    train               a tuple of inputs and classes
    validation, test    the same

`train`, `validation` and `test` are tuples `(x, y)` of arrays. For a network
with several inputs, `x` is a tuple of arrays. The model returns logits. The
file can also define `epochs` (20), `batch_size` (64), `loss` (for targets that
are not classes), and `grids`, a dictionary that maps methods to lists of
configurations such as `{"rate": 0.1}`.
"""

import hashlib
import json
import pathlib
import runpy

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import disk
from research import arguments as shared
from research.engine import figures
from research.engine import network
from research.engine import plan
from research.engine import records
from research.engine import tables
from research.engine.methods import METHODS
from research.engine.plan import FIRST_TUNING_SEED
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import TRAIN_LOSS
from research.engine.statistics import VALIDATION_ACCURACY
from research.engine.statistics import VALIDATION_LOSS
from research.engine.task import Split
from research.engine.task import Task
from research.engine.task import shuffled_batches

DEFAULT_METHODS = ("native", "ridge", "signum", "adam", "frozen", "real")
PARTS = ("train", "validation", "test")
REQUIRED = ("build_model", *PARTS)
OPTIONAL = {"epochs": 20, "batch_size": 64, "loss": None, "grids": {}}
NAMES = (*REQUIRED, *OPTIONAL)
TUNING_SEEDS = 3
EVALUATION_ROWS = 1_000
TRAIN_LOSS_ROWS = 10_000
SETTINGS = "settings.json"


def add(commands):
    """Adds the command."""
    parser = commands.add_parser(
        "compare",
        help="compare methods on your own network and data",
        description=(
            "Tunes every method on the same number of configurations, trains "
            "the best one on fresh seeds, and tests the differences. Writes "
            f"the runs, table.md and curves.png. {shared.RESUMED}"
        ),
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="Python file that defines build_model, train, validation and "
        "test, such as examples/compare.py",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=DEFAULT_METHODS,
        choices=METHODS,
        metavar="METHOD",
        help=f"of {', '.join(METHODS)} (default: {' '.join(DEFAULT_METHODS)})",
    )
    shared.add_seeds(parser, 10, "number of fresh seeds")
    shared.add_processes(parser)
    shared.add_output(parser, "compared")
    parser.set_defaults(run=shared.reported(_run))


def _run(arguments):
    table = compare(
        read(arguments.file),
        arguments.methods,
        arguments.seeds,
        arguments.output,
        arguments.processes,
    )
    print(f"\n{table}\n\nThe results are in {arguments.output}")
    return 0


def read(path):
    """Returns what a file defines, as a dictionary.

    Raises:
        ValueError: If a name is missing.
    """
    found = runpy.run_path(str(path))
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise ValueError(
            f"The file must define {', '.join(REQUIRED)}. "
            f"Received: {path} without {', '.join(missing)}"
        )
    return {**OPTIONAL, **{k: v for k, v in found.items() if k in NAMES}}


def compare(setup, methods, seeds, out, processes=1, verbose=1):
    """Makes the missing runs, and writes the table and the figure.

    Args:
        setup: Dictionary, see `read`.
        methods: Keys of `METHODS`. The others are compared with the first,
            or with `"native"`.
        seeds: Integer. Number of fresh seeds.
        out: Path of the folder.
        processes: See `engine.perform`.
        verbose: 1 shows a progress bar, 0 shows nothing.

    Returns:
        The table as text.

    Raises:
        ValueError: If the data or the network is invalid, or if the folder has
            runs of other settings.
    """
    loss, epochs = setup["loss"], setup["epochs"]
    splits = {name: _split(name, setup[name], loss) for name in PARTS}
    methods = _with_chosen(methods)
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + TUNING_SEEDS)
    with network.random_seed(0):
        source = network.Source(splits, setup["build_model"], ())
        model, outputs = source.model_and_outputs()
    classes = None
    if loss is None:
        classes = 1 + max(int(split.y.max()) for split in splits.values())
    network.check(model, outputs, classes)
    rows = len(splits["train"].rows)
    batch = min(setup["batch_size"], rows)
    grids = network.default_grids_of(model, epochs * (rows // batch))
    grids |= setup["grids"]
    plan.check_backends([METHODS[key].backend for key in methods])
    task = _task(setup, splits, [*tuning, *range(seeds)], batch)
    folder = pathlib.Path(out)
    with records.locked([folder]):
        _check_settings(folder, setup, splits, model)
        items = _items(task, methods, grids, tuning, range(seeds), folder)
        for item in items:
            item.check()
        plan.make_missing(items, processes, verbose)
        found = [run for item in items for run in item.records()]
        text = _write(folder, found, methods, loss)
    plan.warn_about_edges(items)
    return text


def _with_chosen(methods):
    """Adds the methods whose configurations others use."""
    used = [METHODS[key].like for key in methods if METHODS[key].like]
    return list(dict.fromkeys([*used, *methods]))


def _split(name, value, loss):
    x, y = value
    parts = x if isinstance(x, tuple) else (x,)
    inputs = tuple(_numbers(name, part) for part in parts)
    y = _numbers(name, y)
    if loss is None and (y.dtype != "int32" or y.ndim != 1 or y.min() < 0):
        raise ValueError(
            f"The classes of `{name}` must be integers from 0. Define a "
            f"`loss` for other targets. Received: {y.dtype}, shape {y.shape}"
        )
    if any(len(part) != len(y) for part in inputs):
        raise ValueError(
            f"`{name}` must be `(x, y)` of the same length. Received: lengths "
            f"{[len(part) for part in inputs]} and {len(y)}"
        )
    return Split(inputs, np.arange(len(y)), y)


def _numbers(name, values):
    """Returns a float32 array, or an int32 array for integers."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        raise ValueError(
            f"`{name}` must have finite numbers. Received: {array.dtype}"
        )
    return array.astype("float32" if array.dtype.kind == "f" else "int32")


def _check_settings(folder, setup, splits, model):
    """Raises a `ValueError` if the folder has runs of other settings."""
    data = hashlib.sha256()
    for split in splits.values():
        for array in (*split.inputs, split.y):
            data.update(f"{array.dtype}{array.shape}".encode())
            data.update(np.ascontiguousarray(array).tobytes())
    settings = {
        "data": data.hexdigest(),
        "weights": [list(weight.shape) for weight in model.weights],
        "loss": None if setup["loss"] is None else str(setup["loss"]),
        "epochs": setup["epochs"],
        "batch_size": setup["batch_size"],
    }
    path = folder / SETTINGS
    before = records.read_json(path) if path.exists() else settings
    differ = [key for key in settings if before.get(key) != settings[key]]
    if differ:
        raise ValueError(
            f"The folder {folder} has runs of other settings. Choose another "
            f"one with `--output`. Received: other {', '.join(differ)}"
        )
    disk.write(path, json.dumps(settings, indent=1) + "\n")


def _task(setup, splits, seeds, batch):
    loss, build_model, epochs = (
        setup[name] for name in ("loss", "build_model", "epochs")
    )
    function = None if loss is None else keras.losses.get(loss)
    if isinstance(function, keras.losses.Loss):
        function = function.call  # the mean is computed below

    def mean_loss(outputs, y):
        if len(y.shape) == 1 and outputs.shape[1:] == (1,):
            y = y[:, None]
        return tf.reduce_mean(tf.cast(function(y, outputs), tf.float32))

    return Task(
        name="compared",
        load=lambda _: network.Source(splits, build_model, seeds),
        splits=lambda source, seed, stage: dict(source.splits),
        batches=lambda seed, rows, stage: shuffled_batches(
            seed, rows, batch, epochs
        ),
        build=lambda source, weights: source.model(weights),
        first_weights=lambda source, seed: source.first_weights(seed),
        loss=None if loss is None else mean_loss,
        chosen_by=VALIDATION_ACCURACY if loss is None else VALIDATION_LOSS,
        evaluation_rows=EVALUATION_ROWS,
        probe=TRAIN_LOSS_ROWS,
    )


def _items(task, methods, grids, tuning, fresh, folder):
    items = {}
    runs = records.Runs(folder)
    for key in methods:
        like = items.get(METHODS[key].like)
        items[key] = plan.Item(
            task=task,
            method=METHODS[key],
            runs=runs,
            grid=like.grid if like else grids[key],
            tuning_seeds=tuning,
            fresh_seeds=fresh,
            like=like,
        )
    return list(items.values())


def _write(folder, runs, methods, loss):
    """Writes the table and the figure. Returns the table as text."""
    first = (TEST_ACCURACY, TEST_LOSS) if loss is None else (TEST_LOSS,)
    report = tables.TaskReport(
        name="compared",
        title="Comparison",
        measures=(*first, TRAIN_LOSS),
        curves=(first[0], TRAIN_LOSS),
    )
    reference = "native" if "native" in methods else methods[0]
    label = METHODS[reference].label
    table = tables.table_of(tables.rows_of(runs, report, label), report)
    disk.write(folder / "table.md", tables.markdown_table(*table) + "\n")
    figure = figures.figure_of(runs, report, label)
    figures.save(figure, folder / "curves.png")
    return tables.text_table(*table)
