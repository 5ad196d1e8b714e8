"""Optimizers with the signature of Keras 3 in both versions."""

import copy
import re

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd._keras.versions import KERAS_3
from keras_qpsbgd._keras.versions import advice_on_version


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
        advice = advice_on_version(learning_rate)
        if advice:
            raise ValueError(
                "`learning_rate` must be a float, a `LearningRateSchedule`, or "
                f"a function without arguments. {advice}"
                f"Received: learning_rate={learning_rate!r}"
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
        # A copy, because Keras modifies it. Without `is_legacy_optimizer`,
        # legacy Keras would return an optimizer of `keras.optimizers.legacy`.
        identifier = copy.deepcopy(identifier)
        if not KERAS_3:
            config = identifier.setdefault("config", {})
            config.setdefault("is_legacy_optimizer", False)
    is_empty = isinstance(identifier, dict) and "class_name" not in identifier
    advice = advice_on_version(identifier)
    if identifier is not None and not is_empty and not advice:
        optimizer = keras.optimizers.get(identifier)
        if isinstance(optimizer, keras.optimizers.Optimizer):
            return optimizer
    raise ValueError(
        "`real_optimizer` must be a `keras.optimizers.Optimizer`, its name or "
        f"its configuration. {advice}Received: real_optimizer={identifier}"
    )


def register_optimizer(name):
    """Makes an optimizer available by its name, as in `compile("adam")`.

    This has an effect only in Keras 3. Legacy Keras would save the name of such
    an optimizer in a `.keras` file, and could not load this file.

    Args:
        name: String.

    Returns:
        Decorator of a class.
    """

    def decorate(optimizer_class):
        if KERAS_3:
            keras.utils.get_custom_objects()[name] = optimizer_class
        return optimizer_class

    return decorate


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
