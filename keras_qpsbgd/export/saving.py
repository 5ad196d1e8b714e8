"""Small files that store kernels with 1 to 4 bits per weight.

A file contains the configuration of the model and its weights. The model is
rebuilt from the configuration, after checks that it cannot run code and needs
exactly the weights of the file.
"""

import contextlib
import copy
import json
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import disk
from keras_qpsbgd._messages import reason
from keras_qpsbgd._version import __version__
from keras_qpsbgd.export import container
from keras_qpsbgd.export import safety
from keras_qpsbgd.export.description import NotSupported
from keras_qpsbgd.export.description import describe
from keras_qpsbgd.export.description import to_json
from keras_qpsbgd.export.weights import find_weights
from keras_qpsbgd.export.weights import stored
from keras_qpsbgd.layers import BinaryLayer

PathLike = str | os.PathLike[str]
# The version of Keras that wrote the configuration in a file.
KERAS_NAME = "keras 3" if _keras.KERAS_3 else "legacy keras"


def packed(
    model: Any, path: PathLike, custom_objects: Mapping[str, Any] | None = None
) -> None:
    """Writes a model to a small file, with 1 to 4 bits per binary weight.

    The kernels of all binary layers are stored as bits. So are all kernels that
    `quantize` has rounded: levels of 1 to 4 bits times a scale for each output.
    All other weights are stored unchanged. `load_packed` returns a model with
    exactly the same predictions. The file also contains the configuration of
    the model and, if `Predictor` supports the model, the steps of a prediction.
    It contains no Python code, and [NumPy is enough to read it](
    ../guides/packed-format.md).

    The latent weights of binary layers, the optimizer and the losses are not
    stored. To continue training later, save the model with `model.save`.

    The file is replaced in one step. If the function raises an error or the
    process is killed, an existing file does not change.

    Args:
        model: Keras model that has been built. It can be Sequential or
            functional, with or without nested models, or subclassed, such as
            the models of Spektral. A subclassed model must define `get_config`
            if its constructor has arguments.
        path: Path of the file. Missing folders are created, and `~` is
            expanded.
        custom_objects: Dictionary (optional). Maps names to your own layers,
            models and functions. Pass the same dictionary to `load_packed`.
            Defaults to `None`.

    Raises:
        ValueError: If a layer cannot be stored, or if `path` is a folder. The
            message names all such layers, and nothing is written.

    Example:
        ```python
        import keras_qpsbgd as kq

        kq.export.packed(model, "digits.kq")
        model = kq.export.load_packed("digits.kq")
        ```
    """
    _keras.check_is_model(model)
    path = disk.file_path(path)
    disk.write(path, content_of(model, custom_objects))


def load_packed(
    path: PathLike, custom_objects: Mapping[str, Any] | None = None
) -> Any:
    """Loads a model from a file written by `packed`.

    The version, the checksum, sizes and shapes are checked first. The model is
    then built from its configuration. The configuration may only name Keras
    layers that compute with tensors, layers of this package and of Spektral,
    and `custom_objects`. Nothing in a file can run code.

    Args:
        path: Path of the file. `~` is expanded.
        custom_objects: Dictionary (optional). Maps names to your own layers,
            models and functions. Defaults to `None`.

    Returns:
        An uncompiled Keras model with the same predictions as the model that
        was stored. The kernels of its binary layers contain the quantized
        weights, not the latent weights from training.

    Raises:
        ValueError: If the file is not a valid packed model. The message says
            why.
        OSError: If the file cannot be read.

    Example:
        ```python
        model = kq.export.load_packed("digits.kq")
        model.predict(x)
        ```
    """
    content = pathlib.Path(os.path.expanduser(path)).read_bytes()
    try:
        return _model_from(content, dict(custom_objects or {}))
    except (container.InvalidFile, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        why = "its model is nested too deeply" if deep else error
        raise ValueError(
            f"`path` must be a file written by `export.packed`, but {why}. "
            f"Received: path={os.fspath(path)}"
        ) from error


def content_of(
    model: Any, custom_objects: Mapping[str, Any] | None = None
) -> bytes:
    """Returns the content of the file that `packed` writes.

    Raises:
        ValueError: If the model is not built or a layer cannot be stored.
    """
    _check(model)
    custom_objects = dict(custom_objects or {})
    weights = find_weights(model)
    arrays = []
    for found, variable in weights:
        entry, data = stored(found, variable)
        arrays.append((entry, id(variable), data))
    config = _config_of(model)
    names = safety.refused(config, custom_objects)
    if names:
        raise ValueError(
            "`model` may only contain layers of keras_qpsbgd and Spektral, and "
            "Keras layers that neither run stored code nor load files. Pass "
            "your own classes in `custom_objects`. "
            f"Received: a model with {', '.join(names)}"
        )
    header = {
        "format": "keras_qpsbgd packed model",
        "written_by": f"keras_qpsbgd {__version__}",
        "keras": KERAS_NAME,
        "model": config,
    }
    # What `Predictor` reads, if it supports the model.
    with contextlib.suppress(NotSupported):
        variables = [variable for _, variable in weights]
        header["predictor"] = to_json(describe(model), variables)
    content = container.encode(header, arrays)
    try:
        _abstract_model(config, custom_objects, [entry for entry, _ in weights])
    except container.InvalidFile as error:
        raise ValueError(
            "`model` must be a model that Keras can rebuild from its "
            "configuration. Define `get_config` and `from_config` in your "
            f"classes. Received: model={model}, but {error}"
        ) from error
    _warn_if_float(model, [entry for entry, _, _ in arrays])
    return content


def _warn_if_float(model, entries):
    """Warns if no kernel is stored with few bits, so the file is not small.

    Args:
        model: Keras model.
        entries: List of `container.Entry`.
    """
    if entries and all(entry.bits is None for entry in entries):
        warnings.warn(
            f"The model {model.name!r} has no binary layer and no kernel that "
            "`keras_qpsbgd.quantize` has rounded, so the file stores all of "
            "its weights unchanged and is not smaller. Pass the result of "
            "`keras_qpsbgd.quantize(model, x)` instead.",
            stacklevel=4,
        )


def _check(model):
    if not model.built:
        raise ValueError(
            "`model` must be a Keras model that has been built. Call it on a "
            f"batch first. Received: model={model}"
        )
    real = [
        layer.name
        for layer in _keras.all_layers(model)
        if isinstance(layer, BinaryLayer) and layer.has_real_kernel
    ]
    if real:
        raise ValueError(
            "`model` must have binary kernels in its binary layers, but "
            "`use_real_kernel` was called on some. Received: real kernels in "
            f"{', '.join(real)}"
        )


def _config_of(model):
    try:
        with _uncompiled(model):
            config = keras.utils.serialize_keras_object(model)
        # Convert to the types that a file has, such as lists instead of tuples.
        config = json.loads(json.dumps(config))
    except Exception as error:  # `get_config` of users may raise anything
        raise ValueError(
            "`model` must have a configuration. A subclassed model must define "
            "`get_config` if its constructor has arguments. "
            f"Received: model={model}, which raised: {reason(error)}"
        ) from error
    return _without_training(config)


@contextlib.contextmanager
def _uncompiled(model):
    """Hides the optimizers and losses of a model and of the models inside it.

    They are not part of a file, and not all of them have a configuration. An
    optimizer with a `dimod.Sampler` has none, for example.
    """
    layers = [
        vars(layer)
        for layer in (model, *_keras.all_layers(model))
        if hasattr(layer, "get_compile_config")
    ]
    for attributes in layers:
        attributes["get_compile_config"] = lambda: None
    try:
        yield
    finally:
        for attributes in layers:
            attributes.pop("get_compile_config", None)


def _without_training(config):
    """Returns a configuration without losses and optimizers."""
    if isinstance(config, dict):
        return {
            key: _without_training(value)
            for key, value in config.items()
            if key != "compile_config"
        }
    if isinstance(config, list):
        return [_without_training(value) for value in config]
    return config


def _model_from(content, custom_objects):
    header, arrays = container.decode(content)
    if header.get("keras") != KERAS_NAME:
        raise container.InvalidFile(
            f"it was written with {header.get('keras')!r}, but this process "
            f"uses {KERAS_NAME!r}. Set the environment variable "
            "`TF_USE_LEGACY_KERAS`"
        )
    config = header.get("model")
    names = safety.refused(config, custom_objects)
    if names:
        raise container.InvalidFile(
            f"its model contains {', '.join(names)}. Pass your own classes in "
            "`custom_objects`"
        )
    config = _without_training(config)
    _abstract_model(config, custom_objects, [entry for entry, _ in arrays])
    model = _built(config, custom_objects)
    variables = {
        (entry.layer, entry.index): variable
        for entry, variable in find_weights(model)
    }
    for entry, data in arrays:
        variables[entry.layer, entry.index].assign(
            container.array_from(data, entry)
        )
    for layer in _keras.all_layers(model):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()  # computes constants from its weights
    return model


def _abstract_model(config, custom_objects, entries):
    """Builds a model without values, and compares its weights with a file.

    An invalid configuration could have more weights than fit into memory. The
    variables of a graph have a shape but no value.
    """
    with _graph():
        model = _built(config, custom_objects)
        found = {
            (each.layer, each.index): each for each, _ in find_weights(model)
        }
        places = [(entry.layer, entry.index) for entry in entries]
        if len(set(places)) < len(places) or set(places) != found.keys():
            raise container.InvalidFile("its arrays are not those of its model")
        for entry, place in zip(entries, places):
            received, expected = (
                (each.shape, each.dtype, each.bits if each.is_binary else None)
                for each in (entry, found[place])
            )
            if expected != received:
                raise container.InvalidFile(
                    f"its array {entry.name!r} has the shape, dtype and bits "
                    f"{received}, but its model needs {expected}"
                )


@contextlib.contextmanager
def _graph():
    """Enters a new graph, and restores the classes of legacy Keras afterwards.

    In a graph, legacy Keras replaces the base classes of the layers that it
    builds. Other models with these layers would then raise errors.
    """
    bases = {}
    if not _keras.KERAS_3:
        stack = [keras.layers.Layer]
        while stack:
            found = stack.pop()
            bases[found] = found.__bases__
            stack.extend(found.__subclasses__())
    try:
        with tf.Graph().as_default():
            yield
    finally:
        for found, before in bases.items():
            if found.__bases__ != before:
                found.__bases__ = before


def _built(config, custom_objects):
    objects = {**safety.spektral_classes(config), **custom_objects}
    try:
        # Keras modifies the configuration that it receives.
        model = keras.utils.deserialize_keras_object(
            copy.deepcopy(config), custom_objects=objects, safe_mode=True
        )
        is_built = isinstance(model, keras.Model) and model.built
    except Exception as error:  # a wrong configuration may raise anything
        raise container.InvalidFile(
            f"Keras cannot build its model ({reason(error)})"
        ) from error
    if not is_built:
        raise container.InvalidFile("its model cannot be built")
    return model
