"""Makes the missing runs of a folder, with a bar that shows how far it is.

Every run is a line of a file as soon as it is over, see `records`; a run that
is there is not made again. So an interrupted command can be resumed.
"""

import contextlib
import sys

from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.task import FRESH


def num_missing(items):
    """Number of runs to make."""
    return sum(item.num_missing() for item in items)


def make_missing(items, pool, verbose=1):
    """Makes all runs that are missing.

    Args:
        items: list of `Item` of one folder.
        pool: see `pool.open_pool`.
        verbose: 1 shows a progress bar, 0 does not.
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

    # What takes the choice of another comes after all others.
    for depends in (False, True):
        wave = [item for item in items if item.depends == depends]
        if depends:
            for item in wave:
                item.missing(FRESH)  # says here if nothing was chosen
        wave = [item for item in wave if item.num_missing()]
        # Long ones first, so that all processes end at about the same time.
        wave.sort(key=lambda item: -item.cost)
        if wave:
            pool.make(wave, report)


def _bar(missing):
    # A file gets a line a minute. A notebook is no terminal, but shows a bar.
    is_shown = sys.stdout.isatty() or "ipykernel" in sys.modules
    interval = 0.05 if is_shown else 60.0
    return keras.utils.Progbar(missing, interval=interval, unit_name="run")


def check_backends(solvers):
    """Opens every solver that is asked for: a licence may be missing.

    Args:
        solvers: names or configurations; `None` is left out.

    Raises:
        BackendUnavailable: there is one that cannot be used.
    """
    for solver in solvers:
        if solver is not None:
            backends.get(solver).check(num_variables=2, num_columns=1)


@contextlib.contextmanager
def locked(folders):
    """Two commands would make the same runs; a killed one leaves no lock.

    Args:
        folders: list of `pathlib.Path`.

    Raises:
        ValueError: another command is at work in one of them.
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
                    f"Another command is making the runs of {folder.name}: "
                    "wait for its end, or choose another folder by `out`. "
                    f"Received: {folder.parent}"
                ) from error
        yield
