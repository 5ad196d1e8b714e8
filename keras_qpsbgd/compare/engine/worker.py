"""Performs the runs of an item."""

import gc
import importlib

from keras_qpsbgd import backends
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.checkpoint import Checkpoint
from keras_qpsbgd.compare.methods import NOT_FOR_THE_OPTIMIZER
from keras_qpsbgd.compare.task import FRESH
from keras_qpsbgd.compare.task import TUNING


def make_runs(item, report, sources=None):
    """Performs all missing runs of an item.

    Args:
        item: an `Item`.
        report: function of (task, method, stage, seed, CPU seconds) that is
            called after each run.
        sources: dict that maps the names of tasks to the data that this process
            has loaded. Only the last entry is kept.

    Raises:
        Exception: Any error, with a message that names the method and the task.
            It has the original type if that accepts a single message.
            `BackendUnavailable` is raised unchanged.
    """
    trainers = {}
    sources = {} if sources is None else sources
    try:
        for stage in (TUNING, FRESH):
            for pair in item.missing(stage):
                run, checkpoint = one_run(item, trainers, sources, *pair, stage)
                records.append(item.path, run)
                checkpoint.remove()
                report(
                    item.task.name,
                    item.method.label,
                    stage,
                    pair[1],
                    checkpoint.seconds(),
                )
    except backends.BackendUnavailable:
        raise
    except Exception as error:
        raise _named(error, item) from error
    finally:
        # Otherwise compiled models stay in memory.
        trainers.clear()
        gc.collect()


def one_run(item, trainers, sources, configuration, seed, stage):
    """Performs one run.

    Args:
        item: an `Item`.
        trainers: dict that maps settings to compiled trainers.
        sources: dict that maps the names of tasks to loaded data.
        configuration: dict.
        seed: int.
        stage: `"tuning"` or `"fresh"`.

    Returns:
        The record of the run and its checkpoint.
    """
    key = {
        "task": item.task.name,
        "method": item.method.label,
        "stage": stage,
        "configuration": configuration,
        "seed": seed,
    }
    checkpoint = Checkpoint(item.path.with_suffix(".npz"), key)
    settings = {
        argument: value
        for argument, value in configuration.items()
        if argument not in NOT_FOR_THE_OPTIMIZER
    }
    name = records.text_of(settings)
    if name not in trainers:
        trainers[name] = _trainer(item, settings, sources)
    outcome = trainers[name].run(seed, configuration, stage, checkpoint)
    return {**key, **outcome}, checkpoint


def _trainer(item, settings, sources):
    module, _, name = item.task.trainer.partition(":")
    trainer = getattr(importlib.import_module(module), name)
    source = _source(item, sources)
    return trainer(item.task, source, item.method, settings)


def _source(item, sources):
    name = item.task.name
    if name not in sources:
        sources.clear()
        sources[name] = item.task.load(item.data_dir)
    return sources[name]


def _named(error, item):
    """Returns the same error with a message that states where it happened."""
    text = str(error)
    if isinstance(error, KeyError):  # its text is only the key
        text = f"KeyError: {' '.join(map(str, error.args))}"
    where = (
        f'Training failed for method "{item.method.key}" in "{item.task.name}"'
    )
    try:
        named = type(error)(f"{where}: {text}")
    except Exception:
        # TensorFlow's errors require more arguments than a message.
        return RuntimeError(f"{where}: {type(error).__name__}: {text}")
    return named
