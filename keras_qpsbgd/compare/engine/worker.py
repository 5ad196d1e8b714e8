"""Makes the runs of an item."""

import gc
import importlib

from keras_qpsbgd import backends
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.checkpoint import Checkpoint
from keras_qpsbgd.compare.methods import NOT_FOR_THE_OPTIMIZER
from keras_qpsbgd.compare.task import FRESH
from keras_qpsbgd.compare.task import TUNING


def make_runs(item, report, sources=None):
    """Makes all runs of an item that are missing.

    Args:
        item: an `Item`.
        report: function of (task, method, stage, seed, CPU seconds), called
            after each run.
        sources: dict of the data that this process has loaded, by the name of
            the task; only the last are kept.

    Raises:
        Exception: what went wrong, of the same type if that takes a message;
            the message names the method and the task. `BackendUnavailable` is
            raised as it is.
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
        # Compiled models would stay in memory.
        trainers.clear()
        gc.collect()


def one_run(item, trainers, sources, configuration, seed, stage):
    """Makes one run; returns its record and its checkpoint.

    Args:
        item: an `Item`.
        trainers: dict of the trainers that are compiled, by their settings.
        sources: dict of the data that are loaded, by the name of the task.
        configuration: dict.
        seed: int.
        stage: `"tuning"` or `"fresh"`.
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
    """The same error, with a message that says where it happened."""
    text = str(error)
    if isinstance(error, KeyError):  # whose text is the key alone
        text = f"KeyError: {' '.join(map(str, error.args))}"
    where = f'Method "{item.method.key}" failed on {item.task.name}'
    try:
        named = type(error)(f"{where}: {text}")
    except Exception:
        # Those of TensorFlow take more than a message.
        return RuntimeError(f"{where}: {type(error).__name__}: {text}")
    return named
