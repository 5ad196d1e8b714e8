"""The runs that several calls of `kq.compare` saved in one folder."""

from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.methods import KEYS
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.task import FRESH
from keras_qpsbgd.compare.task import TUNING


def reported_runs(folder, chosen, measure):
    """Returns the fresh runs of all methods in a folder.

    If the grid of a method grew between two calls, the method may have fresh
    runs of several configurations. Only those of the best one are returned.

    Args:
        folder: folder of the records.
        chosen: dict that maps the keys of methods to the configurations that
            were chosen in this call.
        measure: the `Measure` of validation data that chooses them.
    """
    runs = records.read(folder)
    chosen = dict(chosen)
    keys = {KEYS[run["method"]] for run in runs if run["stage"] == FRESH}
    # A method that uses the configuration of another comes after it.
    for key in sorted(keys, key=lambda key: METHODS[key].like is not None):
        like = METHODS[key].like
        if key not in chosen and like is None:
            of_method = tables.select(runs, method=METHODS[key].label)
            chosen[key] = _best(of_method, measure)
        elif key not in chosen and like in chosen:
            chosen[key] = chosen[like]
    return [
        run
        for run in runs
        if run["stage"] == FRESH
        and run["configuration"] == chosen.get(KEYS[run["method"]])
    ]


def _best(runs, measure):
    """Returns the best of the configurations that have fresh runs."""
    tuning = tables.select(runs, stage=TUNING)
    found = statistics.by_configuration(tables.select(runs, stage=FRESH))
    configurations = [configuration for configuration, _ in found]
    if len(configurations) == 1:
        return configurations[0]
    return max(
        configurations,
        key=lambda one: statistics.score(
            [run for run in tuning if run["configuration"] == one], measure
        ),
    )
