"""Checks the data that a user passes and converts it to one format."""

import dataclasses
import hashlib

import numpy as np
import tensorflow as tf

from keras_qpsbgd.comparison.task import Split

NAMES = ("train", "validation", "test")
FORMS = "`(x, y)`, or `(x, y, rows)` for the nodes of a graph"


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
        for name in NAMES:
            split = self.splits[name]
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

        def tensor(part):
            if id(part) not in made:
                made[id(part)] = _tensor(part)
            return made[id(part)]

        return {
            name: dataclasses.replace(
                split, inputs=tuple(tensor(part) for part in split.inputs)
            )
            for name, split in self.splits.items()
        }

    def head(self, rows):
        """Returns a copy with only the first rows. A graph is not cut."""
        if self.is_graph:
            return self
        return dataclasses.replace(
            self,
            splits={
                name: Split(
                    tuple(part[:rows] for part in split.inputs),
                    split.rows[:rows],
                    split.y[:rows],
                )
                for name, split in self.splits.items()
            },
        )

    def with_columns(self):
        """Returns a copy with targets of shape `(rows, 1)`, not `(rows,)`."""
        if self.splits["train"].y.ndim != 1:
            return self
        return dataclasses.replace(
            self,
            splits={
                name: dataclasses.replace(split, y=split.y[:, None])
                for name, split in self.splits.items()
            },
        )


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


def read(train, validation, test, has_loss):
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
    lengths = set()
    for name, value in given.items():
        if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
            raise ValueError(
                f"`{name}` must be {FORMS}. Received: {_describe(value)}"
            )
        lengths.add(len(value))
    if len(lengths) > 1:
        raise ValueError(
            "`train`, `validation` and `test` must all have the same form, "
            f"{FORMS}. Received: {', '.join(map(_describe, given.values()))}"
        )
    known = {}
    splits = {
        name: _split(name, value, has_loss, known)
        for name, value in given.items()
    }
    is_graph = lengths == {3}
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
        found = _number(name, part)
    # Keep a reference to the object, so that its id is not reused.
    known[id(part)] = part, found
    return found


def _matrix(name, values, places, shape):
    from scipy import sparse

    return sparse.coo_matrix((_number(name, values), places), tuple(shape))


def _number(name, value):
    """Returns a float32 array, or an int32 array for integer inputs."""
    array = _array(f"`x` of `{name}`", value)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"`x` of `{name}` must be numeric. Received: dtype {array.dtype}"
        )
    _check_finite(f"`x` of `{name}`", array)
    return array.astype("int32" if array.dtype.kind in "iu" else "float32")


def _check_finite(what, array):
    """Raises a `ValueError` if there are NaNs or infinities.

    Methods treat them differently, which would distort the comparison.
    """
    if array.dtype.kind != "f" or not array.size or not array.ndim:
        return
    finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{what} must be finite. Received: NaN or infinity in "
            f"{(~finite).sum()} of {len(array)} rows, first in row "
            f"{finite.argmin()}"
        )


def _array(what, value):
    try:
        return np.asarray(value)
    except Exception as error:
        raise ValueError(
            f"{what} must be an array. Received: {_describe(value)}"
        ) from error


def _targets(name, y, has_loss):
    y = _array(f"`y` of `{name}`", y)
    if y.dtype.kind not in "fiub":
        raise ValueError(
            f"`y` of `{name}` must be numeric. Convert text labels to integers "
            "with `numpy.unique(y, return_inverse=True)[1]`. "
            f"Received: dtype {y.dtype}"
        )
    _check_finite(f"`y` of `{name}`", y)
    if has_loss:
        return y.astype("float32" if y.dtype.kind == "f" else "int32")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "f" or y.ndim != 1:
        raise ValueError(
            f"`y` of `{name}` must contain integer classes and have the shape "
            "`(rows,)`. Use `y.argmax(axis=1)` for one-hot classes, and pass "
            "a `loss`, such as `loss='mse'`, for regression. "
            f"Received: y of shape {y.shape}, dtype {y.dtype}"
        )
    if len(y) and y.min() < 0:
        raise ValueError(
            f"`y` of `{name}` must contain classes that start from 0. "
            f"Received: class {y.min()}"
        )
    return y.astype("int32")


def _rows(name, rows, length):
    rows = _array(f"`rows` of `{name}`", rows)
    if rows.dtype == bool and rows.shape == (length,):
        return np.flatnonzero(rows)
    whole = rows.dtype.kind in "iu" and rows.ndim == 1
    if not whole or not ((rows >= 0) & (rows < length)).all():
        raise ValueError(
            f"`rows` of `{name}` must be a boolean mask over all {length} "
            "nodes, or an array of node indices below that. "
            f"Received: {_describe(rows)}"
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


def _describe(value):
    """Describes a value in an error message."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return kind if shape is None else f"{kind} of shape {tuple(shape)}"
