"""Checks that the configuration of a model cannot run code.

Keras builds a model from a dictionary that names classes and functions. A file
from an untrusted source could name some that read files, load other models or
run Python code. This module lists what a configuration may name: Keras layers
that only compute, the layers of this package and of Spektral, and the objects
that the caller trusts.
"""

import inspect
import sys
from typing import Any

from keras_qpsbgd import _keras

keras = _keras.keras

# Packages of Keras whose layers only compute with tensors.
LAYER_PACKAGES = (
    *("activation", "activations", "attention", "convolutional", "merging"),
    *("noise", "normalization", "pooling", "regularization", "reshaping"),
    *("rnn", "locally_connected"),
)
# Layers from other packages. `Lambda` and `TFSMLayer` run code, and layers with
# a vocabulary read files.
OTHER_LAYERS = (
    *("Activation", "Dense", "EinsumDense", "Embedding", "Identity"),
    *("InputLayer", "Masking", "ReversibleEmbedding", "Wrapper"),
    *("Normalization", "Rescaling", "Resizing", "CenterCrop"),
    "CategoryEncoding",
)
# Models, and the modules that Keras writes for them. Functional models have no
# public name.
MODELS = ("Sequential", "Functional", "Model")
MODEL_MODULES = (
    *("keras", "keras.models", "keras.src.models.functional"),
    *("keras.src.engine.functional", "tf_keras.src.engine.functional"),
)
# Modules of Keras with small objects, and the names of their base classes.
PARTS = {
    "keras.initializers": "Initializer",
    "keras.regularizers": "Regularizer",
    "keras.constraints": "Constraint",
}
POLICIES = ("DTypePolicy", "DTypePolicyMap", "Policy")
# Values that Keras writes in the form of objects. The others, `__lambda__` and
# `__typespec__`, can run code.
VALUES = (
    *("__keras_tensor__", "__tensor__", "__numpy__", "__bytes__"),
    *("__slice__", "__ellipsis__"),
)


def refused(config: Any, custom_objects: dict[str, Any]) -> list[str]:
    """Returns the names in a configuration that are not allowed.

    Args:
        config: The configuration of a model, parsed JSON.
        custom_objects: Dictionary that maps names to classes and functions,
            which the caller trusts.

    Returns:
        List of names, each once. Empty if the configuration is safe.
    """
    found: dict[str, None] = {}
    for value in _dictionaries(config):
        if "class_name" in value or "module" in value:
            name = _refused_name(value, custom_objects)
            if name is not None:
                if value is config:
                    name += " (the class of the model itself)"
                found[name] = None
    return list(found)


def spektral_classes(config: Any) -> dict[str, Any]:
    """Returns the Spektral layers and models that a configuration names.

    Keras only finds registered classes, and those of Spektral are not
    registered.

    Args:
        config: A configuration for which `refused` returns an empty list.
    """
    names = {
        str(value.get("class_name"))
        for value in _dictionaries(config)
        if _package(value) == "spektral"
    }
    return {name: _spektral_class(name) for name in names}


def _dictionaries(config):
    """Yields all dictionaries in a configuration, from outer to inner ones."""
    stack = [config]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _refused_name(value, custom_objects):
    """Returns the name of an object, or `None` if it is allowed."""
    name, module = value.get("class_name"), value.get("module")
    registered = value.get("registered_name")
    title = f"{module}.{name}" if module else str(name)
    if not isinstance(name, str) or not all(
        isinstance(each, (str, type(None))) for each in (module, registered)
    ):
        return title
    if module is None and registered is None and name in VALUES:
        return None
    if name == "function":
        return _refused_function(value, custom_objects)
    if registered in custom_objects or name in custom_objects:
        return None
    package = _package(value)
    if package == "keras_qpsbgd":
        return None if _is_own_class(registered) else title
    if registered not in (None, name):
        return f"{title} ({registered})"
    if package == "spektral":
        is_known = _spektral_class(name) is not None
        return None if is_known else f"{title} (not found in Spektral)"
    known = package in ("keras", "tf_keras", None)
    allowed = known and _is_keras_class(module, name)
    return None if allowed else title


def _refused_function(value, custom_objects):
    name = value.get("config")
    title = f"{value.get('module')}.{name}"
    if not isinstance(name, str):
        return title
    if name in custom_objects:
        return None
    if _package(value) == "keras_qpsbgd":
        found = keras.utils.get_registered_object(name)
        own = inspect.isfunction(found) and _is_own(found)
        return None if own else title
    is_activation = value.get("module") in ("builtins", "keras.activations")
    found = getattr(keras.activations, name, None)
    allowed = is_activation and inspect.isfunction(found)
    return None if allowed else title


def _package(value):
    module = value.get("module")
    return module.partition(".")[0] if isinstance(module, str) else None


def _is_keras_class(module, name):
    if name in MODELS:
        return module in MODEL_MODULES
    if name in POLICIES:
        return module in (
            "keras",
            "keras.dtype_policies",
            "keras.mixed_precision",
        )
    if module == "keras.layers":
        return _is_plain_layer(getattr(keras.layers, name, None))
    for part, base in PARTS.items():
        if module in (part, None):
            owner = getattr(keras, part.partition(".")[2])
            if _is_subclass(getattr(owner, name, None), getattr(owner, base)):
                return True
    return _is_operation(module, name)


def _is_plain_layer(found):
    if not _is_subclass(found, keras.layers.Layer):
        return False
    package = found.__module__.partition(".layers.")[2].partition(".")[0]
    return package in LAYER_PACKAGES or found.__name__ in OTHER_LAYERS


def _is_operation(module, name):
    """Returns whether a class is an operation of `keras.ops`, as in `x + y`."""
    if not _keras.KERAS_3 or not str(module).startswith("keras.src.ops."):
        return False
    found = getattr(sys.modules.get(module), name, None)
    return _is_subclass(found, keras.Operation) and found.__module__ == module


def _is_own_class(registered):
    if not isinstance(registered, str):
        return False
    found = keras.utils.get_registered_object(registered)
    bases = (keras.layers.Layer, keras.constraints.Constraint)
    return _is_subclass(found, bases) and _is_own(found)


def _is_own(found):
    return found.__module__.startswith("keras_qpsbgd.")


def _spektral_class(name):
    """Returns a layer or model of Spektral, or `None`."""
    try:
        import spektral.layers
        import spektral.models
    except ImportError:
        return None
    for module in (spektral.layers, spektral.models):
        found = getattr(module, name, None)
        if _is_subclass(found, keras.layers.Layer):
            return found
    return None


def _is_subclass(found, bases):
    return isinstance(found, type) and issubclass(found, bases)
