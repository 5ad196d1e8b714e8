"""Base class of the optimizers for binary networks."""

import copy
import warnings
from collections.abc import Callable
from typing import Any
from typing import TypeAlias

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import memory
from keras_qpsbgd.optimizers.inner import REAL_ONLY
from keras_qpsbgd.optimizers.inner import delegated
from keras_qpsbgd.optimizers.inner import inner_optimizer

LearningRate: TypeAlias = (
    float | Callable | keras.optimizers.schedules.LearningRateSchedule
)
OptimizerLike: TypeAlias = str | dict[str, Any] | keras.optimizers.Optimizer


class BinaryOptimizer(_keras.Optimizer):
    """Base class of optimizers with an update rule for binary kernels.

    `real_optimizer` updates every other variable, such as biases, batch
    normalization and an encoder. Its state is saved as part of the state of
    this optimizer. A subclass defines

    - `update_kernel(kernel, gradient, learning_rate)`, the update rule;
    - optionally `add_state(marks)`, which creates the state of the rule;
    - optionally `training_weights`, the weights that its layers must multiply
      by in training.

    Args:
        learning_rate: The learning rate of the binary kernels, see `QPSBGD`.
        real_optimizer: See `QPSBGD`.
        name: String (optional). The name of the optimizer. Defaults to `None`.
        **kwargs: See `QPSBGD`.
    """

    training_weights = "binary"
    # Kernels with more inputs are updated by `real_optimizer`.
    max_variables: int | None = None
    real_optimizer: Any = None  # set in `__init__`
    weight_decay = delegated("real_optimizer", "weight_decay")
    clipnorm = delegated("real_optimizer", "clipnorm")
    clipvalue = delegated("real_optimizer", "clipvalue")
    global_clipnorm = delegated("real_optimizer", "global_clipnorm")

    def __init__(self, learning_rate, real_optimizer, name=None, **kwargs):
        real_only = {key: kwargs.pop(key, None) for key in REAL_ONLY}
        super().__init__(learning_rate, name=name, **kwargs)
        self.real_optimizer = inner_optimizer(self, real_optimizer, real_only)
        self._binary = {}
        self._names = {}
        self._known = frozenset()
        self._aggregate = True
        self._warned = set()

    # Setup

    def build(self, variables: Any) -> None:
        """Creates the state of the optimizer.

        Does nothing if `variables` is empty. Keras 3 passes an empty list when
        it loads an HDF5 file. The first training step then builds the
        optimizer.

        Args:
            variables: List of the trainable variables of the model.
        """
        variables = list(variables)
        if variables and not self.is_built():
            with tf.init_scope():
                self._build(variables)

    def _build(self, variables):
        binary, real, too_wide = {}, [], []
        marks = [statistics.mark_of(variable) for variable in variables]
        for variable, mark in zip(variables, marks):
            if mark is not None and not self.is_binary(mark):
                too_wide.append(mark.num_variables)
            if mark is None or not self.is_binary(mark):
                real.append(variable)
            else:
                self._check_weights(mark)
                binary[self.variable_key(variable)] = mark
        if too_wide and not binary:
            raise ValueError(
                "No binary layer is left for the QUBO solver. Increase "
                "`max_variables`, or use `real_optimizer` itself. Received: "
                f"max_variables={self.max_variables} and layers with "
                f"{too_wide} inputs"
            )
        super().build(variables)
        self._binary = binary
        names = statistics.names_of([m for m in marks if m is not None])
        self._names = {mark: names[mark] for mark in binary.values()}
        self._known = frozenset(map(self.variable_key, variables))
        self.add_state(list(binary.values()))
        _keras.build_inner(self.real_optimizer, real)

    def _check_weights(self, mark):
        if mark.training_weights != self.training_weights:
            raise ValueError(
                f"`{type(self).__name__}` requires layers with "
                f'`training_weights="{self.training_weights}"`. Pass this '
                "argument to the layer, or set the attribute of the layer "
                "before you compile the model. Received: layer "
                f"`{mark.name}` with "
                f"training_weights={mark.training_weights!r}"
            )

    def is_binary(self, mark):
        """Returns whether the update rule applies to a binary kernel."""
        most = self.max_variables
        return most is None or mark.num_variables <= most

    def add_state(self, marks):
        """Creates the state of the update rule. Called by `build`.

        Args:
            marks: List with the `statistics.BinaryKernel` of every kernel.
        """

    def add_zeros(self, marks, name):
        """Maps the `variable_key` of each kernel to a variable of zeros."""
        return {
            self.variable_key(mark.kernel): self.add_variable_from_reference(
                mark.kernel, name
            )
            for mark in marks
        }

    def bits(self, kernel):
        """Returns the number of bits of the weights of a binary kernel."""
        return self._binary[self.variable_key(kernel)].bits

    @property
    def variables(self):
        own = super().variables
        return type(own)(list(own) + list(self.real_optimizer.variables))

    # One update

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads, trainable_variables=None):
        """Updates the variables with their gradients."""
        grads = list(grads)
        if not grads:
            return
        binary, real = self.split(grads, trainable_variables)
        self.apply_real([g for g, _, _ in real], [v for _, v, _ in real])
        self.apply_binary(
            [grad for grad, _, _ in binary],
            [variable for _, variable, _ in binary],
            [variable for _, variable, _ in real],
            self._aggregate,
        )
        memory.free_with(self)

    def split(self, grads, variables):
        """Splits gradients and variables into binary and real ones.

        Also builds the optimizer if it is not built yet.

        Args:
            grads: List of gradients.
            variables: List of variables, or `None` for the variables that the
                optimizer was built with.

        Returns:
            Two lists of tuples `(gradient, variable, mark)`, for binary and for
            real variables. Variables without a gradient are in neither list.

        Raises:
            ValueError: If the gradients do not match the variables in number
                or shape, the variables do not match the optimizer, or Keras
                cannot accumulate the gradients.
        """
        self._check_accumulation()
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
                    f"`{_path(variable)}`. It is not updated.",
                )
                continue
            _check_shape(grad, variable)
            mark = self._binary.get(key)
            if mark is not None:
                binary.append((grad, variable, mark))
                continue
            real.append((grad, variable, mark))
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
                f"`{type(self).__name__}` can only update the variables that "
                "it was built with. For another model, or after unfreezing a "
                "layer, compile with a new optimizer. Received: unknown "
                f"variables {unknown}"
            )
        if not self._binary:
            raise ValueError(
                f"`{type(self).__name__}` found no trainable binary kernel "
                "among the `variables`. Use a layer from `keras_qpsbgd.layers` "
                "or another optimizer. "
                f"Received: {[_path(variable) for variable in variables]}"
            )
        if all(grad is None for grad in grads):
            raise ValueError(
                "No gradients provided for any variable. Check that the loss "
                "depends on the outputs of the model. Received: None for "
                f"{[_path(variable) for variable in variables]}"
            )

    def apply_binary(self, grads, variables, others, aggregate=True):
        """Updates binary kernels through Keras, which counts the update.

        Args:
            grads: List of gradients.
            variables: List of binary kernels.
            others: List of the real variables of the same update. If there is
                no binary kernel, the first of them is passed to Keras so that
                it counts the update. `update_step` does not change it.
            aggregate: Boolean, see `stock_apply`. Defaults to `True`.
        """
        if not variables:
            variables = others[:1]
            grads = [tf.zeros(v.shape, v.dtype) for v in variables]
        self.stock_apply(grads, variables, aggregate)

    def apply_real(self, grads, variables):
        """Updates real variables with `real_optimizer`."""
        scale = getattr(self, "loss_scale_factor", None)
        if scale is not None:
            grads = [grad / scale for grad in grads]
        if grads:
            _keras.apply_inner(
                self.real_optimizer, grads, variables, self._aggregate
            )

    def update_step(self, gradient, variable, learning_rate=None):
        """Updates one variable if it is a binary kernel.

        Keras calls this method with a `gradient` that is summed over replicas.
        With `use_ema`, it passes every variable.
        """
        if self.is_updated(gradient, variable):
            self.update_kernel(
                variable,
                tf.cast(gradient, variable.dtype),
                tf.cast(learning_rate, variable.dtype),
            )

    def is_updated(self, gradient, variable):
        """Returns whether the variable is a binary kernel with a gradient.

        A scalar gradient is a placeholder for a missing gradient.
        """
        is_binary = self.variable_key(variable) in self._binary
        return is_binary and gradient.shape.rank != 0

    def update_kernel(self, kernel, gradient, learning_rate):
        """Updates one kernel. All arguments have the dtype of the kernel."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `update_kernel`."
        )

    def _warn_once(self, key, message):
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, stacklevel=3)

    # Gradient accumulation

    def _accumulates(self):
        return getattr(self, "gradient_accumulation_steps", None)

    def _check_accumulation(self):
        """Raises a `ValueError` where Keras would raise an unclear error.

        Keras optimizers merge the replicas inside a `tf.cond`.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if self._accumulates() and replicas > 1 and not tf.executing_eagerly():
            raise ValueError(
                "With several replicas, Keras can accumulate gradients only in "
                "eager steps. Pass `run_eagerly=True` to `compile`, or remove "
                "`gradient_accumulation_steps`. Received: "
                f"gradient_accumulation_steps={self._accumulates()} and "
                f"{replicas} replicas"
            )

    # Configuration and state

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.real_optimizer.exclude_from_weight_decay(var_list, var_names)

    def get_config(self):
        config = super().get_config()
        for key in REAL_ONLY:
            config.pop(key)
        inner = keras.optimizers.serialize(self.real_optimizer)
        config["real_optimizer"] = inner
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = copy.deepcopy(config)  # deserializing changes it
        if isinstance(config.get("real_optimizer"), dict):
            config["real_optimizer"] = keras.optimizers.deserialize(
                config["real_optimizer"], custom_objects=custom_objects
            )
        return super().from_config(config, custom_objects=custom_objects)

    def set_weights(self, weights):
        """Sets all variables. Legacy Keras calls this to load an HDF5 file."""
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.assign(weight)


def _check_shape(grad, variable):
    """Raises if a gradient cannot have the shape of its variable."""
    if not tf.TensorShape(grad.shape).is_compatible_with(variable.shape):
        raise ValueError(
            "`grads` must have the shapes of their variables. Received: a "
            f"gradient of shape {tuple(grad.shape)} for the variable "
            f"`{_path(variable)}` of shape {tuple(variable.shape)}"
        )


def _path(variable):
    """Returns the name of a variable, including the name of its layer."""
    return getattr(variable, "path", variable.name)
