"""`kq.compare`."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import disk
from research.engine import arguments
from research.engine import network
from research.engine import plan
from research.engine import records
from research.engine.methods import METHODS
from research.engine.plan import FIRST_TUNING_SEED
from research.engine.result import Comparison
from research.engine.statistics import VALIDATION_ACCURACY
from research.engine.statistics import VALIDATION_LOSS
from research.engine.task import Task
from research.engine.task import shuffled_batches

DEFAULT_METHODS = ("native", "ridge", "signum", "adam", "frozen", "real")
EVALUATION_ROWS = 1_000
TRAIN_LOSS_ROWS = 10_000
SETTINGS = "settings.json"
# The outputs of a network agree to this accuracy on different machines.
TOLERANCE = 1e-3


def compare(
    build_model: Callable[[], keras.Model],
    train: tuple,
    validation: tuple,
    test: tuple,
    methods: Sequence[str] = DEFAULT_METHODS,
    grids: dict[str, list[dict[str, Any]]] | None = None,
    seeds: int = 10,
    out: str | os.PathLike | None = None,
    *,
    loss: Any = None,
    epochs: int = 20,
    batch_size: int = 64,
    tuning_seeds: int = 3,
    processes: int | None = 1,
    reference: str | None = None,
    name: str = "comparison",
    verbose: int = 1,
) -> Comparison:
    """Compares methods for training a binary network on your own data.

    Every method gets the same number of configurations (learning rates). Each
    configuration is trained with `tuning_seeds` seeds, and the one with the
    best mean on `validation` is chosen: the highest accuracy, or the lowest
    loss if you pass a `loss`. It is then trained again with `seeds` new seeds
    and evaluated on `test`, which is not used before that. With a given seed,
    all methods start from the same initial weights and see the same batches.
    Differences between methods are therefore paired, and the table shows the
    p-value of a paired t-test.

    A method trains only the kernels of binary layers. Adam trains all other
    variables (real-valued layers, biases, batch normalization) in every method.
    Learning rates decay to zero along a cosine. Results are measured after the
    last epoch.

    Random layers such as `Dropout` also depend only on the seed. The function
    sets TensorFlow's global seed, but it restores the states of Python's and
    NumPy's random generators.

    Args:
        build_model: Function without arguments that returns a new Keras model
            with at least one layer of `keras_qpsbgd.layers`. The model can be
            functional, `Sequential` or subclassed, and can contain any other
            layers. It does not need to be compiled, and settings of `compile`
            are ignored. The function is called for every seed, so initializers
            must not have a fixed `seed`. Unless you pass a `loss`, the outputs
            must be logits: a softmax or sigmoid activation in the last layer
            raises an error.
        train: Tuple `(x, y)` of arrays. For a model with several inputs, `x` is
            a tuple of arrays. For the nodes of a graph, pass `(x, y, rows)`:
            `x` is the tuple `(features, adjacency)` of the whole graph in the
            form that the model expects (SciPy or `tf.SparseTensor`; see
            `BinaryGraphConv.preprocess`), `y` contains the classes of all
            nodes, and `rows` is a boolean mask or the indices of the nodes.
        validation: Tuple of the same form. It is used to choose the
            configurations.
        test: Tuple of the same form. It is used only for the results.
        methods: List of strings. QP-SBGD with the backend `"native"`,
            `"ridge"`, `"gurobi"` or `"dwave"` (a mock QPU); `"paper"`, which is
            `"native"` with `rule="paper"`; BinaryConnect (straight-through
            gradients) with `"sgd"`, `"momentum"` (SGD with a momentum of 0.9),
            `"signsgd"`, `"signum"` (signSGD with a momentum of 0.9, which is
            QP-SBGD without couplings) or `"adam"`; `"proxquant"`; `"bop"`;
            `"frozen"` (the kernels stay random); `"real"` (the same network
            with real-valued kernels). `"gurobi"` and `"dwave"` can take hours.
            They are not tuned. Instead, they use the configuration of
            `"native"`. Defaults to
            `("native", "ridge", "signum", "adam", "frozen", "real")`.
        grids: Dictionary (optional). Maps methods to lists of configurations. A
            configuration is a dict with a `"rate"` for the kernels and
            optionally a `"real_rate"` for all other variables (0.01 if it is
            missing). Further entries are arguments of the optimizer, such as
            the `"threshold"` of Bop. All methods must have the same number of
            configurations. Defaults to `None`, which creates four for each
            method, with rates that depend on the widths of the binary layers.
            If the best configuration is at the edge of its grid, a warning
            says so.
        seeds: Integer. Number of runs with the chosen configuration. Defaults
            to `10`.
        out: Path of a folder (optional) in which all runs are saved. If the
            call is interrupted, repeat it to resume. Call again with the same
            `out` to add seeds, methods or configurations: finished runs are
            not repeated. The table and the figure are written to
            `table.md` and `<name>.png`. Defaults to `None`, which saves
            nothing.
        loss: Keras loss, its name, or a function of `(y_true, y_pred)`
            (optional). Its mean over the rows is minimized, and configurations
            and methods are compared by it. Defaults to `None`, which requires
            integer classes: the loss is the cross-entropy from logits (binary
            if the model has a single output), and configurations and methods
            are compared by accuracy.
        epochs: Integer. Number of epochs of each run. Defaults to `20`.
        batch_size: Integer. An incomplete last batch is dropped; the rows are
            shuffled in every epoch. Defaults to `64`.
        tuning_seeds: Integer. Number of runs of each configuration when the
            best one is chosen. Defaults to `3`.
        processes: Integer (optional). Number of processes that train in
            parallel, each with one thread and without a GPU. `None` uses one
            process per core. Defaults to `1`, which trains in this process.
        reference: String (optional). The method that all others are compared
            with. It must be one of `methods`. Defaults to `"native"`, or to the
            first of `methods` if `"native"` is not among them.
        name: String. Title of the table and the figure, and part of file names.
            Defaults to `"comparison"`.
        verbose: Integer. `1` shows a progress bar, `0` shows nothing. Defaults
            to `1`.

    Returns:
        A `Comparison`. Print it to see the table, or use its attributes
        `results`, `p_values`, `chosen` and `runs` and its method `plot`.

    Raises:
        ValueError: If an argument is invalid, or if `out` contains runs with
            different settings.
        ImportError: If a required package is missing.
        BackendUnavailable: If a solver cannot be used.
        RuntimeError: If the training of a method fails.

    Example:
        ```python
        def build_model():
            return keras.Sequential(
                [
                    keras.layers.InputLayer((64,)),
                    kq.layers.BinaryDense(32, activation="hard_tanh"),
                    kq.layers.BinaryDense(10),
                ]
            )


        comparison = kq.compare(
            build_model,
            train=(x_train, y_train),
            validation=(x_validation, y_validation),
            test=(x_test, y_test),
            methods=["native", "adam", "real"],
            out="digits",
        )
        print(comparison)
        ```
    """
    arguments.check_numbers(
        seeds=seeds,
        epochs=epochs,
        batch_size=batch_size,
        tuning_seeds=tuning_seeds,
        processes=1 if processes is None else processes,
    )
    if seeds > FIRST_TUNING_SEED:
        raise ValueError(
            f"`seeds` must be at most {FIRST_TUNING_SEED}. "
            f"Received: seeds={seeds}"
        )
    arguments.check_name(name)
    methods = arguments.methods_of(methods)
    reference = arguments.reference_of(reference, methods)
    arguments.check_packages(processes, out)
    if not callable(build_model) or isinstance(build_model, keras.Model):
        raise ValueError(
            "`build_model` must be a function that returns a Keras model. "
            f"Received: {type(build_model).__name__}"
        )
    data = arguments.read_data(train, validation, test, loss is not None)
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning_seeds)
    fresh = range(seeds)
    model, outputs = network.build_and_check(
        data, build_model, _num_classes(data) if loss is None else None
    )
    rows = len(data.splits["train"].rows)
    batch = min(batch_size, rows)
    default = network.default_grids_of(model, epochs * (rows // batch))
    grids = arguments.grids_of(grids, methods, default)
    plan.check_backends([METHODS[key].backend for key in methods])
    settings = {
        "data": data.fingerprint(),
        "weights": [list(weight.shape) for weight in model.weights],
        # They distinguish networks whose weights have the same shapes.
        "outputs": [float(f"{v:.6g}") for v in np.ravel(outputs)[:10]],
        "loss": arguments.loss_name(loss),
        "epochs": epochs,
        "batch_size": batch_size,
        "tuning_seeds": tuning_seeds,
        "name": name,
        # Runs of version 0.1 had another rule.
        "rule": "averaged",
    }
    task = _task(
        name, data, build_model, [*tuning, *fresh], loss, epochs, batch
    )
    with _folder(out) as folder:
        _check_settings(folder, settings)
        items = _items(task, methods, grids, tuning, fresh, folder)
        for item in items:
            item.check()
        disk.write(folder / SETTINGS, json.dumps(settings, indent=1) + "\n")
        plan.make_missing(items, processes, verbose)
        runs = [run for item in items for run in item.records()]
        comparison = Comparison(name, runs, reference, loss is None)
        if out is not None:
            text = f"# {name}\n\n{comparison.markdown()}\n"
            disk.write(folder / "table.md", text)
            comparison.plot(folder / f"{name}.png")
    plan.warn_about_edges(items)
    return comparison


def _num_classes(data):
    return 1 + max(int(np.max(split.y)) for split in data.splits.values())


def _check_settings(folder, settings):
    """Checks that the runs in a folder were made with the same settings.

    Raises:
        ValueError: If the settings differ.
    """
    path = folder / SETTINGS
    if not path.exists():
        return
    present = records.read_json(path)
    differ = [
        name
        for name in settings
        if not _are_equal(name, present.get(name), settings[name])
    ]
    if differ:
        shown = [
            f"{name}={settings[name]} instead of {present.get(name)}"
            if isinstance(settings[name], (int, str)) and name != "data"
            else f"different {name}"
            for name in differ
        ]
        raise ValueError(
            "`out` must be a new folder or one with runs of the same "
            f"comparison, but {folder} contains runs with different settings. "
            f"Received: {', '.join(shown)}"
        )


def _are_equal(name, before, now):
    if name != "outputs":
        return before == now
    if before is None or len(before) != len(now):
        return False
    return np.allclose(before, now, rtol=TOLERANCE, atol=TOLERANCE)


@contextlib.contextmanager
def _folder(out):
    """Opens the folder of the runs. Only one call at a time may use it."""
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)
        return
    folder = pathlib.Path(out).expanduser()
    with records.locked([folder]):
        yield folder


def _task(name, data, build_model, seeds, loss, epochs, batch):
    function = None if loss is None else keras.losses.get(loss)
    if isinstance(function, keras.losses.Loss):
        function = function.call  # the mean is computed below

    def mean_loss(outputs, y):
        if len(y.shape) == 1 and outputs.shape[1:] == (1,):
            y = y[:, None]
        return tf.reduce_mean(tf.cast(function(y, outputs), tf.float32))

    return Task(
        name=name,
        load=lambda _: network.Source(data, build_model, seeds),
        splits=lambda source, seed, stage: dict(source.splits),
        batches=lambda seed, rows, stage: shuffled_batches(
            seed, rows, batch, epochs
        ),
        build=lambda source, weights: source.model(weights),
        first_weights=lambda source, seed: source.first_weights(seed),
        loss=None if loss is None else mean_loss,
        chosen_by=VALIDATION_ACCURACY if loss is None else VALIDATION_LOSS,
        is_graph=data.is_graph,
        evaluation_rows=EVALUATION_ROWS,
        probe=TRAIN_LOSS_ROWS,
    )


def _items(task, methods, grids, tuning, fresh, folder):
    items = {}
    runs = records.Runs(folder)
    # A method that uses the configuration of another comes after it.
    for key in sorted(methods, key=lambda key: METHODS[key].like is not None):
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
