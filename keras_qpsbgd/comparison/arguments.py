"""Checks the arguments of `kq.compare` before anything is trained."""

import importlib.util
import numbers
import re

from tensorflow import keras

from keras_qpsbgd.comparison.methods import METHODS
from keras_qpsbgd.comparison.plan import FIRST_TUNING_SEED

INSTALL = 'python -m pip install "keras_qpsbgd[compare]"'


def check_packages(processes, out):
    """Raises an `ImportError` if a required package is missing."""
    needed = ["matplotlib", "scipy"]
    needed += ["filelock"] if out is not None else []
    needed += ["joblib"] if processes != 1 else []
    missing = [
        name for name in needed if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ImportError(
            f"`compare` requires {', '.join(missing)}. Install with:\n\n"
            f"    {INSTALL}"
        )


def check_numbers(**values):
    """Raises a `ValueError` unless all values are positive integers."""
    for name, value in values.items():
        whole = isinstance(value, numbers.Integral)
        if not whole or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"`{name}` must be a positive integer. "
                f"Received: {name}={value!r}"
            )


def check_seeds(seeds):
    """Raises a `ValueError` if the fresh seeds overlap the tuning seeds."""
    check_numbers(seeds=seeds)
    if seeds > FIRST_TUNING_SEED:
        raise ValueError(
            f"`seeds` must be at most {FIRST_TUNING_SEED}. "
            f"Received: seeds={seeds}"
        )


def check_name(name):
    """Raises a `ValueError` unless the name can be part of a file name."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w .+-]*", name):
        raise ValueError(
            "`name` must be a string of letters, digits, spaces and the "
            "characters `. + - _`, and start with a letter, a digit or `_`. "
            f"Received: name={name!r}"
        )


def methods_of(keys):
    """Returns the keys of the methods without duplicates.

    Raises:
        ValueError: If the list is empty, if a method is unknown, or if a method
            reuses the configuration of one that is not in the list.
    """
    if not isinstance(keys, (list, tuple)) or not keys:
        raise ValueError(
            "`methods` must be a non-empty list with elements from "
            f"{', '.join(METHODS)}. Received: methods={keys!r}"
        )
    unknown = [key for key in keys if key not in METHODS]
    if unknown:
        raise ValueError(
            f"`methods` must be a list with elements from {', '.join(METHODS)} "
            "(custom backends are not supported). Received: "
            f"{', '.join(map(repr, unknown))} in methods={keys!r}"
        )
    for key in keys:
        like = METHODS[key].like
        if like is not None and like not in keys:
            raise ValueError(
                f'`methods` must also contain "{like}", because "{key}" uses '
                f"its configuration. Received: methods={keys!r}"
            )
    return list(dict.fromkeys(keys))


def reference_of(key, methods):
    """Returns the key of the method that the others are compared with.

    Args:
        key: key of a method, or `None` for the default.
        methods: keys of the methods.

    Raises:
        ValueError: If `key` is not among `methods`.
    """
    if key is None:
        return "native" if "native" in methods else methods[0]
    if key in methods:
        return key
    raise ValueError(
        f"`reference` must be one of `methods` ({', '.join(methods)}). "
        f"Received: reference={key!r}"
    )


def grids_of(given, methods, default):
    """Returns the grids of all methods that are tuned.

    Args:
        given: dict that the user passed, or `None`.
        methods: keys of the methods.
        default: dict of the default grids, see `default_grids`.

    Raises:
        ValueError: If a grid is not a list of configurations, or if the grids
            have different sizes.
    """
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise ValueError(
            "`grids` must be a dict that maps methods to lists of "
            f"configurations. Received: {type(given).__name__}"
        )
    tuned = [key for key in methods if METHODS[key].like is None]
    for key, grid in given.items():
        if key not in tuned:
            raise ValueError(
                f"The keys of `grids` must be among {', '.join(tuned)}. "
                f"Received: {key!r}"
            )
        _check_grid(key, grid, default[key])
    found = {key: list(given.get(key, default[key])) for key in tuned}
    # With frozen kernels there may be nothing to tune.
    counts = {
        key: len(grid)
        for key, grid in found.items()
        if key in given or grid != [{}]
    }
    if len(set(counts.values())) > 1:
        raise ValueError(
            "`grids` must have the same number of configurations for every "
            "method (a method without an entry has "
            f"{len(default['native'])}). Received: {counts}"
        )
    return found


def _check_grid(key, grid, default):
    names = sorted({name for one in default for name in one} | {"real_rate"})
    is_list = isinstance(grid, (list, tuple)) and len(grid) > 0
    if not is_list or not all(isinstance(one, dict) for one in grid):
        raise ValueError(
            f'`grids["{key}"]` must be a non-empty list of dicts, such as '
            f"{default[:1]}. Received: {grid!r}"
        )
    for one in grid:
        rates = [one[name] for name in names if name in one]
        if not all(isinstance(rate, numbers.Real) for rate in rates):
            raise ValueError(
                f'The values of {", ".join(names)} in `grids["{key}"]` must be '
                f"numbers. Received: {one}"
            )
        if key != "frozen" and "rate" not in one:
            raise ValueError(
                f'Every configuration in `grids["{key}"]` must have a "rate". '
                f"Received: {one}"
            )
    texts = [sorted(one.items()) for one in grid]
    if any(text in texts[:place] for place, text in enumerate(texts)):
        raise ValueError(
            f'`grids["{key}"]` must not contain duplicates. Received: {grid}'
        )


def loss_of(loss):
    """Converts a name, a function or a Keras loss to a function.

    Returns:
        A function of `(y_true, y_pred)`, or `None` if `loss` is `None`.

    Raises:
        ValueError: If Keras does not know the loss.
    """
    if loss is None:
        return None
    try:
        found = keras.losses.get(loss)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`loss` must be a Keras loss, the name of one, or a function of "
            f"`(y_true, y_pred)`. Received: loss={loss!r}"
        ) from error
    # `compare` computes the mean itself, so `reduction` is ignored.
    return found.call if isinstance(found, keras.losses.Loss) else found


def loss_name(loss):
    """Returns text that identifies a loss in the settings file."""
    if loss is None or isinstance(loss, str):
        return loss
    if isinstance(loss, keras.losses.Loss):
        settings = getattr(loss, "get_config", dict)()
        settings = {
            name: value
            for name, value in sorted(settings.items())
            if isinstance(value, (bool, int, float, str))
        }
        return f"{type(loss).__name__} {settings}"
    return getattr(loss, "__name__", type(loss).__name__)
