"""Final test accuracy of the searches for CPUs and GPUs, and of `ridge`.

Compares the default backend, `ridge` and `parallel` (the default backend with
the search for GPUs), with the same learning rates, on

- `adult`: ten layers, 123-128x9-1, 1,600 training rows in batches of 16,
  3 epochs, 30,956 test rows. The learning rate is the best of three for the
  default, tuned with other seeds on 405 of the training rows after
  training on the rest;
- `mnist`: 784-256-10 with batch normalization, batches of 128, 5 epochs;
- `conv`: two convolutions and a dense layer, 20,000 MNIST images in batches of
  64, 2 epochs.

The target is that the mean of `parallel` is at most one standard error below
the mean of the default. With a single seed, there is no standard error and no
verdict. Seconds are the CPU time of training without compilation.

Every finished training run is written to `bench-quality.jsonl` in the output
folder and is not repeated. Run the command again to resume after an
interruption. Delete the file if the solvers change.

`--only` accepts `adult`, `mnist`, `conv` and names of methods.
"""

import math
import pathlib
import time

from keras_qpsbgd import backends
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.comparison import engine
from keras_qpsbgd.comparison.records import Store
from keras_qpsbgd.comparison.statistics import mean_and_error
from research.bench.training import recipes

HELP = "final test accuracy of solvers in the graph (up to 60 minutes)"
THREADS = (2,)

PROTOCOL = 3  # increase it if a change affects the results of training
DEFAULT = backends.get("native").preset
METHODS = (DEFAULT, recipes.RIDGE, recipes.PARALLEL)
SEEDS = {"adult": 4, "mnist": 4, "conv": 4}
ADULT_EPOCHS = 3
ADULT_ROWS = 1_600
ADULT_RATES = (0.001, 0.002, 0.004)
TUNING_SEEDS = (1000, 1001)
MNIST_EPOCHS = 5
CONV_EPOCHS = 2
CONV_ROWS = 20_000


class Runs:
    """Finished training runs in a JSON Lines file.

    Args:
        path: Path of the file.
    """

    def __init__(self, path):
        self._store = Store(path, ("job",))

    def make(self, jobs, train):
        """Returns the results of jobs, and trains those that are missing.

        Args:
            jobs: List of dictionaries with all settings of a training run,
                including its `seed`.
            train: Function that receives the missing seeds and yields a result
                for each of them.
        """
        wanted = [{"job": job} for job in jobs]
        missing = [one for one in wanted if one not in self._store]
        if missing:
            found = iter(train([one["job"]["seed"] for one in missing]))
            engine.perform(
                [missing],
                lambda one: {"result": next(found)},
                self._store,
                verbose=0,
            )
        return [self._store[one]["result"] for one in wanted]


def names():
    """Returns the names that `--only` accepts."""
    return [*SEEDS, *METHODS]


def measure(options):
    """Runs the training described in the module docstring."""
    runs = Runs(pathlib.Path(options.output, "bench-quality.jsonl"))
    methods = options.wanted(METHODS)
    found = {}
    for name in options.wanted(SEEDS):
        make = {"adult": _adult, "mnist": _mnist, "conv": _conv}[name]
        seeds = options.seeds or (1 if options.quick else SEEDS[name])
        found[name] = make(runs, methods, range(seeds), options)
    return {"default": DEFAULT, "tasks": found}


def _jobs(task, method, seeds, **settings):
    return [
        {
            "protocol": PROTOCOL,
            "task": task,
            "method": method,
            **settings,
            "seed": seed,
        }
        for seed in seeds
    ]


def _adult(runs, methods, seeds, options):
    data = recipes.ADULT.load(options.data_dir)
    epochs, rates, tuning_seeds = ADULT_EPOCHS, ADULT_RATES, TUNING_SEEDS
    final = data.joined().first(ADULT_ROWS)
    if options.quick:
        epochs, rates, tuning_seeds = 1, ADULT_RATES[:2], TUNING_SEEDS[:1]
        data, final = data.first(320), final.first(320)
    tuned = {}
    for rate in rates:
        jobs = _jobs(
            "adult, tuning",
            DEFAULT,
            tuning_seeds,
            epochs=epochs,
            rate=rate,
            rows=len(data.train[0]),
        )
        train = _trainer(
            "adult, tuning",
            recipes.ADULT,
            DEFAULT,
            data,
            epochs,
            rate,
            part="validation",
        )
        found = runs.make(jobs, train)
        tuned[rate] = sum(run["validation"] for run in found) / len(found)
    rate = max(tuned, key=tuned.get)
    result = {}
    for method in methods:
        jobs = _jobs(
            "adult",
            method,
            seeds,
            epochs=epochs,
            rate=rate,
            rows=len(final.train[0]),
        )
        result[method] = runs.make(
            jobs, _trainer("adult", recipes.ADULT, method, final, epochs, rate)
        )
    return {
        "methods": result,
        "rate": rate,
        "tuning": {str(rate): mean for rate, mean in tuned.items()},
    }


def _mnist(runs, methods, seeds, options):
    data = recipes.MNIST.load(options.data_dir)
    epochs = MNIST_EPOCHS
    if options.quick:
        data, epochs = data.first(6_400), 1
    return _train("mnist", recipes.MNIST, runs, methods, seeds, data, epochs)


def _conv(runs, methods, seeds, options):
    data = recipes.CONVOLUTIONS.load(options.data_dir).first(CONV_ROWS)
    epochs = CONV_EPOCHS
    if options.quick:
        data, epochs = data.first(3_200), 1
    recipe = recipes.CONVOLUTIONS
    return _train("conv", recipe, runs, methods, seeds, data, epochs)


def _train(name, recipe, runs, methods, seeds, data, epochs):
    result = {}
    for method in methods:
        jobs = _jobs(
            name, method, seeds, epochs=epochs, rows=len(data.train[0])
        )
        result[method] = runs.make(
            jobs, _trainer(name, recipe, method, data, epochs)
        )
    return {"methods": result}


def _trainer(name, recipe, method, data, epochs, rate=None, part="test"):
    """Returns a `train` function for `Runs.make` that compiles only once.

    `part` is the part of the data on which the accuracy is evaluated.
    """

    def train(seeds):
        show_status(f"{name}, {method}: compiling")
        training = recipes.Training(recipe, method, data, epochs, seeds, rate)
        for seed in seeds:
            show_status(f"{name}, {method}, {epochs} epochs, seed {seed}")
            start = time.process_time()
            training.fit(seed)
            yield {
                "seconds": time.process_time() - start,
                part: training.accuracy(getattr(data, part)),
            }

    return train


# The report


def _test(runs):
    return mean_and_error([100 * run["test"] for run in runs])


def table(results):
    """Returns the accuracies and times as text."""
    blocks = []
    for result in results.values():
        for name, task in result["tasks"].items():
            blocks.append(_table_of_task(name, task, result["default"]))
    return "\n\n".join(blocks)


def _table_of_task(name, task, default):
    methods = task["methods"]
    seeds = len(next(iter(methods.values())))
    lines = [
        f"{name}, {seeds} seed{'s' * (seeds > 1)}: test accuracy in percent, "
        "mean +- standard error"
    ]
    if "tuning" in task:
        tuned = ", ".join(
            f"{rate}: {100 * mean:.1f}" for rate, mean in task["tuning"].items()
        )
        lines.append(
            f"rate {task['rate']}, tuned by validation accuracy with {default}:"
        )
        lines.append(f"  {tuned}")
    head = f"{'method':<20}{'accuracy':>16}{'minus default':>17}{'CPU s':>10}"
    lines += [head, "-" * len(head)]
    for method, runs in methods.items():
        mean, error = _test(runs)
        label = method + " (default)" * (method == default)
        line = f"{label:<20}{_plus_minus(mean, error):>16}"
        cell = ""
        if default in methods and method != default:
            cell = _plus_minus(*_difference(runs, methods[default]), sign="+")
        seconds = sum(run["seconds"] for run in runs) / len(runs)
        lines.append(f"{line}{cell:>17}{seconds:>10.1f}")
    return "\n".join(lines)


def _difference(runs, others):
    """Returns the difference of the means and its standard error."""
    (mean, error), (other_mean, other_error) = _test(runs), _test(others)
    return mean - other_mean, math.hypot(error, other_error)


def _plus_minus(mean, error, sign=""):
    text = f"{mean:{sign}.2f}"
    return text if math.isnan(error) else f"{text} +- {error:.2f}"


def verdicts(results):
    """Returns whether the search for GPUs is good enough."""
    found = []
    for result in results.values():
        default = result["default"]
        for name, task in result["tasks"].items():
            methods = task["methods"]
            if {recipes.PARALLEL, default} <= set(methods):
                found.append(_verdict(name, methods, recipes.PARALLEL, default))
    return found


def _verdict(name, methods, method, other):
    difference, error = _difference(methods[method], methods[other])
    _, plain = _test(methods[other])
    if math.isnan(error):
        return None, f"{name}: no standard error with one seed"
    text = f"{name}: {method} - {other} = {difference:+.2f} (>= -{plain:.2f})"
    return bool(difference >= -plain), text
