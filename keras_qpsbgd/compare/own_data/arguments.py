"""Arguments of `kq.compare`: refused before hours of runs, not after."""

import importlib.util
import numbers
import re

from tensorflow import keras

from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.plan import FIRST_TUNING_SEED

INSTALL = 'python -m pip install "keras_qpsbgd[compare]"'


def check_packages(processes, out):
    """Raises an `ImportError` if a package is missing."""
    needed = ["matplotlib", "scipy"]
    needed += ["filelock"] if out is not None else []
    needed += ["loky"] if processes != 1 else []
    missing = [
        name for name in needed if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ImportError(
            f"`compare` needs {', '.join(missing)}. Install with\n\n"
            f"    {INSTALL}"
        )


def check_numbers(**values):
    """Raises a `ValueError` unless all are positive integers."""
    for name, value in values.items():
        whole = isinstance(value, numbers.Integral)
        if not whole or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"`{name}` must be a positive integer. "
                f"Received: {name}={value!r}"
            )


def check_seeds(seeds):
    """Fresh seeds must not reach those of tuning."""
    check_numbers(seeds=seeds)
    if seeds > FIRST_TUNING_SEED:
        raise ValueError(
            f"`seeds` must be at most {FIRST_TUNING_SEED}. "
            f"Received: seeds={seeds}"
        )


def check_name(name):
    """It is part of file names."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w .+-]*", name):
        raise ValueError(
            "`name` must be text of letters, digits, spaces and . + - _. "
            f"Received: name={name!r}"
        )


def methods_of(keys):
    """Keys of methods, each once.

    Raises:
        ValueError: there is none, or an unknown one, or one without the method
            whose configuration it takes.
    """
    if not isinstance(keys, (list, tuple)) or not keys:
        raise ValueError(
            f"`methods` must be a list of {', '.join(METHODS)}. "
            f"Received: methods={keys!r}"
        )
    unknown = [key for key in keys if key not in METHODS]
    if unknown:
        raise ValueError(
            f"`methods` must be among {', '.join(METHODS)}; solvers that you "
            "registered are not. Received: "
            f"{', '.join(map(repr, unknown))} in methods={keys!r}"
        )
    for key in keys:
        like = METHODS[key].like
        if like is not None and like not in keys:
            raise ValueError(
                f'`methods` must have "{like}", too: "{key}" takes the '
                f"configuration that is chosen for it. Received: {keys!r}"
            )
    return list(dict.fromkeys(keys))


def reference_of(key, methods):
    """The method that others are compared with.

    Raises:
        ValueError: it is not among them.
    """
    if key in methods:
        return key
    if key == "native":  # the default
        return methods[0]
    raise ValueError(
        f"`reference` must be one of `methods`, {', '.join(methods)}. "
        f"Received: reference={key!r}"
    )


def grids_of(given, methods, default):
    """Grids of all methods that have one of their own.

    Args:
        given: `None`, or a dict of a user.
        methods: keys of methods.
        default: dict, see `default_grids`.

    Raises:
        ValueError: a grid is no list of configurations, or methods have
            different numbers of configurations.
    """
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise ValueError(
            "`grids` must be a dict of lists of configurations by method. "
            f"Received: {type(given).__name__}"
        )
    own = [key for key in methods if METHODS[key].like is None]
    for key, grid in given.items():
        if key not in own:
            raise ValueError(
                f"`grids` must have keys among {', '.join(own)}. "
                f"Received: {key!r}"
            )
        _check_grid(key, grid, default[key])
    found = {key: list(given.get(key, default[key])) for key in own}
    # Frozen kernels may leave nothing to choose.
    counts = {
        key: len(grid)
        for key, grid in found.items()
        if key in given or grid != [{}]
    }
    if len(set(counts.values())) > 1:
        raise ValueError(
            "`grids` must give every method the same number of configurations "
            "(methods without an entry have "
            f"{len(default['native'])}). Received: {counts}"
        )
    return found


def _check_grid(key, grid, default):
    names = sorted({name for one in default for name in one} | {"real_rate"})
    is_list = isinstance(grid, (list, tuple)) and len(grid) > 0
    if not is_list or not all(isinstance(one, dict) for one in grid):
        raise ValueError(
            f'`grids["{key}"]` must be a list of dicts, such as '
            f"{default[:1]}. Received: {grid!r}"
        )
    for one in grid:
        rates = [one[name] for name in names if name in one]
        if not all(isinstance(rate, numbers.Real) for rate in rates):
            raise ValueError(
                f'`grids["{key}"]` must have numbers for {", ".join(names)}. '
                f"Received: {one}"
            )
        if key != "frozen" and "rate" not in one:
            raise ValueError(
                f'`grids["{key}"]` must have a "rate" in every configuration. '
                f"Received: {one}"
            )
    texts = [sorted(one.items()) for one in grid]
    if any(text in texts[:place] for place, text in enumerate(texts)):
        raise ValueError(
            f'`grids["{key}"]` must not have a configuration twice. '
            f"Received: {grid}"
        )


def loss_of(loss):
    """A function of (y, outputs), of a name, a function or a Keras loss.

    Returns:
        `None` for `None`.

    Raises:
        ValueError: Keras knows no such loss.
    """
    if loss is None:
        return None
    try:
        found = keras.losses.get(loss)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`loss` must be a Keras loss, its name or a function of (y_true, "
            f"y_pred). Received: loss={loss!r}"
        ) from error
    # Its mean is taken here, whatever its `reduction`.
    return found.call if isinstance(found, keras.losses.Loss) else found


def loss_name(loss):
    """What tells a loss from another, in a file."""
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
