"""Trains exported programs with JAX, on any device.

    python -m research.cifar10.train DATA PROGRAMS RUNS ... [--output FILE]

`RUNS` is `PROGRAM:EPOCHS:RATES:SEEDS:SETTINGS`, with the path of a program in
the folder `PROGRAMS`. Parts at the end can be left out, and empty parts have
their defaults: 12 epochs, the rate 0.001, the seed 0 and no settings. All pairs
of a rate and a seed are trained. Runs on the tuning seeds keep 5,000 training
images for validation. The others train on all 50,000:

    relu-64/averaged:12:0.001,0.003:0,1,2    six runs
    relu-64/adam                             one run
    relu-64/bop::0.0001:0,1:threshold=1e-7   two runs with another threshold
    relu-64/adam:60:best:0,1                 two runs with the best rate

The rate `best` is the one with the highest mean validation accuracy in `FILE`,
of this program and network, among the runs on the tuning seeds 100 and 101 with
the same number of epochs, or the largest one. Its settings are used, too. Runs
that are in `FILE` already are skipped, so that an interrupted command can be
repeated. Several processes can append to the same file.

The rate is that of the binary kernels. Batch normalization has the rate of the
setting `real_rate`, by default 0.001. All rates decay to zero along a cosine.
Images are flipped and shifted at random. The seed determines the initial
kernels, the order of the images, flips and shifts. They are the same for all
programs. The settings `weight_decay`, of real weights, and `label_smoothing`
are zero by default.

The command prints the validation accuracy, or the test accuracy without
validation images, after about 12 of the epochs. At the end it appends a line of
JSON to `FILE`, with accuracy, training loss and seconds of each epoch. With
`--weights`, it also stores the weights of runs that train on all images. With
`--state`, the state of a run is stored every 50 epochs, and when the process
receives SIGTERM (as from the command `timeout`), which ends it after the epoch.
The run continues from there if the command is repeated. With `--time`, the
programs (of one network) take turns, and nothing else is measured.

The command needs JAX and NumPy, but neither TensorFlow nor the library.
"""

import argparse
import functools
import itertools
import json
import math
import pathlib
import signal
import statistics
import sys
import threading
import time

import jax
import numpy as np

from research.cifar10 import batches
from research.cifar10 import pack
from research.cifar10 import records
from research.cifar10.program import Program

REAL_RATE = 1e-3
STORED = 50  # epochs between two states
EVALUATED = 12  # about so many accuracies in a training
TIMED = 20  # steps of a program before the next one takes its turn


def main(arguments=None):
    """Trains or times the programs. Returns the exit code."""
    arguments = _arguments(arguments)
    device = jax.devices()[0]
    print(f"JAX {jax.__version__}, {device.device_kind}", flush=True)
    if arguments.time:
        images = _images(arguments.data, 0)["train"]
        results = time_programs(
            arguments.programs, arguments.runs, images, arguments.time
        )
        _append(arguments.output, *results)
        return 0
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for runs in arguments.runs:
        record = records.describe(arguments.programs, runs.program)
        asked = records.missing(runs, record, arguments.output)
        for rate, seed, settings in asked:
            program = _program(arguments.programs, runs.program)
            is_tuning = seed in records.TUNING
            result = train(
                program,
                _images(arguments.data, pack.VALIDATION * is_tuning),
                runs.epochs,
                rate,
                seed,
                settings,
                arguments.state,
                stop,
            )
            if result is None:
                return 1
            _append(arguments.output, result)
            if arguments.weights is not None and not is_tuning:
                arguments.weights.mkdir(parents=True, exist_ok=True)
                name = f"{runs.program.replace('/', '-')}-{seed}.npz"
                np.savez_compressed(
                    arguments.weights / name, **program.weights()
                )
    return 0


_program = functools.cache(Program)


@functools.cache
def _images(folder, validation):
    """Returns the `DeviceImages` of a folder. See `pack.load`."""
    start = time.perf_counter()
    found = {
        name: batches.DeviceImages(*images)
        for name, images in pack.load(folder, validation).items()
    }
    print(f"images loaded in {time.perf_counter() - start:.1f} s", flush=True)
    return found


def _arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m research.cifar10.train",
        description="Train exported programs with JAX.",
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        type=pathlib.Path,
        help="folder of `research.cifar10.pack`",
    )
    parser.add_argument(
        "programs",
        metavar="PROGRAMS",
        type=pathlib.Path,
        help="folder of `research.cifar10.export`",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUNS",
        type=records.parsed,
        help="PROGRAM:EPOCHS:RATES:SEEDS:SETTINGS, such as "
        "relu-64/averaged:12:0.001,0.003:0,1,2 (default: "
        f"PROGRAM:{records.EPOCHS}:{records.RATE}:{records.SEED})",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="FILE",
        help="append a line of JSON per run to this file, and skip runs that "
        "it has",
    )
    parser.add_argument(
        "--weights",
        type=pathlib.Path,
        metavar="FOLDER",
        help="store the weights of runs that train on all images here",
    )
    parser.add_argument(
        "--state",
        type=pathlib.Path,
        metavar="FOLDER",
        help="store the states of unfinished runs here",
    )
    parser.add_argument(
        "--time",
        type=int,
        metavar="STEPS",
        help="do not train. The programs take turns until each has taken "
        "this number of steps. Print the median time of a step, and the "
        "median ratio to the first program",
    )
    arguments = parser.parse_args(arguments)
    _check(parser, arguments)
    return arguments


def _check(parser, arguments):
    """Checks that programs and settings exist."""
    for runs in arguments.runs:
        try:
            known = records.describe(arguments.programs, runs.program)
        except FileNotFoundError as error:
            parser.error(f"`{runs.program}` has no program. {error}")
        known = [*known["settings"], records.REAL_RATE]
        unknown = [name for name in runs.settings if name not in known]
        if unknown:
            parser.error(
                f"the settings of `{runs.program}` are {known}. "
                f"Received: {unknown}"
            )


def _append(path, *results):
    """Appends a line for each result to the file, unless it is `None`."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(result) + "\n" for result in results]
        # Other processes may append at the same time, so everything is written
        # at once.
        with path.open("ab", buffering=0) as file:
            file.write("".join(lines).encode())


def train(program, data, epochs, rate, seed, settings, states=None, stop=None):
    """Trains a program from the start and prints the results.

    Args:
        program: `Program`.
        data: Dictionary of `DeviceImages` with the keys `"train"`,
            `"validation"` and `"test"`.
        epochs: Integer.
        rate: Float. The first rate of the binary kernels.
        seed: Integer.
        settings: Dictionary. Values of other variables by name, and the first
            rate of other variables. Optimizers of Keras do not use it.
        states: `pathlib.Path` of a folder (optional), see `--state`.
        stop: `threading.Event` (optional). If it is set, the run ends after the
            epoch.

    Returns:
        A dictionary, or `None` if the run was stopped.
    """
    size = program.record["batch"]
    steps = len(data["train"].labels) // size
    others = dict(settings)
    real_rate = others.pop(records.REAL_RATE, REAL_RATE)
    program.restart(seed, others)
    label = f"{program.name} rate {rate:g} seed {seed}"
    for name, value in settings.items():
        label += f" {name} {value:g}"
    # The first call compiles the function.
    rates = rate, real_rate
    next(batches.of_epoch(data["train"], size, 0, epochs, seed, rates))
    images = data["validation" if len(data["validation"].labels) else "test"]
    accuracies, losses, seconds = history = [], [], []
    stored = None
    if states is not None:
        key = f"{program.network}-{label}-{epochs}".replace(" ", "-")
        stored = states / f"{key}.npz"
        program.resume(stored, history)
    for epoch in range(len(seconds), epochs):
        program.reset_metrics()
        start = time.perf_counter()
        for batch in batches.of_epoch(
            data["train"], size, epoch, epochs, seed, rates
        ):
            loss = program.step(*batch)
        jax.block_until_ready(program.state)
        seconds.append(round(time.perf_counter() - start, 4))
        accuracies.append(math.nan)
        if (epoch + 1 - epochs) % max(epochs // EVALUATED, 1) == 0:
            accuracies[-1] = round(program.evaluate(images)[0], 6)
        loss = float(np.asarray(loss))
        losses.append(round(loss, 5) if math.isfinite(loss) else None)
        print(
            f"{label} epoch {epoch + 1}: {accuracies[-1]:.4f} "
            f"loss {loss:.4f} {seconds[-1]:.1f} s",
            flush=True,
        )
        stops = stop is not None and stop.is_set()
        if stored is not None and (stops or (epoch + 1) % STORED == 0):
            program.store(stored, history)
        if stops:
            print(f"{label}: stopped", flush=True)
            return None
    if stored is not None:
        stored.unlink(missing_ok=True)
    has_validation = images is data["validation"]
    known = [None if math.isnan(value) else value for value in accuracies]
    test, test_loss = program.evaluate(data["test"])
    measured = {"test": test, "test_loss": test_loss}
    if has_validation:
        values = program.evaluate(images)
        measured |= zip(("validation", "validation_loss"), values)
    result = {
        "program": program.name,
        "epochs": epochs,
        "rate": rate,
        "seed": seed,
        "settings": settings,
        **measured,
        "loss": losses[-1],
        "ms_per_step": 1e3 * statistics.median(seconds) / steps,
        ("validation" if has_validation else "test") + "_by_epoch": known,
        "loss_by_epoch": losses,
        "seconds_by_epoch": seconds,
        "real_rate": real_rate if program.has_real_rate else None,
        "images": {name: len(images.labels) for name, images in data.items()},
        **program.description(),
    }
    print(
        f"{label}: test {result['test']:.4f} loss {losses[-1]} "
        f"ms/step {result['ms_per_step']:.2f}",
        flush=True,
    )
    return result


def time_programs(folder, all_runs, images, steps):
    """Times training steps of programs that take turns.

    The batches are prepared before. A turn ends when the device is done, but
    there is no waiting between the steps of a turn.

    Args:
        folder: `pathlib.Path` of all programs.
        all_runs: List of `records.Runs`. The first rate and the first seed are
            used.
        images: `DeviceImages` for training.
        steps: Integer. Number of steps of each program, which is rounded up
            to whole turns.

    Returns:
        A list of dictionaries.
    """
    names = [runs.program for runs in all_runs]
    programs = {name: Program(folder, name) for name in names}
    times = _times(programs, all_runs, images, steps)
    first = next(iter(times.values()))
    results = []
    for name, program in programs.items():
        ratios = map(lambda mine, base: mine / base, times[name], first)
        results.append(
            {
                "program": program.name,
                "ms_per_step": statistics.median(times[name]),
                "ratio": statistics.median(ratios),
                "steps": len(first) * TIMED,
                "ms_per_step_by_turn": times[name],
                **program.description(),
            }
        )
        print(
            f"{name}: ms/step {results[-1]['ms_per_step']:.3f} "
            f"ratio {results[-1]['ratio']:.3f}",
            flush=True,
        )
    return results


def _times(programs, all_runs, images, steps):
    """Returns the milliseconds per step of each turn, by program."""
    prepared = {}
    for runs in all_runs:
        program = programs[runs.program]
        program.restart(runs.seeds[0], runs.settings)
        found = batches.of_epoch(
            images,
            program.record["batch"],
            epoch=0,
            epochs=records.EPOCHS,
            seed=runs.seeds[0],
            rates=(runs.rates[0], REAL_RATE),
        )
        prepared[runs.program] = list(itertools.islice(found, batches.PREPARED))
    times = {name: [] for name in programs}
    turns = -(-steps // TIMED)
    for turn in range(1 + turns):  # the first one warms up
        for name, program in programs.items():
            start = time.perf_counter()
            for batch in itertools.islice(
                itertools.cycle(prepared[name]), TIMED
            ):
                program.step(*batch)
            jax.block_until_ready(program.state)
            if turn:
                seconds = time.perf_counter() - start
                times[name].append(1e3 * seconds / TIMED)
    return times


if __name__ == "__main__":
    sys.exit(main())
