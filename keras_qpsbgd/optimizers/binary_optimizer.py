"""What the optimizers of binary networks share."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import _memory
from keras_qpsbgd import recording
from keras_qpsbgd.optimizers import inner_optimizer

LearningRate: TypeAlias = (
    float | Callable | keras.optimizers.schedules.LearningRateSchedule
)
OptimizerLike: TypeAlias = str | dict[str, Any] | keras.optimizers.Optimizer


class BinaryOptimizer(_keras.Optimizer):
    """Base class of optimizers that have a rule for binary kernels.

    Every other variable (biases, batch normalisation, an encoder) is updated
    by `real_optimizer`, whose state is saved as part of this one's. A subclass
    defines

    - `update_kernel(kernel, gradient, learning_rate)`, the rule;
    - optionally `add_state(marks)`, which creates what the rule remembers;
    - optionally `training_weights`, what its layers must multiply by.

    Args:
        learning_rate: float or schedule, for the binary kernels.
        real_optimizer: a Keras optimizer, its name or configuration. An
            optimizer object is copied, so that one object can be given to
            several optimizers; the copy is `optimizer.real_optimizer`.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`. `weight_decay` and
            gradient clipping are handed to `real_optimizer`.
    """

    training_weights = "binary"
    real_optimizer = None  # until it is set in `__init__`
    weight_decay = inner_optimizer.delegated("weight_decay")
    clipnorm = inner_optimizer.delegated("clipnorm")
    clipvalue = inner_optimizer.delegated("clipvalue")
    global_clipnorm = inner_optimizer.delegated("global_clipnorm")

    def __init__(self, learning_rate, real_optimizer, name=None, **kwargs):
        real_only = {
            key: kwargs.pop(key, None) for key in inner_optimizer.ARGUMENTS
        }
        super().__init__(learning_rate, name=name, **kwargs)
        self.real_optimizer = inner_optimizer.create(
            self, real_optimizer, real_only
        )
        self._binary = {}
        self._known = frozenset()
        self._aggregate = True
        self._warned = set()
        self._warn_about_rate()

    # Set-up

    def build(self, variables):
        """Creates all state.

        It does nothing without variables: Keras 3 calls it so when it loads an
        HDF5 file, and the first training step builds the optimizer.

        Args:
            variables: the model's trainable variables.
        """
        variables = list(variables)
        if variables and not self.is_built():
            with tf.init_scope():
                self._build(variables)

    def _build(self, variables):
        binary, real = {}, []
        for variable in variables:
            mark = recording.mark_of(variable)
            if mark is None:
                real.append(variable)
            else:
                self._check_weights(mark)
                binary[self.variable_key(variable)] = mark
        super().build(variables)
        self._binary = binary
        self._known = frozenset(map(self.variable_key, variables))
        self.add_state(list(binary.values()))
        _keras.build_inner(self.real_optimizer, real)

    def _check_weights(self, mark):
        if mark.training_weights != self.training_weights:
            raise ValueError(
                f"`{type(self).__name__}` needs layers with "
                f'`training_weights="{self.training_weights}"`. Pass it to the '
                "layer, or set the attribute of the layer before the model is "
                f"compiled. Received: layer `{mark.name}` with "
                f"training_weights={mark.training_weights!r}"
            )

    def add_state(self, marks):
        """Creates the variables of the rule, in `build`.

        Args:
            marks: the `recording.BinaryKernel` of every kernel.
        """

    def add_slots(self, marks, name):
        """A variable of zeros for each kernel, by `variable_key`."""
        return {
            self.variable_key(mark.kernel): self.add_variable_from_reference(
                mark.kernel, name
            )
            for mark in marks
        }

    @property
    def variables(self):
        own = super().variables
        return type(own)(list(own) + list(self.real_optimizer.variables))

    # One update

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads, trainable_variables=None):
        """Updates the variables, given their gradients."""
        grads = list(grads)
        if not grads:
            return
        binary, real = self.split(grads, trainable_variables)
        self.apply_real([g for g, _, _ in real], [v for _, v, _ in real])
        self.apply_binary(
            [_bare(grad) for grad, _, _ in binary],
            [variable for _, variable, _ in binary],
            [variable for _, variable, _ in real],
            self._aggregate,
        )
        _memory.free_with(self)

    def split(self, grads, variables):
        """Two lists of (gradient, variable, mark): binary and real.

        Variables without a gradient are in neither. Builds the optimizer if
        that has not been done.

        Args:
            grads: list of gradients.
            variables: list of variables, `None` for those that the optimizer
                was built on.

        Raises:
            ValueError: if the gradients do not belong to the variables, or the
                variables not to the optimizer.
        """
        if variables is None:
            if not self.is_built():
                raise ValueError(
                    "`trainable_variables` is required until the optimizer is "
                    "built. Received: trainable_variables=None"
                )
            variables = self._trainable_variables
        variables = list(variables)
        self.build(variables)
        self._check_variables(grads, variables)
        binary, real = [], []
        for grad, variable in zip(grads, variables):
            key = self.variable_key(variable)
            if grad is None:
                self._warn_once(
                    ("no gradient", key),
                    "No gradient exists for the variable "
                    f"`{_path(variable)}`; it is not updated.",
                )
                continue
            mark = self._binary.get(key)
            (real if mark is None else binary).append((grad, variable, mark))
        return binary, real

    def _check_variables(self, grads, variables):
        if len(grads) != len(variables):
            raise ValueError(
                "`grads` must have one entry for each variable. Received: "
                f"{len(grads)} gradients for {len(variables)} variables"
            )
        unknown = [
            _path(variable)
            for variable in variables
            if self.variable_key(variable) not in self._known
        ]
        if unknown:
            raise ValueError(
                f"`{type(self).__name__}` can only be called for the variables "
                "that it was built with. For another model, or after a layer "
                "has been unfrozen, compile with a new optimizer. Received: "
                f"unknown variables {unknown}"
            )
        if not self._binary:
            raise ValueError(
                f"`{type(self).__name__}` found no trainable binary kernel "
                "among the `variables`. Use a layer of `keras_qpsbgd.layers`, "
                "or another optimizer. "
                f"Received: {[_path(variable) for variable in variables]}"
            )
        if all(grad is None for grad in grads):
            raise ValueError(
                "No gradients provided for any variable. Does the loss depend "
                "on the outputs of the model? Received: None for "
                f"{[_path(variable) for variable in variables]}"
            )

    def apply_binary(self, grads, variables, others, aggregate=True):
        """Lets Keras update binary kernels and count the update.

        Args:
            grads: list of gradients.
            variables: list of binary kernels.
            others: the real variables of the same update. Without any binary
                kernel, Keras counts the update because of one of them;
                `update_step` leaves it alone.
            aggregate: see `stock_apply`.
        """
        if not variables:
            variables = others[:1]
            grads = [tf.zeros(v.shape, v.dtype) for v in variables]
        self.stock_apply(grads, variables, aggregate)

    def apply_real(self, grads, variables):
        """Updates real variables."""
        scale = getattr(self, "loss_scale_factor", None)
        if scale is not None:
            grads = [grad / scale for grad in grads]
        if grads:
            _keras.apply_inner(
                self.real_optimizer, grads, variables, self._aggregate
            )

    def update_step(self, gradient, variable, learning_rate=None):
        """Updates one variable, if it is a binary kernel.

        Keras has summed `gradient` over replicas, and hands over every variable
        where it averages them.
        """
        if self.is_updated(gradient, variable):
            self.update_kernel(
                variable,
                tf.cast(gradient, variable.dtype),
                tf.cast(learning_rate, variable.dtype),
            )

    def is_updated(self, gradient, variable):
        """Whether the variable is a binary kernel with a gradient.

        A gradient without axes stands for none.
        """
        is_binary = self.variable_key(variable) in self._binary
        return is_binary and gradient.shape.rank != 0

    def update_kernel(self, kernel, gradient, learning_rate):
        """The rule, all arguments in the precision of the kernel."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `update_kernel`."
        )

    def _warn_about_rate(self):
        rate = _keras.constant_rate(self)
        if rate is not None and not math.isfinite(rate):
            self._warn_once(
                "rate",
                "The learning rate is not finite. Updates are skipped, or "
                "make the weights NaN or infinite. Received: "
                f"learning_rate={rate}",
            )

    def finalize_variable_values(self, var_list):
        """Called by Keras at the end of `fit`."""
        self._warn_about_rate()
        super().finalize_variable_values(var_list)

    def _warn_once(self, key, message):
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, stacklevel=3)

    # Gradient accumulation

    def _accumulates(self):
        return getattr(self, "gradient_accumulation_steps", None)

    def _drop_partial_update(self):
        """Goes back to the start of an accumulation."""
        steps = self._accumulates()
        if not steps:
            return
        for optimizer in (self, self.real_optimizer):
            iterations = optimizer._iterations
            iterations.assign(iterations - iterations % steps)
            for gradient in getattr(optimizer, "_accumulated_gradients", []):
                gradient.assign(tf.zeros(gradient.shape, gradient.dtype))

    # Configuration and state

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.real_optimizer.exclude_from_weight_decay(var_list, var_names)

    def get_config(self):
        config = super().get_config()
        for key in inner_optimizer.ARGUMENTS:
            config.pop(key)
        inner = keras.optimizers.serialize(self.real_optimizer)
        config["real_optimizer"] = inner
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = copy.deepcopy(config)  # Keras changes it in deserializing
        if isinstance(config.get("real_optimizer"), dict):
            config["real_optimizer"] = keras.optimizers.deserialize(
                config["real_optimizer"], custom_objects=custom_objects
            )
        return super().from_config(config, custom_objects=custom_objects)

    def set_weights(self, weights):
        """Sets all variables, including those of `real_optimizer`.

        Args:
            weights: list of arrays, as many as there are `variables`.

        Raises:
            ValueError: if the optimizer is not built, or a number or a shape
                does not fit. No variable has changed then.
        """
        if not self.is_built():
            raise ValueError(
                "`set_weights` needs an optimizer that is built. Call "
                "`optimizer.build(model.trainable_variables)` first. Received: "
                f"{len(weights)} weights"
            )
        variables = list(self.variables)
        expected = [tuple(variable.shape) for variable in variables]
        received = [np.shape(weight) for weight in weights]
        if received != expected:
            raise ValueError(
                f"`weights` must have the shapes {expected}. "
                f"Received: {received}"
            )
        for variable, weight in zip(variables, weights):
            variable.assign(weight)

    def load_own_variables(self, store):
        super().load_own_variables(store)
        steps = self._accumulates()
        if steps and int(tf.convert_to_tensor(self._iterations)) % steps:
            self._drop_partial_update()
            warnings.warn(
                "The optimizer was saved in the middle of a gradient "
                "accumulation. What had been accumulated is dropped; training "
                "goes on with the next whole update.",
                stacklevel=2,
            )


def _path(variable):
    """The name of a variable with that of its layer."""
    return getattr(variable, "path", variable.name)


def _bare(gradient):
    """The gradient without the rows that only `QPSBGD` uses."""
    if isinstance(gradient, recording.RecordedGradient):
        return gradient.gradient
    return gradient
