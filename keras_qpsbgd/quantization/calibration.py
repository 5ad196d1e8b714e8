"""Batches of calibration data."""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.backends.errors import in_short

BATCH_SIZE = 128


class Calibration:
    """Batches of calibration data, as inputs of a model.

    Args:
        model: Keras model with known inputs.
        data: The argument `calibration` of `quantize`.
        whole: Boolean. Whether arrays form one batch, like the nodes of one
            graph. Datasets are always read batch by batch. Defaults to `False`.
        validation_split: Float. The fraction of the data to hold out. Defaults
            to `0.0`.

    Attributes:
        batches: List of batches of inputs.
        held_out: List of held-out batches of inputs.

    Raises:
        ValueError: If the data do not match the inputs of the model.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        whole: bool = False,
        validation_split: float = 0.0,
    ) -> None:
        self._inputs = named_inputs(model)
        self._needs_dict = _has_dict(model)
        self._order = [tensor.name for tensor in model.inputs]
        self.held_out: list[Any] = []
        if isinstance(data, (tf.data.Dataset, _py_dataset())):
            self.batches = [
                tf.nest.map_structure(_as_tensor, self._read(x))
                for x in _elements(data)
            ]
            if not self.batches:
                raise ValueError(
                    "`calibration` must have at least one batch. Received: an "
                    "empty dataset"
                )
            if validation_split:
                # Never hold out the first batch.
                every = max(2, round(1 / validation_split))
                self.held_out = self.batches[every - 1 :: every]
                del self.batches[every - 1 :: every]
            return
        arrays = self._read(data)
        length = _common_length(arrays)
        end = length if whole else length - int(length * validation_split)
        fixed = model.inputs[0].shape[0] if _is_stateful(model) else None
        size = length if whole else fixed or BATCH_SIZE
        self.batches = _split(arrays, 0, end, size)
        self.held_out = _split(arrays, end, length, size)

    def _read(self, data):
        """Checks the data and returns it in the structure of `data`."""
        if isinstance(data, dict):
            if set(data) != set(self._inputs):
                raise ValueError(
                    "`calibration` must have one array per input of the "
                    f"model: {sorted(self._inputs)}. Received: a dictionary "
                    f"with the keys {sorted(map(str, data))}"
                )
            return {
                name: _checked(data[name], tensor, name)
                for name, tensor in self._inputs.items()
            }
        leaves = list(data) if isinstance(data, (list, tuple)) else [data]
        if len(leaves) != len(self._order):
            raise ValueError(
                "`calibration` must have one array per input of the model "
                f"({self._order}) and no labels. In a dataset, the second "
                "entry of a tuple contains the labels, which are ignored. "
                "Received: "
                f"{len(leaves)} {'array' if len(leaves) == 1 else 'arrays'}"
            )
        if self._needs_dict and len(leaves) > 1:
            raise ValueError(
                "`calibration` must be a dictionary, because the model takes a "
                f"dictionary of inputs. Received: {type(data).__name__}"
            )
        named = {tensor.name: tensor for tensor in self._inputs.values()}
        found = [
            _checked(leaf, named[name], name)
            for leaf, name in zip(leaves, self._order)
        ]
        return found if len(found) > 1 else found[0]


def _py_dataset():
    """Returns the base class of Python datasets, whose items are batches."""
    return keras.utils.PyDataset if _keras.KERAS_3 else keras.utils.Sequence


def _elements(data):
    """Yields the inputs of the batches of a dataset."""
    if isinstance(data, tf.data.Dataset):
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "`calibration` must be a finite dataset. Use "
                "`dataset.take(num_batches)`. Received: an infinite dataset"
            )
        items = iter(data)
    else:
        items = (data[index] for index in range(len(data)))
    for item in items:
        yield item[0] if isinstance(item, tuple) else item


def _common_length(arrays):
    lengths = [int(leaf.shape[0]) for leaf in tf.nest.flatten(arrays)]
    if 0 in lengths:
        raise ValueError(
            "`calibration` must have at least one sample. Received: arrays of "
            f"length {lengths}"
        )
    if len(set(lengths)) > 1:
        raise ValueError(
            "`calibration` must have the same number of samples for every "
            f"input. Received: arrays of length {lengths}"
        )
    return lengths[0]


def _split(arrays, begin, end, size):
    """Returns batches of the samples from `begin` to `end`."""
    if begin == 0 and end == _common_length(arrays) <= size:
        # Sparse tensors, such as the adjacency matrix of a graph, stay whole.
        return [tf.nest.map_structure(_as_tensor, arrays)]
    return [
        tf.nest.map_structure(
            lambda leaf, at=at: _as_tensor(leaf[at : min(at + size, end)]),
            arrays,
        )
        for at in range(begin, end, size)
    ]


def named_inputs(model):
    """Returns a dictionary of the symbolic inputs of a model."""
    if _has_dict(model):
        return dict(model.input)
    return {tensor.name: tensor for tensor in model.inputs}


def _has_dict(model):
    # A Sequential model of Keras 3 has no `input` until it is called.
    is_sequential = isinstance(model, keras.Sequential)
    return not is_sequential and isinstance(model.input, dict)


def _checked(value, expected, name):
    """Checks the data of an input and converts it to the dtype of the input.

    NumPy arrays are not converted to tensors, which would copy all rows.
    """
    if hasattr(value, "tocsr"):  # a SciPy matrix
        value = value.tocoo()
        indices = np.stack([value.row, value.col], axis=1).astype("int64")
        value = tf.SparseTensor(indices, value.data, value.shape)
        value = tf.sparse.reorder(value)
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    if not is_array and not isinstance(value, tf.SparseTensor):
        try:
            value = tf.convert_to_tensor(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "`calibration` must be an array, a list or dictionary of "
                "arrays with one array per input, a `tf.data.Dataset`, or a "
                "`keras.utils.PyDataset`. "
                f"Received: {in_short(value)} for the input {name!r}"
            ) from error
    shape, wanted = tuple(value.shape), tuple(expected.shape)
    matches = len(shape) == len(wanted) and all(
        want is None or have is None or have == want
        for have, want in list(zip(shape, wanted))[1:]
    )
    if not matches:
        raise ValueError(
            f"`calibration` must have the shape {(None, *wanted[1:])} for the "
            f"input {name!r}. Received: an array of shape {shape}"
        )
    if not _is_finite(value):
        raise ValueError(
            "`calibration` must contain only finite numbers. Received: nan or "
            f"inf in the input {name!r}"
        )
    dtype = tf.as_dtype(expected.dtype)
    given = tf.as_dtype(value.dtype)
    is_text = (given == tf.string) != (dtype == tf.string)
    if is_text or given.is_complex > dtype.is_complex:
        raise ValueError(
            f"`calibration` must have the dtype {dtype.name} for the input "
            f"{name!r}. Received: an array of dtype {given.name}"
        )
    if dtype == tf.string:
        return value
    if is_array:
        return value.astype(dtype.as_numpy_dtype, copy=False)
    return value if value.dtype == dtype else tf.cast(value, dtype)


def _is_finite(value):
    entries = value.values if isinstance(value, tf.SparseTensor) else value
    entries = np.asarray(entries)
    return entries.dtype.kind != "f" or bool(np.isfinite(entries).all())


def is_zero(batches):
    """Returns whether all entries of all batches are zero."""
    for leaf in tf.nest.flatten(batches):
        entries = leaf.values if isinstance(leaf, tf.SparseTensor) else leaf
        # Strings are never zero.
        if entries.dtype == tf.string or np.any(entries):
            return False
    return True


def _as_tensor(value):
    return (
        tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value
    )


def _is_stateful(model):
    """Returns whether the batch size of a model is part of its state."""
    return any(getattr(layer, "stateful", False) for layer in model.layers)
