"""`kq.compare`."""

import contextlib
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
from keras_qpsbgd.compare.engine import run
from keras_qpsbgd.compare.engine.pool import open_pool
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.own_data import arguments
from keras_qpsbgd.compare.own_data import data as own_data
from keras_qpsbgd.compare.own_data import network
from keras_qpsbgd.compare.own_data import settings
from keras_qpsbgd.compare.own_data.default_grids import default_grids
from keras_qpsbgd.compare.own_data.edges import warn_of_edges
from keras_qpsbgd.compare.own_data.result import Comparison
from keras_qpsbgd.compare.plan import FIRST_TUNING_SEED
from keras_qpsbgd.compare.plan import Item
from keras_qpsbgd.compare.report.protocol import VALIDATION_ACCURACY
from keras_qpsbgd.compare.report.protocol import VALIDATION_LOSS
from keras_qpsbgd.compare.task import Task
from keras_qpsbgd.compare.task import marked_kernels
from keras_qpsbgd.compare.task import shuffled_batches

DEFAULT_METHODS = ("native", "ridge", "signsgd", "adam", "frozen", "real")
EVALUATION_ROWS = 1_000
TRAIN_LOSS_ROWS = 10_000


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
    reference: str = "native",
    name: str = "comparison",
    verbose: int = 1,
) -> Comparison:
    """Trains the same binary network by several methods, and compares them.

    Every method gets the same number of configurations (learning rates). Each
    is trained with `tuning_seeds` seeds, and the one with the best mean on
    `validation` is chosen: the highest accuracy, or the lowest loss if `loss`
    is given. The chosen one is trained anew with `seeds` other seeds and
    evaluated on `test`, which is not looked at before. For a seed all methods
    start from the same first weights and see the same batches, so differences
    between methods are paired; the table has the p-value of a paired t-test.

    Kernels of binary layers are trained by the method, everything else (real
    layers, biases, batch normalization) by Adam beside all methods. Learning
    rates decay to zero along a cosine. Results are those after the last epoch.

    Args:
        build_model: function without arguments that returns a Keras model with
            layers of `keras_qpsbgd.layers`: functional, `Sequential` or
            subclassed, with any other layers in it. It need not be compiled;
            settings of `compile` are ignored. It is called once for each seed,
            so initializers must not have a fixed `seed`.
        train: tuple `(x, y)` of arrays, or a tuple of several arrays as `x` for
            a model with several inputs. For the nodes of a graph `(x, y,
            rows)`: `x` is (features, adjacency) of the whole graph, as the
            model takes them (SciPy or `tf.SparseTensor`; see
            `BinaryGraphConv.preprocess`), `y` has the classes of all nodes, and
            `rows` is a boolean mask or the numbers of the nodes.
        validation: the same, to choose configurations.
        test: the same, for the results.
        methods: list of methods. QP-SBGD with the solver `"native"` (default),
            `"ridge"`, `"sign"`, `"gurobi"` or `"dwave"` (a mock of the chip);
            BinaryConnect, that is, straight-through gradients, with `"sgd"`,
            `"signsgd"` or `"adam"`; `"proxquant"`; `"bop"`; `"frozen"` (kernels
            stay at random); `"real"` (the same network with real kernels).
            Defaults to native, ridge, signsgd, adam, frozen and real. `gurobi`
            and `dwave` can take hours; they are not tuned, but take the
            configuration of native.
        grids: dict, method -> list of configurations, instead of the default
            ones. A configuration is a dict with a `"rate"` for the kernels and
            optionally a `"real_rate"` for everything else (default 0.01);
            further entries are arguments of the optimizer, such as
            `"threshold"` of Bop. All methods must have the same number. `None`
            (default) takes four, whose rates come from the widths of the
            binary layers. A warning says if the best one is at the edge.
        seeds: int, number of runs that are reported. Defaults to 10.
        out: folder. All runs are kept there. A second call resumes an
            interrupted one, or adds seeds and methods. The table is
            written to `table.md`, the figure to `<name>.png`. `None` (default)
            keeps nothing.
        loss: a Keras loss, its name, or a function of (y_true, y_pred); its
            mean over rows is minimized, and everything is judged by it. `None`
            (default) is for integer classes: the cross-entropy from logits
            (binary if the model has one output), judged by accuracy.
        epochs: int. Defaults to 20.
        batch_size: int. Defaults to 64. An epoch leaves out the
            incomplete last batch, other rows each time.
        tuning_seeds: int, number of runs of each configuration that choose
            among them. Defaults to 3.
        processes: int, number of processes that train at once, each with one
            thread and without a GPU, each another method. 1 (default) trains in
            this process; `None` is one process for each core.
        reference: the method that all others are compared with. Defaults to
            `"native"`, or the first of `methods` if that is not among them.
        name: title, and part of file names. Defaults to `"comparison"`.
        verbose: 1 (default) shows a progress bar, 0 shows nothing.

    Returns:
        A `Comparison`: `print` it, or see its `results`, `p_values`, `chosen`,
        `runs` and `plot`.

    Raises:
        ValueError: an argument does not fit, or `out` contains runs of another
            comparison.
        ImportError: a package is missing.
        BackendUnavailable: a solver cannot be used.

    Random layers such as `Dropout` depend on the seed alone, too. Python's and
    NumPy's random numbers are not disturbed; the seed of TensorFlow is set.

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
        (x_train, y_train),
        (x_validation, y_validation),
        (x_test, y_test),
        methods=["native", "adam", "real"],
        out="digits",
    )
    print(comparison)
    ```
    """
    arguments.check_seeds(seeds)
    arguments.check_numbers(
        epochs=epochs, batch_size=batch_size, tuning_seeds=tuning_seeds
    )
    if processes is not None:
        arguments.check_numbers(processes=processes)
    arguments.check_name(name)
    methods = arguments.methods_of(methods)
    reference = arguments.reference_of(reference, methods)
    arguments.check_packages(processes, out)
    if not callable(build_model) or isinstance(build_model, keras.Model):
        raise ValueError(
            "`build_model` must be a function that returns a Keras model. "
            f"Received: {type(build_model).__name__}"
        )
    data = own_data.read(train, validation, test, loss is not None)
    loss_function = arguments.loss_of(loss)
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning_seeds)
    fresh = range(seeds)
    model, outputs = network.look_at(
        data, build_model, _num_classes(data) if loss is None else None
    )
    if loss is not None and outputs.shape[1:] == (1,):
        data = data.with_columns()
    rows = len(data.splits["train"].rows)
    batch = min(batch_size, rows)
    default = default_grids(
        network.latent_scale(model),
        len(marked_kernels(model)),
        epochs * (rows // batch),
        network.has_other_variables(model),
    )
    grids = arguments.grids_of(grids, methods, default)
    run.check_backends([METHODS[key].backend for key in methods])
    everything = settings.of(
        data,
        model,
        outputs,
        loss=arguments.loss_name(loss),
        epochs=epochs,
        batch_size=batch_size,
        tuning_seeds=tuning_seeds,
        name=name,
    )
    task = _task(
        name, data, build_model, [*tuning, *fresh], loss_function, epochs, batch
    )
    with _folder(out) as folder:
        items = _items(task, methods, grids, tuning, fresh, folder)
        settings.check(folder, everything)
        for item in items:
            item.check()
        settings.write(folder, everything)
        with _resumable(out, items), open_pool(processes, len(items)) as pool:
            run.make_missing(items, pool, verbose)
        found = {item.method.key: item.records() for item in items}
        comparison = Comparison(
            name, sum(found.values(), []), reference, loss is None
        )
        if out is not None:
            text = f"# {name}\n\n{comparison.markdown()}\n"
            disk.write(folder / "table.md", text)
            comparison.plot(folder / f"{name}.png")
    warn_of_edges(found, grids, task.chosen_by)
    return comparison


def _num_classes(data):
    return 1 + max(int(np.max(split.y)) for split in data.splits.values())


@contextlib.contextmanager
def _folder(out):
    """The folder of the runs, which one call at a time may use."""
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)
        return
    folder = pathlib.Path(out).expanduser()
    with run.locked([folder]):
        yield folder


@contextlib.contextmanager
def _resumable(out, items):
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            total = sum(item.size() for item in items)
            kept = total - run.num_missing(items)
            print(
                f"\n{kept} of {total} runs are kept in {out}. "
                "The same call goes on from there.",
                flush=True,
            )
        raise


def _task(name, data, build_model, seeds, loss, epochs, batch):
    def mean_loss(outputs, y):
        return tf.reduce_mean(tf.cast(loss(y, outputs), tf.float32))

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
        grids={},
        is_graph=data.is_graph,
        evaluation_rows=EVALUATION_ROWS,
        probe=TRAIN_LOSS_ROWS,
    )


def _items(task, methods, grids, tuning, fresh, folder):
    items = {}
    # Those that take the choice of another come after it.
    for key in sorted(methods, key=lambda key: METHODS[key].like is not None):
        like = items.get(METHODS[key].like)
        items[key] = Item(
            task=task,
            method=METHODS[key],
            folder=folder,
            grid=like.grid if like else grids[key],
            tuning_seeds=tuning,
            fresh_seeds=fresh,
            like=like,
        )
    return list(items.values())
