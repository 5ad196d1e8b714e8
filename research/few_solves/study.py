"""Runs all methods on all tasks and stores the records.

A network is built and traced once for each method and configuration. Each seed
then sets its weights and the state of its optimizer. A run makes 100 updates,
and its state is evaluated after 1, 2, 5, 10, 20, 50 and 100 of them.
"""

import pathlib

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from research.few_solves import records
from research.few_solves.methods import METHODS
from research.few_solves.tasks import ENUMERATED
from research.few_solves.tasks import TASKS
from research.few_solves.tasks import enumerated_loss

UPDATES = (1, 2, 5, 10, 20, 50, 100)
# Seeds of the choice of a configuration. Those of the results start at zero.
FIRST_TUNING_SEED = 1000
# Later sweeps of `fit_columns` change nothing.
MOST_SWEEPS = 20


def run(names, out, data_dir, quick=False):
    """Runs the tasks, and skips records that exist.

    Args:
        names: List of the names of tasks.
        out: Folder of the records.
        data_dir: Folder of the data, or `None`.
        quick: Boolean. Whether to use few seeds and updates.
    """
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        task = TASKS[name]
        seeds = _seeds(task, quick)
        data = {}
        done = records.read(out, name)
        bar = keras.utils.Progbar(
            sum(len(method.grid) for method in METHODS.values()),
            unit_name=name,
        )
        for method_name, method in METHODS.items():
            for configuration in method.grid:
                key = records.key(method_name, configuration)
                if key not in done:
                    if not data:
                        data = {s: task.data(data_dir, s) for s in seeds}
                    runs = _runs(task, method, configuration, data, quick)
                    records.write(out, name, key, runs)
                bar.add(1)
        if task.is_single and task.layers[0] <= ENUMERATED:
            if records.OPTIMUM not in done:
                data = data or {s: task.data(data_dir, s) for s in seeds}
                found = {s: enumerated_loss(*data[s].train) for s in seeds}
                records.write(out, name, records.OPTIMUM, found)
        records.pack(out, name)


def _seeds(task, quick):
    tuning, fresh = (1, 2) if quick else (task.tuning, task.fresh)
    first = FIRST_TUNING_SEED
    return [*range(first, first + tuning), *range(fresh)]


def _runs(task, method, configuration, data, quick):
    """Returns a list of the results of all seeds."""
    model = task.network()
    model.compile(
        None if method.is_columns else method.optimizer(task, configuration),
        task.loss(),
        jit_compile=False,
    )
    start = None
    runs = []
    for seed, parts in data.items():
        weights = _initial_weights(model, seed)
        if not method.is_columns:
            if start is None:
                _build_optimizer(model)
                start = [np.array(v) for v in model.optimizer.variables]
            for variable, value in zip(model.optimizer.variables, start):
                variable.assign(value)
        model.set_weights(weights)
        train = _columns if method.is_columns else _updates
        last = 5 if quick else task.updates
        results = train(model, configuration, parts, last)
        runs.append({"seed": seed, "results": results})
    return runs


def _build_optimizer(model):
    model.optimizer.build(model.trainable_variables)


def _initial_weights(model, seed):
    """Returns random kernels and biases of zero."""
    rng = np.random.default_rng([seed, 23])
    return [
        rng.uniform(-1.0, 1.0, array.shape)
        if array.ndim == 2
        else np.zeros(array.shape)
        for array in model.get_weights()
    ]


def _updates(model, configuration, parts, last):
    """Makes updates with all training samples."""
    del configuration
    x, y = (tf.constant(part) for part in parts.train)
    results = {}
    for update in range(1, last + 1):
        model.train_on_batch(x, y)
        if update in UPDATES:
            results[update] = _evaluated(model, parts)
    return results


def _columns(model, configuration, parts, last):
    """Makes sweeps with one damping, one solve per column and sweep."""
    results = {}
    last = min(last, MOST_SWEEPS)

    def evaluate(sweep, loss):
        del loss
        if sweep in UPDATES:
            results[sweep] = _evaluated(model, parts)

    kq.fit_columns(
        model,
        *parts.train,
        sweeps=last,
        dampings=configuration,
        backend={"name": "native", "preset": "accurate"},
        on_sweep=evaluate,
        verbose=0,
    )
    # It ends when a sweep changes nothing.
    for update in UPDATES:
        if update <= last and update not in results:
            results[update] = _evaluated(model, parts)
    return results


def _evaluated(model, parts):
    """Returns loss and accuracy of all parts."""
    found = {}
    for name in ("train", "validation", "test"):
        x, y = getattr(parts, name)
        outputs = model(x, training=False)
        if outputs.shape[1] == 1:
            predicted = outputs.numpy()[:, 0] > 0
            loss = model.loss(y.reshape(-1, 1).astype("float32"), outputs)
        else:
            predicted = outputs.numpy().argmax(axis=1)
            loss = model.loss(y, outputs)
        found[f"{name}_loss"] = round(float(loss), 6)
        found[f"{name}_accuracy"] = round(float((predicted == y).mean()), 6)
    return found
