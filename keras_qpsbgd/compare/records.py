"""Records of runs on disk: one line of JSON for each run.

    OUT/<experiment>/runs/<task>--<method>.jsonl   results
    OUT/<experiment>/times.jsonl                   CPU seconds, which vary
    OUT/<experiment>/meta.json                     command, date, packages

`pack` moves all runs of a finished experiment to `runs.jsonl.gz`, and the times
to `times.jsonl.gz`. Reading supports packed and unpacked files, also side by
side: new runs go to files in `runs/` until they are packed again.

A record of a run is

    {"task": "adult-2layer", "method": "QP-SBGD", "stage": "fresh",
     "configuration": {"rate": 0.02}, "seed": 0,
     "curves": {"epoch": [0, 1], "test_accuracy": [0.5, 0.6]},
     "result": {"epoch": 1, "test_accuracy": 0.6}}

The stage is "tuning" for runs that compare configurations, only on validation
data, and "fresh" for runs of the chosen configuration with seeds that were not
used for the choice. Files of runs contain no times, so that the same command
writes the same files. If a run diverged, its non-finite numbers are `null` in
the file and NaN when read.
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
    """Returns the path of the file of a task and a method."""
    method = re.sub(r"[^\w.+-]+", "-", method).strip("-")
    return pathlib.Path(folder, "runs", f"{task}--{method}.jsonl")


def append(path, record):
    """Appends the record of a run to a file, see `append_line`.

    The configuration is not rounded, so that it equals the one in the grid.

    Raises:
        ValueError: If the record is invalid, or if a "tuning" run contains
            results on test data.
    """
    validate(record)
    _write(path, _line_of_run(record))


def append_line(path, value):
    """Appends a line of JSON to a file that no other process writes.

    Floats are rounded to 6 significant digits. An incomplete last line, which a
    killed process left, is removed first.
    """
    _write(path, _line(_plain(value)))


def append_time(folder, value):
    """Appends the CPU time of a run to the times of an experiment."""
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
    """Packs the runs of an experiment and their times into one file each.

    The same runs give the same bytes. Nothing is lost if the process is killed:
    the files in `runs/` are removed only when the packed file is complete, and
    runs that are in both are read once. Only the process that performs the runs
    may call this function.

    Args:
        folder: folder of the experiment.

    Raises:
        ValueError: See `read`. The files are not changed.
    """
    folder = pathlib.Path(folder)
    runs, times = _loose_runs(folder), folder / TIMES
    if runs:
        write_packed(folder / PACKED_RUNS, map(_line_of_run, read(folder)))
    for path in runs:
        path.unlink()
    with contextlib.suppress(OSError):  # the folder is not empty
        (folder / "runs").rmdir()
    if times.exists():
        lines = map(_line, map(_plain, read_times(folder)))
        write_packed(folder / PACKED_TIMES, lines)
        times.unlink()


def write_packed(path, lines):
    """Writes a compressed file of lines, given as bytes."""
    content = io.BytesIO()
    # No name and no date, so that equal runs give equal files.
    with gzip.GzipFile("", "wb", 9, content, mtime=0) as file:
        file.write(b"".join(lines))
    disk.write(path, content.getvalue())


def read(folder):
    """Returns all runs of an experiment in a fixed order.

    Args:
        folder: folder of the experiment.

    Returns:
        List of dicts. An incomplete last line of a file is ignored.

    Raises:
        ValueError: If a line is invalid, if a packed file is damaged, or if two
            runs with the same task, method, stage, configuration and seed
            differ.
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
    """Returns the runs of one task and one method, see `read`.

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
    """Returns the runs of some files and of the packed file, each one once."""
    runs = {}
    # Read the packed file last: it contains the runs that another process has
    # packed and removed from the other files in the meantime.
    for path in [*paths, pathlib.Path(folder, PACKED_RUNS)]:
        for run in _lines_if_any(path):
            validate(run)
            run = {"curves": {}, **run}
            key = _key(run)
            if key in runs and text_of(runs[key]) != text_of(run):
                raise ValueError(
                    f"{path} contains two different runs with the same "
                    "settings. Remove one of them. "
                    f"Received: {' '.join(map(str, key))}"
                )
            runs[key] = run
    return list(runs.values())


def read_lines(path):
    """Returns the values in a file of JSON lines.

    An incomplete last line is ignored, and `null` becomes NaN. A file whose
    name ends with `.gz` is decompressed.

    Raises:
        ValueError: If a line is invalid, or if the packed file is damaged.
    """
    path = pathlib.Path(path)
    if path.suffix != ".gz":
        return _values(path, path.read_bytes())
    status = path.stat()
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    return list(_packed_values(path, stamp))


# Every method of every task reads the same packed file.
@functools.lru_cache(maxsize=2)
def _packed_values(path, stamp):
    del stamp  # only a key of the cache: it changes when the file does
    content = path.read_bytes()
    try:
        # `decompress` accepts an empty file, which is damaged here.
        lines = gzip.decompress(content) if content else None
    except (OSError, EOFError, zlib.error):
        lines = None
    if lines is None:
        raise ValueError(
            f"{path} is damaged. Restore it from a backup, or delete it, which "
            "deletes all its runs. "
            f"Received: {content[:20]!r}, {len(content)} bytes"
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
                f"Line {number} of {path} is not valid JSON. Remove it. "
                f"Received: {line[:60]!r}"
            ) from error
    return values


def _lines_if_any(path):
    try:
        return read_lines(path)
    except FileNotFoundError:
        return []


def read_times(folder):
    """Returns the sorted CPU times of the runs."""
    # Equal lines in one file are different runs. Equal lines in both files are
    # the same run.
    loose, packed = (
        collections.Counter(map(text_of, _lines_if_any(path)))
        for path in (
            pathlib.Path(folder, TIMES),
            pathlib.Path(folder, PACKED_TIMES),
        )
    )
    return [json.loads(text) for text in sorted((loose | packed).elements())]


def read_meta(folder):
    """Returns the content of `meta.json`, or `{}` if it is missing."""
    path = pathlib.Path(folder, "meta.json")
    return read_json(path) if path.exists() else {}


def read_json(path):
    """Returns the value in a JSON file."""
    content = pathlib.Path(path).read_bytes()
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON. Remove it. Received: {content[:60]!r}"
        ) from error


def validate(record):
    """Raises a `ValueError` if the record of a run is invalid."""
    missing = [key for key in KEYS if key not in record]
    if missing:
        raise ValueError(
            f"`record` must have the keys {', '.join(KEYS)}. "
            f"Received: no {', '.join(missing)}"
        )
    if record["stage"] not in STAGES:
        raise ValueError(
            f"`stage` must be one of {', '.join(STAGES)}. "
            f"Received: {record['stage']}"
        )
    if not isinstance(record["seed"], numbers.Integral):
        raise ValueError(
            f"`seed` must be an integer. Received: {record['seed']}"
        )
    curves = record.get("curves", {})
    if len({len(curve) for curve in curves.values()}) > 1:
        lengths = {key: len(curve) for key, curve in curves.items()}
        raise ValueError(
            f"All `curves` must have the same length. Received: {lengths}"
        )
    if record["stage"] == "tuning":
        keys = [*curves, *record["result"]]
        tested = sorted({key for key in keys if key.startswith("test_")})
        if tested:
            raise ValueError(
                'A record with the `stage` "tuning" must not contain results '
                f"on test data. Received: {', '.join(tested)}"
            )


def order_of(configuration):
    """Returns a sort key for configurations: numbers by size, before text."""
    return [
        (key, 0, value, "")
        if isinstance(value, (int, float))
        else (key, 1, 0, str(value))
        for key, value in sorted(configuration.items())
    ]


def text_of(value):
    """Returns JSON with sorted keys, which is the same for equal values."""
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
    """Converts a value to JSON types and rounds floats."""
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
