"""Differences between Keras 3 and legacy Keras (`TF_USE_LEGACY_KERAS=1`).

The package always imports Keras with `from tensorflow import keras`. This
module contains the code that differs between the two versions, and all uses of
Keras and TensorFlow behavior that has no public function. Each of these uses
has a test in `tests/repository/test_private_api.py` that fails if a new version
changes the behavior.
"""

import contextlib
import copy
import functools
import importlib.metadata
import inspect
import re
import sys

import tensorflow as tf
from tensorflow import keras
from tensorflow.python.ops import control_flow_util

from keras_qpsbgd.qubo import ops


def is_keras_3(version):
    """Returns whether a version is Keras 3 or later, not legacy Keras."""
    return int(version.partition(".")[0]) >= 3


def version():
    """Returns the Keras version, in legacy Keras from its metadata."""
    return getattr(keras, "__version__", None) or importlib.metadata.version(
        "tf_keras"
    )


# Old copies of Keras 2 inside TensorFlow have no `__version__`.
KERAS_3 = is_keras_3(getattr(keras, "__version__", "2"))

if KERAS_3 and keras.config.backend() != "tensorflow":
    raise ImportError(
        "keras_qpsbgd requires the TensorFlow backend of Keras. Set "
        "`KERAS_BACKEND=tensorflow` before you import Keras. Received: "
        f"KERAS_BACKEND={keras.config.backend()}"
    )

if not KERAS_3:
    # The networks of the paper need a hard tanh, which legacy Keras lacks.
    keras.utils.get_custom_objects().setdefault("hard_tanh", ops.hard_tanh)

# The argument of `Layer.add_weight` that keeps a weight in its own precision.
AUTOCAST = "autocast" if KERAS_3 else "experimental_autocast"

register = keras.utils.register_keras_serializable("keras_qpsbgd")


def register_activation(function):
    """Makes a function available as an activation by its name.

    Models that use the function can be saved. If Keras already has a function
    with this name, that function takes precedence.
    """
    # A custom object with a short name would replace all equal strings in the
    # configurations of HDF5 files, such as `training_weights="binary"`. Both
    # versions of Keras also use the functions of their own module.
    name = function.__name__
    module = sys.modules[keras.activations.get.__module__]
    is_new = vars(module).setdefault(name, function) is function
    if KERAS_3:
        vars(module).get("ALL_OBJECTS_DICT", {}).setdefault(name, function)
    elif is_new:
        function.__module__ = module.__name__
    return function


class Untracked(dict):
    """A dictionary that TensorFlow leaves out of checkpoints.

    TensorFlow saves every plain dictionary of a legacy Keras optimizer, and
    requires string keys.
    """


class Optimizer(keras.optimizers.Optimizer):
    """A Keras optimizer with the Keras 3 signature in both versions.

    Subclasses define `build(variables)`, `update_step(gradient, variable,
    learning_rate)` and, if they need the whole list of gradients, `apply`.
    """

    def __init__(self, learning_rate, name=None, **kwargs):
        if isinstance(learning_rate, dict):
            learning_rate = keras.optimizers.schedules.deserialize(
                learning_rate
            )
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        if KERAS_3:
            super().__init__(learning_rate, name=name, **kwargs)
        else:
            # On a GPU, legacy optimizers compile their update with XLA, which
            # cannot call host solvers.
            kwargs["jit_compile"] = False
            kwargs.pop("is_legacy_optimizer", None)
            name = name or type(self).__name__
            # HDF5 files need a unique name for each variable, and the inner
            # optimizer also has an `iteration`.
            with tf.name_scope(re.sub(r"\W", "_", str(name))):
                super().__init__(name=name, **kwargs)
            self._learning_rate = self._build_learning_rate(learning_rate)

    def is_built(self):
        return bool(getattr(self, "built" if KERAS_3 else "_built", False))

    def build(self, variables):
        super().build(variables)
        if not KERAS_3:
            self._trainable_variables = list(variables)
            self._built = True

    def add_array(
        self, shape, dtype, name, value=0, aggregation="only_first_replica"
    ):
        """Adds an optimizer variable, which is saved with the model.

        Args:
            shape: Tuple of integers.
            dtype: String.
            name: String.
            value: Number. The initial value. Defaults to `0`.
            aggregation: String. How to combine the values that replicas assign:
                `"only_first_replica"` uses the value of the first replica,
                `"mean"` and `"sum"` combine all values, and with `"none"` each
                replica has its own copy, so all replicas must assign the same
                value. Defaults to `"only_first_replica"`.
        """
        if KERAS_3:
            variable = self.add_variable(
                shape=shape,
                initializer=keras.initializers.Constant(value),
                dtype=dtype,
                aggregation=aggregation,
                name=name,
            )
            # Layers use some of these variables, and mixed precision would cast
            # them. `add_variable` has no argument for this.
            variable._autocast = False
            return variable
        variable = tf.Variable(
            tf.fill(shape, tf.cast(value, dtype)),
            name=name,
            trainable=False,
            aggregation=getattr(tf.VariableAggregation, aggregation.upper()),
        )
        self._variables.append(variable)
        return variable

    def variable_key(self, variable):
        """Returns a key for a model variable, the same on all replicas."""
        return self._var_key(variable)

    def _clip_gradients(self, grads):
        # Neither clipping nor weight decay applies to binary kernels.
        return grads

    def _apply_weight_decay(self, variables):
        pass

    def get_config(self):
        config = super().get_config()
        if not KERAS_3:
            config.pop("jit_compile")
            config.pop("is_legacy_optimizer")
            rate = self._serialize_hyperparameter(self._learning_rate)
            config["learning_rate"] = (
                rate if isinstance(rate, dict) else float(rate)
            )
        return config

    if not KERAS_3:

        def update_step(self, gradient, variable, learning_rate=None):
            raise NotImplementedError

        def _update_step(self, gradient, variable):
            self.update_step(gradient, variable, self.learning_rate)

        def apply(self, grads, trainable_variables=None):
            if trainable_variables is None:
                trainable_variables = self._trainable_variables
            self.stock_apply(grads, trainable_variables)

        def apply_gradients(
            self,
            grads_and_vars,
            name=None,
            skip_gradients_aggregation=False,
            **kwargs,
        ):
            aggregate = kwargs.pop("experimental_aggregate_gradients", True)
            self._aggregate = aggregate and not skip_gradients_aggregation
            grads_and_vars = list(grads_and_vars)
            if grads_and_vars:  # a model may have no trainable variables
                grads, variables = zip(*grads_and_vars)
                self.apply(grads, variables)
            return self.iterations

    def stock_apply(self, grads, variables, aggregate=True):
        """Calls the `apply` of Keras, which calls `update_step`.

        Keras sums the gradients over replicas, clips them, and handles moving
        averages, constraints and the iteration counter.

        Args:
            grads: List of gradients.
            variables: List of variables.
            aggregate: Boolean. Whether legacy Keras sums the gradients over
                replicas. Pass `False` if they are already summed. Keras 3
                ignores it. Defaults to `True`.
        """
        if KERAS_3:
            super().apply(grads, variables)
            return
        if self.use_ema:
            # Keras 3 averages all variables that the optimizer was built with.
            # Legacy Keras averages only those it receives, so pass all.
            given = {self._var_key(v): g for g, v in zip(grads, variables)}
            variables = self._trainable_variables
            zero = tf.zeros(())  # see `BinaryOptimizer.is_updated`
            grads = [given.get(self._var_key(v), zero) for v in variables]
        super().apply_gradients(
            list(zip(grads, variables)),
            skip_gradients_aggregation=not aggregate,
        )


def apply_inner(optimizer, grads, variables, aggregate=True):
    """Applies gradients with another Keras optimizer."""
    if KERAS_3:
        optimizer.apply(grads, variables)
    else:
        optimizer.apply_gradients(
            list(zip(grads, variables)),
            skip_gradients_aggregation=not aggregate,
        )


def build_inner(optimizer, variables):
    """Builds another Keras optimizer once."""
    built = getattr(optimizer, "built" if KERAS_3 else "_built", False)
    if variables and not built:
        optimizer.build(variables)


def get_optimizer(identifier):
    """Returns the Keras optimizer for an object, a name or a configuration.

    Raises:
        ValueError: If `identifier` does not specify an optimizer, or specifies
            one of `keras.optimizers.legacy`.
    """
    if isinstance(identifier, dict):
        # Copied, because Keras modifies it. Without `is_legacy_optimizer`,
        # legacy Keras would return an optimizer of `keras.optimizers.legacy`.
        identifier = copy.deepcopy(identifier)
        if not KERAS_3:
            config = identifier.setdefault("config", {})
            config.setdefault("is_legacy_optimizer", False)
    is_empty = isinstance(identifier, dict) and "class_name" not in identifier
    if identifier is not None and not is_empty:
        optimizer = keras.optimizers.get(identifier)
        if isinstance(optimizer, keras.optimizers.Optimizer):
            return optimizer
    raise ValueError(
        "`real_optimizer` must be a `keras.optimizers.Optimizer`, its name or "
        f"its configuration. Received: real_optimizer={identifier}"
    )


def copy_optimizer(optimizer):
    """Returns a Keras optimizer with the same settings and no state."""
    rate = getattr(optimizer, "_learning_rate", None)
    try:
        config = optimizer.get_config()
        if callable(rate):  # a schedule, possibly without a configuration
            config["learning_rate"] = rate
        copied = type(optimizer).from_config(config)
    except (NotImplementedError, TypeError):
        # Without a configuration it cannot be saved either, so use the object.
        return optimizer
    for name in vars(optimizer):
        if name.startswith("_exclude_from_weight_decay"):
            setattr(copied, name, getattr(optimizer, name))
    return copied


def scale_loss(optimizer, loss):
    """Multiplies a loss by the loss scale of an optimizer, if it has one."""
    name = "scale_loss" if KERAS_3 else "get_scaled_loss"
    scale = getattr(optimizer, name, None)
    return loss if scale is None else scale(loss)


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


def is_compiled(model):
    """Returns whether `model.compile` was called."""
    return bool(getattr(model, "compiled" if KERAS_3 else "_is_compiled"))


def constant_rate(optimizer):
    """Returns the learning rate as a float, or `None` if it is a schedule."""
    rate = optimizer._learning_rate
    if callable(rate):
        return None
    with tf.init_scope():
        return float(tf.convert_to_tensor(rate))


def inside_xla():
    """Returns whether a function compiled with XLA is being traced."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


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
    # Keras has no public list of the calls of a functional model.
    names = ("operation", "input_tensors", "output_tensors")
    if not KERAS_3:
        names = ("layer", "keras_inputs", "outputs")
    chain, last = [], None
    for _, nodes in sorted(model._nodes_by_depth.items(), reverse=True):
        if len(nodes) != 1:
            return None
        layer, inputs, outputs = (getattr(nodes[0], name) for name in names)
        inputs, outputs = tf.nest.flatten(inputs), tf.nest.flatten(outputs)
        if not isinstance(layer, keras.layers.InputLayer):
            if len(inputs) != 1 or inputs[0] is not last:
                return None
            chain.append(layer)
        if len(outputs) != 1:
            return None
        (last,) = outputs
    ends = tf.nest.flatten(model.outputs)
    return chain if len(ends) == 1 and ends[0] is last else None


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
    """Restores the variables of a model and its metrics when it exits."""
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
