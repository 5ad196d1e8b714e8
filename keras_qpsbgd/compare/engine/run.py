"""Performs the missing runs of a folder and shows a progress bar.

Every run is written to a file as soon as it finishes, see `records`. Finished
runs are not repeated, so an interrupted command can be resumed.
"""

import contextlib
import sys

from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.task import FRESH


def num_missing(items):
    """Returns the number of missing runs."""
    return sum(item.num_missing() for item in items)


def make_missing(items, pool, verbose=1):
    """Performs all missing runs.

    Args:
        items: list of `Item` of one folder.
        pool: an `InProcess` or a `Processes`, see `pool.open_pool`.
        verbose: 1 shows a progress bar, 0 shows nothing.
    """
    bar = _bar(num_missing(items)) if verbose else None

    def report(task, method, stage, seed, seconds):
        if bar is not None:
            bar.add(1)
        line = {
            "task": task,
            "method": method,
            "stage": stage,
            "seed": seed,
            "seconds": seconds,
        }
        records.append_time(items[0].folder, line)

    # Items that use the configuration of another come last.
    for depends in (False, True):
        wave = [item for item in items if item.depends == depends]
        if depends:
            for item in wave:
                item.missing(FRESH)  # raises if no configuration is chosen
        wave = [item for item in wave if item.num_missing()]
        # Start long ones first, so that all processes end at about the same
        # time.
        wave.sort(key=lambda item: -item.cost)
        if wave:
            pool.make(wave, report)


def _bar(missing):
    # A log file gets one line per minute. A notebook is not a terminal, but
    # shows the bar.
    is_shown = sys.stdout.isatty() or "ipykernel" in sys.modules
    interval = 0.05 if is_shown else 60.0
    return keras.utils.Progbar(missing, interval=interval, unit_name="run")


def check_backends(solvers):
    """Checks that every solver can be used. A license may be missing.

    Args:
        solvers: list of names or configurations. `None` is skipped.

    Raises:
        BackendUnavailable: If a solver cannot be used.
    """
    for solver in solvers:
        if solver is not None:
            backends.get(solver).check(num_variables=2, num_columns=1)


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
                    f"Another command is already running {folder.name}. "
                    "Wait until it ends, or choose another folder with `out`. "
                    f"Received: {folder}"
                ) from error
        yield
