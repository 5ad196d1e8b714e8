"""The weights of a model, and their places in it.

A model that is built again from its configuration has the same layers, but
some layers and all variables may get other names. Therefore a layer has a path:
the name of the layer inside a Sequential or functional model, and its position
inside any other layer.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from keras_qpsbgd import _keras
from keras_qpsbgd import statistics


@dataclasses.dataclass(frozen=True)
class Weight:
    """A variable and its place in the model.

    Attributes:
        name: String. Name for readers, for example `"dense/kernel"`.
        layer: String. The path of the layer.
        index: Integer. Which of the layer's own weights it is.
        variable: The variable.
        bits: Integer, or `None` if the variable is not a binary kernel.
    """

    name: str
    layer: str
    index: int
    variable: Any
    bits: int | None


def find(model: Any) -> list[Weight]:
    """Returns all weights of a model.

    A layer that is part of two inner models is listed twice, because its copies
    in a model that is built again are two layers.
    """
    found: list[Weight] = []
    names: set[str] = set()
    for path, title, layer in walk(model):
        for index, variable in enumerate(own_weights(layer)):
            mark = statistics.mark_of(variable)
            name = "/".join([*title, _short_name(variable)])
            if name in names:
                name = f"{name}_{len(found)}"
            names.add(name)
            bits = None if mark is None else mark.bits
            found.append(Weight(name, path, index, variable, bits))
    return found


def walk(
    layer: Any, path: tuple[str, ...] = (), title: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yields the path, the names for readers and the layer, at any depth."""
    yield "/".join(path), title, layer
    is_graph = _keras.is_graph_of_layers(layer)
    for position, inner in enumerate(_keras.inner_layers(layer)):
        part = inner.name if is_graph else str(position)
        yield from walk(inner, (*path, part), (*title, inner.name))


def own_weights(layer: Any) -> list[Any]:
    """Returns the weights of a layer that belong to no layer inside it."""
    inside = {
        id(variable)
        for inner in _keras.inner_layers(layer)
        for variable in inner.weights
    }
    return [each for each in layer.weights if id(each) not in inside]


def _short_name(variable):
    # "dense/kernel:0" in legacy Keras
    return variable.name.rpartition("/")[2].partition(":")[0]
