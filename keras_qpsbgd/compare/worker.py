"""Makes the runs of an item, in a process of its own."""

import importlib
import multiprocessing
import os
import signal
import threading

from tensorflow import keras

from keras_qpsbgd.compare import plan
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.checkpoint import Checkpoint
from keras_qpsbgd.compare.methods import NOT_FOR_THE_OPTIMIZER
from keras_qpsbgd.compare.task import FRESH
from keras_qpsbgd.compare.task import TUNING
from research.experiments import catalogue

_queue = None
_sources = {}


def start(queue):
    """Prepares a process.

    Args:
        queue: where it tells what it has done.
    """
    global _queue
    _queue = queue
    # Ctrl-C reaches all processes; the parent ends this one, without a word.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    # An orphan would wait for work for ever, or write beside a new command.
    multiprocessing.parent_process().join()
    os._exit(1)


def work(experiment, task, method, options, folder):
    """Makes all runs of one method on one task that are missing.

    Names instead of objects: tasks hold functions, which no process can send
    to another.
    """
    tasks = catalogue.EXPERIMENTS[experiment].tasks(options)
    for item in plan.items(tasks, options, folder):
        if (item.task.name, item.method.key) == (task, method):
            make_runs(item, lambda *done: _queue.put(done))


def make_runs(item, report):
    """Makes all runs of an item that are missing.

    Args:
        item: an `Item`.
        report: function of (task, method, stage, seed, CPU seconds), called
            after each run.
    """
    trainers = {}
    for stage in (TUNING, FRESH):
        for configuration, seed in item.missing(stage):
            run, checkpoint = _run(item, trainers, configuration, seed, stage)
            records.append(item.path, run)
            checkpoint.remove()
            seconds = checkpoint.seconds()
            report(item.task.name, item.method.label, stage, seed, seconds)
    # Compiled models would stay in memory.
    trainers.clear()
    keras.backend.clear_session()


def _run(item, trainers, configuration, seed, stage):
    """Makes one run; returns its record and its checkpoint."""
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
        trainers[name] = _trainer(item, settings)
    outcome = trainers[name].run(seed, configuration, stage, checkpoint)
    return {**key, **outcome}, checkpoint


def _trainer(item, settings):
    module, _, name = item.task.trainer.partition(":")
    trainer = getattr(importlib.import_module(module), name)
    source = _source(item.task, item.options.data_dir)
    return trainer(item.task, source, item.method, settings)


def _source(task, data_dir):
    """The data, loaded once a process; only the last are kept."""
    if task.name not in _sources:
        _sources.clear()
        _sources[task.name] = task.load(data_dir)
    return _sources[task.name]
