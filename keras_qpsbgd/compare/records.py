"""Records of runs on disk: one line of JSON for each.

    OUT/<experiment>/runs/<task>--<method>.jsonl   what was learned
    OUT/<experiment>/times.jsonl                   CPU seconds, which vary
    OUT/<experiment>/meta.json                     command, date, packages

`pack` puts all runs of a finished experiment into `runs.jsonl.gz`, and the
times into `times.jsonl.gz`. Both forms are read, alone or side by side: new
runs go to files in `runs/` again, until they are packed, too.

A run is

    {"task": "adult-2layer", "method": "QP-SBGD", "stage": "fresh",
     "configuration": {"rate": 0.02}, "seed": 0,
     "curves": {"epoch": [0, 1], "test_accuracy": [0.5, 0.6]},
     "result": {"epoch": 1, "test_accuracy": 0.6}}

Its stage is "tuning" where configurations are compared, on validation data
alone, and "fresh" where the chosen one is run on seeds that had no part in the
choice. Files of runs hold no times, so that the same command writes the same
files. A number that is not finite, of a run that diverged, is `null` in the
file and NaN when read.
"""

import collections
import contextlib
import functools
import gzip
import io
import json
import math
import numbers
import os
import pathlib
import re
import zlib

import numpy as np

from keras_qpsbgd import disk

PACKED_RUNS = "runs.jsonl.gz"
TIMES = "times.jsonl"
PACKED_TIMES = "times.jsonl.gz"
STAGES = ("tuning", "fresh")
KEYS = ("task", "method", "stage", "configuration", "seed", "result")
SIGNIFICANT_DIGITS = 6


def path_of(folder, task, method):
    """The file of a task and a method in the folder of an experiment."""
    method = re.sub(r"[^\w.+-]+", "-", method).strip("-")
    return pathlib.Path(folder, "runs", f"{task}--{method}.jsonl")


def append(path, record):
    """Adds a record of a run to a file; see `append_line`.

    Its configuration is not rounded, so that it is found again in a grid.

    Raises:
        ValueError: the record is not complete, or a "tuning" run has looked at
            test data.
    """
    validate(record)
    _write(path, _line_of_run(record))


def append_line(path, value):
    """Adds a line of JSON to a file, which one process alone writes.

    Floats are rounded to 6 significant digits. What a killed process left of a
    line is removed before.
    """
    _write(path, _line(_plain(value)))


def append_time(folder, value):
    """Adds the CPU time of a run to those of an experiment."""
    append_line(pathlib.Path(folder, TIMES), value)


def _write(path, line):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        file.seek(0)
        file.truncate(len(_whole_lines(file.read())))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def pack(folder):
    """Puts the runs of an experiment, and their times, into one file each.

    The same runs give the same bytes. Nothing is lost if the process is killed:
    the files in `runs/` are removed once the packed file is whole, and what is
    in both counts once. Only the process that makes the runs may call it.

    Args:
        folder: folder of the experiment.

    Raises:
        ValueError: see `read`; all files stay as they are.
    """
    folder = pathlib.Path(folder)
    runs, times = _loose_runs(folder), folder / TIMES
    if runs:
        _write_packed(folder / PACKED_RUNS, map(_line_of_run, read(folder)))
    for path in runs:
        path.unlink()
    with contextlib.suppress(OSError):  # it holds something else
        (folder / "runs").rmdir()
    if times.exists():
        lines = map(_line, map(_plain, read_times(folder)))
        _write_packed(folder / PACKED_TIMES, lines)
        times.unlink()


def _write_packed(path, lines):
    content = io.BytesIO()
    # Neither name nor date, so that equal runs are equal files.
    with gzip.GzipFile("", "wb", 9, content, mtime=0) as file:
        file.write(b"".join(lines))
    disk.write(path, content.getvalue())


def read(folder):
    """All runs of an experiment, sorted, whatever the order in the files.

    Args:
        folder: folder of the experiment.

    Returns:
        List of dictionaries. The last line of a file is left out if it was
        cut.

    Raises:
        ValueError: a line is broken, a packed file is damaged, or two runs of
            the same task, method, stage, configuration and seed differ.
    """
    runs = _distinct(folder, _loose_runs(folder))
    return sorted(
        runs,
        key=lambda run: (
            run["task"],
            run["method"],
            STAGES.index(run["stage"]),
            order_of(run["configuration"]),
            run["seed"],
        ),
    )


def runs_of(folder, task, method):
    """The runs of one task and one method, see `read`.

    Args:
        folder: folder of the experiment.
        task: name of the task.
        method: label of the method.
    """
    runs = _distinct(folder, [path_of(folder, task, method)])
    return [
        run for run in runs if (run["task"], run["method"]) == (task, method)
    ]


def _loose_runs(folder):
    return sorted(pathlib.Path(folder, "runs").glob("*.jsonl"))


def _distinct(folder, paths):
    """Runs of some files and of the packed one, each of them once."""
    runs = {}
    # The packed file comes last: what another process has packed meanwhile,
    # and removed from the others, is in it.
    for path in [*paths, pathlib.Path(folder, PACKED_RUNS)]:
        for run in _lines_if_any(path):
            validate(run)
            run = {"curves": {}, **run}
            key = _key(run)
            if key in runs and text_of(runs[key]) != text_of(run):
                raise ValueError(
                    f"Two different runs of the same kind in {path}: "
                    f"remove one. Received: {' '.join(map(str, key))}"
                )
            runs[key] = run
    return list(runs.values())


def read_lines(path):
    """Values of a file of JSON lines, without a last line that was cut.

    What is `null` in the file is NaN. A name that ends with `.gz` is that of a
    packed file.

    Raises:
        ValueError: a line is broken, or the packed file is damaged.
    """
    path = pathlib.Path(path)
    if path.suffix != ".gz":
        return _values(path, path.read_bytes())
    status = path.stat()
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    return list(_packed_values(path, stamp))


# Every method of every task looks for its runs in the one file.
@functools.lru_cache(maxsize=2)
def _packed_values(path, stamp):
    del stamp  # tells a file from the one that was there before
    content = path.read_bytes()
    try:
        # Of an empty file it would say that it is empty.
        lines = gzip.decompress(content) if content else None
    except (OSError, EOFError, zlib.error):
        lines = None
    if lines is None:
        raise ValueError(
            f"{path} is damaged: restore it, or remove it and all that is in "
            f"it. Received: {content[:20]!r}, {len(content)} bytes"
        )
    return _values(path, lines)


def _values(path, content):
    lines = _whole_lines(content).splitlines()
    values = []
    for number, line in enumerate(lines, 1):
        try:
            values.append(_with_nan(json.loads(line)))
        except ValueError as error:
            raise ValueError(
                f"Line {number} of {path} is not JSON: remove it. "
                f"Received: {line[:60]!r}"
            ) from error
    return values


def _lines_if_any(path):
    try:
        return read_lines(path)
    except FileNotFoundError:
        return []


def read_times(folder):
    """CPU times of the runs, sorted; an empty list if there are none."""
    # Equal times of two runs are two, unless one file has them from the other.
    loose, packed = (
        collections.Counter(map(text_of, _lines_if_any(path)))
        for path in (
            pathlib.Path(folder, TIMES),
            pathlib.Path(folder, PACKED_TIMES),
        )
    )
    return [json.loads(text) for text in sorted((loose | packed).elements())]


def read_meta(folder):
    """`meta.json`; empty if there is none."""
    path = pathlib.Path(folder, "meta.json")
    return read_json(path) if path.exists() else {}


def read_json(path):
    """The value in a file of JSON."""
    content = pathlib.Path(path).read_bytes()
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(
            f"{path} is not JSON: remove it. Received: {content[:60]!r}"
        ) from error


def validate(record):
    """Raises a `ValueError` unless it is the record of a run."""
    missing = [key for key in KEYS if key not in record]
    if missing:
        raise ValueError(
            f"`record` must have {', '.join(KEYS)}. "
            f"Received: no {', '.join(missing)}"
        )
    if record["stage"] not in STAGES:
        raise ValueError(
            f"`stage` must be one of {', '.join(STAGES)}. "
            f"Received: {record['stage']}"
        )
    if not isinstance(record["seed"], numbers.Integral):
        raise ValueError(f"`seed` must be int. Received: {record['seed']}")
    curves = record.get("curves", {})
    if len({len(curve) for curve in curves.values()}) > 1:
        lengths = {key: len(curve) for key, curve in curves.items()}
        raise ValueError(
            f"`curves` must be of the same length. Received: {lengths}"
        )
    if record["stage"] == "tuning":
        keys = [*curves, *record["result"]]
        tested = sorted({key for key in keys if key.startswith("test_")})
        if tested:
            raise ValueError(
                "A record whose `stage` is tuning must not look at test data. "
                f"Received: {', '.join(tested)}"
            )


def order_of(configuration):
    """Sorts configurations: numbers by size, and before text."""
    return [
        (key, 0, value, "")
        if isinstance(value, (int, float))
        else (key, 1, 0, str(value))
        for key, value in sorted(configuration.items())
    ]


def text_of(value):
    """JSON with sorted keys: the same for what is the same in a file."""
    return json.dumps(value, sort_keys=True)


def _key(run):
    names = (run[name] for name in ("task", "method", "stage"))
    return (*names, text_of(run["configuration"]), run["seed"])


def _line_of_run(run):
    configuration = _plain(run["configuration"], digits=17)
    return _line({**_plain(run), "configuration": configuration})


def _line(value):
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return text.encode() + b"\n"


def _whole_lines(content):
    return content[: content.rfind(b"\n") + 1]


def _plain(value, digits=SIGNIFICANT_DIGITS):
    """As JSON has it, floats rounded."""
    if isinstance(value, dict):
        return {key: _plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(item, digits) for item in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        finite = math.isfinite(value)
        return float(f"{value:.{digits}g}") if finite else None
    return value


def _with_nan(value):
    if isinstance(value, dict):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value
