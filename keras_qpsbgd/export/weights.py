"""The weights of a model, in the form in which packed files store them.

A model that is rebuilt from its configuration has the same layers, but some
layers and all variables may get other names. Therefore a file gives each layer
a path: the name of the layer inside a Sequential or functional model, and its
position inside any other layer.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import grids
from keras_qpsbgd.export import container
from keras_qpsbgd.layers import rounding
from keras_qpsbgd.layers import statistics


def find_weights(model: Any) -> list[tuple[container.Entry, Any]]:
    """Returns all weights of a model, as tuples `(entry, variable)`.

    A layer that is part of two inner models is listed twice, because it becomes
    two layers in the rebuilt model.
    """
    found: list[tuple[container.Entry, Any]] = []
    names: set[str] = set()
    for path, title, layer in _walk(model):
        for index, variable in enumerate(_own_weights(layer)):
            mark = statistics.mark_of(variable)
            # "dense/kernel:0" in legacy Keras
            short = variable.name.rpartition("/")[2].partition(":")[0]
            name = "/".join([*title, short])
            if name in names:
                name = f"{name}_{len(found)}"
            names.add(name)
            entry = container.Entry(
                name,
                path,
                index,
                tf.as_dtype(variable.dtype).name,
                tuple(variable.shape),
                None if mark is None else mark.bits,
            )
            found.append((entry, variable))
    return found


def _walk(
    layer: Any, path: tuple[str, ...] = (), title: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yields the path, the readable names and the layer, at any depth."""
    yield "/".join(path), title, layer
    is_graph = _keras.is_graph_of_layers(layer)
    for position, inner in enumerate(_keras.inner_layers(layer)):
        part = inner.name if is_graph else str(position)
        yield from _walk(inner, (*path, part), (*title, inner.name))


def _own_weights(layer: Any) -> list[Any]:
    """Returns the weights of a layer that belong to no layer inside it."""
    inside = {
        id(variable)
        for inner in _keras.inner_layers(layer)
        for variable in inner.weights
    }
    return [each for each in layer.weights if id(each) not in inside]


def stored(
    entry: container.Entry, variable: Any
) -> tuple[container.Entry, bytes]:
    """Returns the entry and the data of a variable in a file.

    The entry of a kernel of levels times scales gets `bits` and `axes`.

    Raises:
        ValueError: If the weight is not numeric, or a binary kernel contains
            NaN.
    """
    if entry.dtype not in container.DTYPES:
        raise ValueError(
            "`model` must have numeric weights. Received: the weight "
            f"{entry.name} of type {entry.dtype}"
        )
    if entry.bits is None:
        array = variable.numpy()
        grid = grids.find(array)
        if grid is None:
            return entry, container.array_bytes(array, entry)
        entry = dataclasses.replace(entry, bits=grid.bits, axes=grid.axes)
        return entry, container.array_bytes(grid.levels, entry, grid.scales)
    levels = rounding.levels(tf.convert_to_tensor(variable), entry.bits).numpy()
    if not np.isfinite(levels).all():
        raise ValueError(
            "`model` must have finite weights. Received: NaN in the binary "
            f"kernel {entry.name}"
        )
    return entry, container.array_bytes(levels, entry)
