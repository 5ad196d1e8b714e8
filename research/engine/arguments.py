"""Checks the arguments of `kq.compare` before anything is trained."""

import dataclasses
import hashlib
import importlib.util
import numbers
import re

import numpy as np
import tensorflow as tf
from tensorflow import keras

from research.engine.methods import METHODS
from research.engine.task import Split

INSTALL = 'python -m pip install "keras_qpsbgd[compare]"'
FORMS = "`(x, y)`, or `(x, y, rows)` for the nodes of a graph"


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
    is_list = isinstance(keys, (list, tuple)) and len(keys) > 0
    if is_list and "sign" in keys:
        raise ValueError(
            'The method "sign" was removed. Use "signum", the same rule '
            f"without couplings. Received: methods={keys!r}"
        )
    if not is_list or any(key not in METHODS for key in keys):
        raise ValueError(
            "`methods` must be a non-empty list with elements from "
            f"{', '.join(METHODS)} (custom backends are not supported). "
            f"Received: methods={keys!r}"
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
    tuned = [key for key in methods if METHODS[key].like is None]
    if not isinstance(given, dict) or not given.keys() <= set(tuned):
        raise ValueError(
            "`grids` must be a dict that maps methods to lists of "
            f"configurations, with keys among {', '.join(tuned)}. "
            f"Received: grids={given!r}"
        )
    for key, grid in given.items():
        is_list = isinstance(grid, (list, tuple)) and len(grid) > 0
        if not is_list or not all(
            isinstance(one, dict) and (key == "frozen" or "rate" in one)
            for one in grid
        ):
            raise ValueError(
                f'`grids["{key}"]` must be a non-empty list of dicts with a '
                f'"rate", such as {default[key][:1]}. Received: {grid!r}'
            )
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


def loss_name(loss):
    """Returns text that identifies a loss in the settings file."""
    if loss is None or isinstance(loss, str):
        return loss
    if isinstance(loss, keras.losses.Loss):
        settings = {
            name: value
            for name, value in sorted(loss.get_config().items())
            if isinstance(value, (bool, int, float, str))
        }
        return f"{type(loss).__name__} {settings}"
    return getattr(loss, "__name__", type(loss).__name__)


# The data


@dataclasses.dataclass(frozen=True)
class Data:
    """The training, validation and test splits.

    Attributes:
        splits: dict of `Split`, whose inputs are arrays or SciPy's matrices in
            coordinate format, which can be pickled.
        is_graph: whether the rows are nodes of a graph.
    """

    splits: dict
    is_graph: bool

    def fingerprint(self):
        """Returns a hash that is the same for equal data in every process."""
        found = hashlib.sha256()
        for split in self.splits.values():
            for part in (*split.inputs, split.rows, split.y):
                for array in _arrays(part):
                    found.update(f"{array.dtype}{array.shape}".encode())
                    found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def tensors(self):
        """Returns the splits with tensors as inputs.

        Splits that share an array share the tensor.
        """
        made = {}
        for split in self.splits.values():
            for part in split.inputs:
                if id(part) not in made:
                    made[id(part)] = _tensor(part)
        return {
            name: dataclasses.replace(
                split, inputs=tuple(made[id(part)] for part in split.inputs)
            )
            for name, split in self.splits.items()
        }


def _arrays(part):
    """Returns the arrays that an input consists of."""
    if not hasattr(part, "tocoo"):
        return (part,)
    indices = np.stack([part.row, part.col], axis=1).astype("int64")
    return indices, part.data, np.array(part.shape)


def _tensor(part):
    if not hasattr(part, "tocoo"):
        return tf.constant(part)
    return tf.sparse.reorder(tf.SparseTensor(*_arrays(part)))


def read_data(train, validation, test, has_loss):
    """Reads the three splits that a user passes.

    Args:
        train, validation, test: `(x, y)` or `(x, y, rows)`.
        has_loss: whether the user passes a `loss`. If not, `y` contains
            classes.

    Returns:
        A `Data`.

    Raises:
        ValueError: If the data is invalid.
    """
    given = {"train": train, "validation": validation, "test": test}
    lengths = {
        name: len(value) if isinstance(value, (tuple, list)) else None
        for name, value in given.items()
    }
    length = lengths["train"]
    if length not in (2, 3) or set(lengths.values()) != {length}:
        raise ValueError(
            "`train`, `validation` and `test` must all have the same form, "
            f"{FORMS}. Received: tuples of length {lengths} (`None` if it is "
            "not a tuple)"
        )
    known = {}
    splits = {
        name: _split(name, value, has_loss, known)
        for name, value in given.items()
    }
    is_graph = length == 3
    _check_alike(splits, 1 if is_graph else None)
    return Data(splits, is_graph)


def _split(name, value, has_loss, known):
    x, y, *rows = value
    parts = x if isinstance(x, (tuple, list)) else (x,)
    if rows and len(parts) != 2:
        raise ValueError(
            f"The `x` of `{name}` must be `(features, adjacency)` if `rows` is "
            f"given. Received: {len(parts)} inputs"
        )
    inputs = tuple(_input(name, part, known) for part in parts)
    y = _targets(name, y, has_loss)
    for part in inputs[: 1 if rows else None]:
        if not part.shape or part.shape[0] != len(y):
            raise ValueError(
                f"`x` and `y` of `{name}` must have the same length. "
                f"Received: shapes {tuple(part.shape)} and {y.shape}"
            )
    rows = _rows(name, rows[0], len(y)) if rows else np.arange(len(y))
    if not len(rows):
        raise ValueError(
            f"`{name}` must not be empty. Received: {len(y)} rows, none of "
            "which is selected"
        )
    return Split(inputs, rows, y)


def _input(name, part, known):
    """Returns an array or a matrix, always the same one for an object."""
    if id(part) in known:
        return known[id(part)][1]
    if isinstance(part, tf.SparseTensor):
        found = _matrix(name, part.values, part.indices.numpy().T, part.shape)
    elif hasattr(part, "tocoo"):
        matrix = part.tocoo()
        places = matrix.row, matrix.col
        found = _matrix(name, matrix.data, places, matrix.shape)
    else:
        found = _numeric(f"`x` of `{name}`", part)
    # Keep a reference to the object, so that its id is not reused.
    known[id(part)] = part, found
    return found


def _matrix(name, values, places, shape):
    from scipy import sparse

    values = _numeric(f"`x` of `{name}`", values)
    return sparse.coo_matrix((values, places), tuple(shape))


def _numeric(what, value):
    """Returns a float32 array, or an int32 array for integers.

    Raises:
        ValueError: If there is text, or if there are NaNs or infinities, which
            methods treat differently.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{what} must be numeric. Convert text to integers with "
            "`numpy.unique(text, return_inverse=True)[1]`. "
            f"Received: dtype {array.dtype}"
        )
    infinite = np.argwhere(~np.isfinite(array))
    if len(infinite):
        raise ValueError(
            f"{what} must be finite. Received: {len(infinite)} NaNs or "
            f"infinities, the first at {infinite[0].tolist()}"
        )
    return array.astype("int32" if array.dtype.kind in "iu" else "float32")


def _targets(name, y, has_loss):
    what = f"`y` of `{name}`"
    y = np.asarray(y)
    y = _numeric(what, y.astype("int32") if y.dtype == bool else y)
    if has_loss:
        return y
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "f" or y.ndim != 1:
        raise ValueError(
            f"{what} must contain integer classes and have the shape "
            "`(rows,)`. Use `y.argmax(axis=1)` for one-hot classes, and pass "
            "a `loss`, such as `loss='mse'`, for regression. "
            f"Received: y of shape {y.shape}, dtype {y.dtype}"
        )
    if len(y) and y.min() < 0:
        raise ValueError(
            f"{what} must contain classes that start from 0. "
            f"Received: class {y.min()}"
        )
    return y


def _rows(name, rows, length):
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (length,):
        return np.flatnonzero(rows)
    whole = rows.dtype.kind in "iu" and rows.ndim == 1
    if not whole or not ((rows >= 0) & (rows < length)).all():
        raise ValueError(
            f"`rows` of `{name}` must be a boolean mask over all {length} "
            "nodes, or an array of node indices below that. "
            f"Received: shape {rows.shape}, dtype {rows.dtype}"
        )
    return rows.astype("int64")


def _check_alike(splits, num_inputs):
    # For graphs, check only the features: the splits may be graphs of
    # different sizes.
    shapes = {
        name: [tuple(part.shape[1:]) for part in split.inputs[:num_inputs]]
        + [split.y.shape[1:]]
        for name, split in splits.items()
    }
    first = shapes["train"]
    for name, others in shapes.items():
        if others != first:
            raise ValueError(
                f"`{name}` must have inputs and targets of the same shapes as "
                f"`train`, except for the rows. Received: {others} instead of "
                f"{first}"
            )
