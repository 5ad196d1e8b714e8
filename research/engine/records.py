"""Records of finished jobs on disk: one line of JSON for each job.

A job is a dictionary of plain values that identifies a run, such as its task,
method, settings and seed. A record is the job together with its result. The
runs of a comparison or of an experiment are

    OUT/runs.jsonl       results
    OUT/times.jsonl      CPU seconds, which vary
    OUT/meta.json        command, date, packages, machines

A record of such a run is

    {"task": "adult-2layer", "method": "QP-SBGD", "stage": "fresh",
     "configuration": {"rate": 0.02}, "seed": 0,
     "curves": {"epoch": [0, 1], "test_accuracy": [0.5, 0.6]},
     "result": {"epoch": 1, "test_accuracy": 0.6}}

The stage is "tuning" for runs that compare configurations, only on validation
data, and "fresh" for runs of the chosen configuration with seeds that were not
used for the choice. Files of runs contain no times, so that the same command
gives the same records. If a run diverged, its non-finite numbers are `null` in
the file and NaN when read.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import math
import numbers
import os
import pathlib
import zlib

import numpy as np

from keras_qpsbgd import disk

TIMES = "times.jsonl"
STAGES = ("tuning", "fresh")
RUN = ("task", "method", "stage", "configuration", "seed")
SIGNIFICANT_DIGITS = 6


class Store:
    """The records in a file of JSON lines, found by their jobs.

    A record is appended when its job has finished. If the process is killed,
    an incomplete last line is ignored, and the next record overwrites it.
    `pack` moves all records to the compressed file `NAME.jsonl.gz`. Both files
    are read.

    Args:
        path: Path of the file, which ends with `.jsonl`.
        names: Tuple of strings. The keys of a record that identify its job.
        check: Function (optional) that raises a `ValueError` if a record is
            invalid.
        code: String (optional). The `code_version` of records to be added.

    Raises:
        ValueError: If a line is invalid, if a packed file is damaged, or if two
            records of the same job differ.
    """

    def __init__(self, path, names, check=None, code=None):
        self.path = pathlib.Path(path)
        self._names = names
        self._check = check or (lambda record: None)
        self._code = code
        self._found = {}
        # The packed file comes last. If packing was interrupted, it contains
        # records that are still in the other file.
        for one in (self.path, self.packed):
            if one.exists():
                for record in read_lines(one):
                    self.insert(record, one)

    @property
    def packed(self):
        """Path of the compressed file."""
        return self.path.with_name(f"{self.path.name}.gz")

    @property
    def records(self):
        """List of all records, in the order in which they were found."""
        return list(self._found.values())

    def __len__(self):
        return len(self._found)

    def __contains__(self, job):
        return self._key(job) in self._found

    def __getitem__(self, job):
        return self._found[self._key(job)]

    def _key(self, job):
        return text_of({name: job[name] for name in self._names})

    def insert(self, record, path):
        """Inserts a record from an older file, which does not change."""
        self._check(record)
        key = self._key(record)
        if key in self._found:
            if text_of(self._found[key]) != text_of(record):
                raise ValueError(
                    f"{path} contains two different runs with the same "
                    f"settings. Remove one of them. Received: {key}"
                )
            return
        self._found[key] = record

    def add(self, record, seconds=None):
        """Appends a record to the file.

        Floats are rounded to 6 significant digits, except those of the job.
        Only one process may write a file.

        Args:
            record: Dictionary.
            seconds: Float (optional). CPU seconds of the job, which `Runs`
                stores.
        """
        del seconds
        if self._code is not None:
            record = {**record, "code": self._code}
        self._check(record)
        line = self._line(record)
        append(self.path, line)
        self.insert(_with_nan(json.loads(line)), self.path)

    def _line(self, record):
        job = {name: record[name] for name in self._names}
        return line_of({**plain(record), **plain(job, digits=17)})

    def pack(self, order=None):
        """Moves all records to the compressed file.

        The same records give the same bytes. Nothing is lost if the process is
        killed.

        Args:
            order: Function (optional) of a record that returns a sort key.
                Defaults to the job as text.
        """
        if not self.path.exists():
            return
        write_packed(
            self.packed,
            map(self._line, sorted(self.records, key=order or self._key)),
        )
        self.path.unlink()


# Runs of a comparison


class Runs(Store):
    """The runs of a comparison or of an experiment, with their CPU times.

    Args:
        folder: Path of the folder.
        code: String (optional). See `Store`.
    """

    def __init__(self, folder, code=None):
        self.folder = pathlib.Path(folder)
        super().__init__(self.folder / "runs.jsonl", RUN, _check_stage, code)

    def add(self, record, seconds=None):
        """Appends a run, and its CPU seconds to the file of times."""
        super().add(record)
        if seconds is not None:
            names = ("task", "method", "stage", "seed")
            time = {name: record[name] for name in names}
            line = line_of(plain({**time, "seconds": seconds}))
            append(self.folder / TIMES, line)


def read(folder):
    """Returns a list of all runs in a folder, in a fixed order."""
    return sorted(Runs(folder).records, key=order_of_run)


def order_of_run(run):
    """Returns the sort key of a run."""
    return (
        run["task"],
        run["method"],
        STAGES.index(run["stage"]),
        order_of(run["configuration"]),
        run["seed"],
    )


def _check_stage(record):
    """Raises a `ValueError` if a tuning run has results on test data."""
    keys = [*record.setdefault("curves", {}), *record["result"]]
    tested = sorted({key for key in keys if key.startswith("test_")})
    if tested and record["stage"] == "tuning":
        raise ValueError(
            'A record with the `stage` "tuning" must not contain results on '
            f"test data. Received: {', '.join(tested)}"
        )


def pack(folder):
    """Packs the runs of a folder and their times into one file each."""
    folder = pathlib.Path(folder)
    Runs(folder).pack(order_of_run)
    times = folder / TIMES
    if times.exists():
        lines = [line_of(plain(time)) for time in read_times(folder)]
        write_packed(times.with_name(f"{TIMES}.gz"), lines)
        times.unlink()


def read_times(folder):
    """Returns the sorted CPU times of the runs."""
    # A line in both files is the same run: packing was interrupted.
    texts = []
    for name in (f"{TIMES}.gz", TIMES):
        path = pathlib.Path(folder, name)
        found = map(text_of, read_lines(path)) if path.exists() else ()
        packed = set(texts)
        texts += [text for text in found if text not in packed]
    return [json.loads(text) for text in sorted(texts)]


def read_meta(folder):
    """Returns the content of `meta.json`, or `{}` if it is missing."""
    path = pathlib.Path(folder, "meta.json")
    return read_json(path) if path.exists() else {}


@contextlib.contextmanager
def locked(folders):
    """Locks folders, so that two commands do not perform the same runs.

    A killed command releases its lock.

    Args:
        folders: list of `pathlib.Path`.

    Raises:
        ValueError: If another command uses one of the folders.
    """
    import filelock

    with contextlib.ExitStack() as locks:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(folder / ".lock", timeout=0)
            try:
                locks.enter_context(lock)
            except filelock.Timeout as error:
                raise ValueError(
                    f"Another command is already using {folder.name}. "
                    "Wait until it ends, or choose another folder with `out`. "
                    f"Received: {folder}"
                ) from error
        yield


# Files


def append(path, line):
    """Appends a line of bytes after the last complete one."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":  # incomplete, after a kill
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def write_packed(path, lines):
    """Writes a compressed file of lines, given as bytes."""
    content = io.BytesIO()
    # No name and no date, so that equal runs give equal files.
    with gzip.GzipFile("", "wb", 9, content, mtime=0) as file:
        file.write(b"".join(lines))
    disk.write(path, content.getvalue())


def read_lines(path):
    """Returns the values in a file of JSON lines.

    An incomplete last line is ignored, and `null` becomes NaN. A file whose
    name ends with `.gz` is decompressed.

    Raises:
        ValueError: If a line is invalid, or if the packed file is damaged.
    """
    path = pathlib.Path(path)
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            # `decompress` accepts an empty file, which is damaged here.
            lines = gzip.decompress(content) if content else None
        except (OSError, EOFError, zlib.error):
            lines = None
        if lines is None:
            raise ValueError(
                f"{path} is damaged. Restore it from a backup, or delete it, "
                "which deletes all its runs. "
                f"Received: {content[:20]!r}, {len(content)} bytes"
            )
        content = lines
    values = []
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    for number, line in enumerate(lines, 1):
        try:
            values.append(_with_nan(json.loads(line)))
        except ValueError as error:
            raise ValueError(
                f"Line {number} of {path} is not valid JSON. Remove it. "
                f"Received: {line[:60]!r}"
            ) from error
    return values


def read_json(path):
    """Returns the value in a JSON file."""
    content = pathlib.Path(path).read_bytes()
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON. Remove it. Received: {content[:60]!r}"
        ) from error


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


def line_of(value):
    """Returns a line of JSON as bytes."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return text.encode() + b"\n"


def plain(value, digits=SIGNIFICANT_DIGITS):
    """Converts a value to JSON types and rounds floats."""
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item, digits) for item in value]
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
