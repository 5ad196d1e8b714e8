"""Models, layers and metrics: their parts, their inputs, and their copies."""

import contextlib
import functools
import inspect
import os

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd._keras.versions import KERAS_3
from keras_qpsbgd._keras.versions import advice_on_version


def add_metric_state(metric, name, initializer, shape, dtype):
    """Adds a variable to a metric that is equal on all replicas.

    The variables that metrics add by default are summed over replicas.
    """
    if KERAS_3:
        return metric.add_variable(
            shape=shape,
            initializer=initializer,
            dtype=dtype,
            aggregation="only_first_replica",
            name=name,
        )
    return metric.add_weight(
        name,
        shape=shape,
        initializer=initializer,
        dtype=dtype,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def check_is_model(model):
    """Checks that the argument `model` is a Keras model.

    Raises:
        ValueError: If it is something else, for example a path.
    """
    if isinstance(model, keras.Model):
        return
    advice = advice_on_version(model)
    if isinstance(model, (str, os.PathLike)):
        advice = (
            "Load it first with `keras.models.load_model`, or a packed file "
            "with `keras_qpsbgd.export.load_packed`. "
        )
    raise ValueError(
        f"`model` must be a Keras model. {advice}Received: model={model!r}"
    )


def is_compiled(model):
    """Returns whether `model.compile` was called."""
    return bool(getattr(model, "compiled" if KERAS_3 else "_is_compiled"))


def all_layers(model):
    """Returns the layers of a model at any depth, in both Keras versions."""
    return list(model._flatten_layers(include_self=False))


def inner_layers(layer):
    """Returns the layers directly inside a model or layer, each once."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def is_graph_of_layers(model):
    """Returns whether a layer is a Sequential or functional model."""
    return isinstance(model, (keras.Sequential, _functional_class()))


def layer_chain(model):
    """Returns the layers of a model if they form a chain.

    Returns:
        A list of layers, without input layers, in the order of the calls.
        Operations that are not layers, such as `x + 1`, are also in the list.
        `None` if a tensor has several consumers, or a layer several inputs.
    """
    if isinstance(model, keras.Sequential):
        layers = model.layers
        return [v for v in layers if not isinstance(v, keras.layers.InputLayer)]
    chain, last = [], model.inputs
    for layer, args, kwargs, outputs in graph_calls(model):
        values = tf.nest.flatten((args, kwargs))
        inputs = [v for v in values if hasattr(v, "_keras_history")]
        if not _is_one_tensor(inputs, last):
            return None
        chain.append(layer)
        last = outputs
    return chain if _is_one_tensor(model.outputs, last) else None


def _is_one_tensor(left, right):
    """Returns whether two lists contain the same tensor and nothing else."""
    return len(left) == len(right) == 1 and left[0] is right[0]


@functools.cache
def _functional_class():
    # Keras has no public name for the class of functional models. An explicit
    # name keeps the automatic names of other models unchanged.
    tensor = keras.Input((1,), name="input")
    return type(keras.Model(tensor, tensor, name="model"))


def copy_functional(model, clone_function):
    """Returns an uncompiled copy of a functional model.

    Args:
        model: Functional model.
        clone_function: Function that receives a layer and returns the layer of
            the copy. It is called for all layers except input layers.
    """
    if not KERAS_3:
        return keras.models.clone_model(model, clone_function=clone_function)
    # `clone_model` of Keras 3 makes sparse inputs dense.
    layers = [v for v in model.layers if isinstance(v, keras.layers.InputLayer)]
    names = {id(layer.output): layer.name for layer in layers}
    inputs = tf.nest.map_structure(
        lambda tensor: copy_input(tensor, names.get(id(tensor))), model.input
    )
    if model.compiled:
        # `clone_model` would compile the copy, which fails for losses that
        # cannot be saved. This model shares the layers and is not compiled.
        model = keras.Model(model.input, model.output, name=model.name)
    return keras.models.clone_model(
        model,
        input_tensors=inputs,
        clone_function=clone_function,
        call_function=_call_known,
    )


def _call_known(layer, *args, **kwargs):
    """Calls a layer, without empty arguments that it does not accept.

    The layer in a copy of a model can have another type. Keras passes it the
    argument `mask` of the original layer, even if it is `None`.
    """
    known = inspect.signature(layer.call).parameters
    used = {k: v for k, v in kwargs.items() if v is not None or k in known}
    return layer(*args, **used)


def graph_calls(model):
    """Returns the calls of layers in a functional model, in order.

    Args:
        model: Functional model, not Sequential.

    Returns:
        A list of tuples `(layer, args, kwargs, outputs)`. The arguments contain
        symbolic tensors, and `outputs` is a list of them.
    """
    calls = []
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            if node.is_input:
                continue
            if KERAS_3:
                arguments = node.arguments
                call = (node.operation, arguments.args, arguments.kwargs)
            else:
                call = (node.layer, node.call_args, node.call_kwargs)
            calls.append((*call, tf.nest.flatten(node.outputs)))
    return calls


def hide_inputs(model):
    """Lets a functional model replace a layer in a copy of a legacy model.

    When legacy Keras copies a model, it does not count the first node of a
    functional model, which it recognizes by its first layer. A layer that is
    replaced by a model has no such node, and Keras would wait for it forever.

    Args:
        model: Functional model.

    Returns:
        Function that restores the order of the layers. Call it after copying.
    """
    if KERAS_3:
        return lambda: None
    tracked = model._self_tracked_trackables
    order = list(tracked)
    tracked.sort(key=lambda layer: isinstance(layer, keras.layers.InputLayer))

    def restore():
        tracked[:] = order

    return restore


def copy_input(tensor, name=None, keep_batch_size=True):
    """Returns a new symbolic input with the shape and name of another."""
    return keras.Input(
        shape=tuple(tensor.shape)[1:],
        batch_size=tensor.shape[0] if keep_batch_size else None,
        dtype=tensor.dtype,
        sparse=is_sparse(tensor),
        name=name or tensor.name,
    )


def mark_called(model):
    """Calls a functional model on symbolic inputs, so that it can be exported.

    Keras 3 exports only models that have been called. Legacy Keras exports all.
    """
    if KERAS_3:
        is_sequential = isinstance(model, keras.Sequential)
        inputs = model.inputs[0] if is_sequential else model.input
        model(tf.nest.map_structure(copy_input, inputs))


def is_sparse(tensor):
    """Returns whether a symbolic tensor is sparse."""
    if KERAS_3:
        return bool(tensor.sparse)
    return isinstance(tensor.type_spec, tf.SparseTensorSpec)


def has_mask(tensor):
    """Returns whether a symbolic tensor has a mask."""
    return getattr(tensor, "_keras_mask", None) is not None


def input_tensors(layer):
    """Returns the symbolic inputs of the first call of a layer."""
    return layer.input if KERAS_3 else layer.get_input_at(0)


def symbolic_matmul(left, right):
    """Multiplies symbolic tensors with operations that Keras can save."""
    if KERAS_3:
        return keras.ops.matmul(left, right)
    # Only this function also accepts a sparse symbolic tensor.
    return keras.backend.dot(left, right) if is_sparse(left) else left @ right


def symbolic_cast(tensor, dtype):
    """Casts a symbolic tensor with an operation that Keras can save."""
    return keras.ops.cast(tensor, dtype) if KERAS_3 else tf.cast(tensor, dtype)


def symbolic_clip(tensor, low, high):
    """Clips a symbolic tensor with an operation that Keras can save."""
    if KERAS_3:
        return keras.ops.clip(tensor, low, high)
    return tf.clip_by_value(tensor, low, high)


def attention_parts(layer):
    """Returns the four projections of a `MultiHeadAttention` by name.

    Returns:
        A dictionary that maps the attribute of each projection to the
        projection, an `EinsumDense` layer.
    """
    # Legacy Keras has no public properties for them.
    prefix = "" if KERAS_3 else "_"
    names = ("query_dense", "key_dense", "value_dense", "output_dense")
    return {prefix + name: getattr(layer, prefix + name) for name in names}


def variables_with_random_states(model):
    """Returns the weights of a model and the states of its random layers.

    Keras does not count the states as weights. Keras 3 has a variable for each
    seed generator. Legacy Keras has one only for layers that were created
    inside `random_states_as_variables`.
    """
    if KERAS_3:
        known = {id(variable) for variable in model.weights}
        states = [
            variable
            for variable in model.variables
            if id(variable) not in known
            and variable.name == "seed_generator_state"
        ]
        return [*model.weights, *states]
    states = []
    for layer in all_layers(model):
        generator = getattr(layer, "_random_generator", None)
        generator = getattr(generator, "_generator", None)
        if generator is not None:
            states.append(generator.state)
    return [*model.weights, *states]


@contextlib.contextmanager
def unchanged(model):
    """Restores the variables of a model and its metrics on exit."""
    variables = list(variables_with_random_states(model))
    for metric in model.metrics:
        variables += metric.variables
    before = [tf.identity(tf.convert_to_tensor(v)) for v in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before):
            variable.assign(value)


@contextlib.contextmanager
def random_states_as_variables():
    """Gives new random layers of legacy Keras a state variable, as in Keras 3.

    Use it as a context manager around the code that creates the layers.
    """
    if KERAS_3:
        yield
        return
    switch = keras.backend.experimental
    before = switch.is_tf_random_generator_enabled()
    switch.enable_tf_random_generator()
    try:
        yield
    finally:
        if not before:
            switch.disable_tf_random_generator()
