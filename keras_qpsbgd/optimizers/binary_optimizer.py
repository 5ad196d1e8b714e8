"""What the optimizers of binary networks share."""

import copy
import warnings

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import recording

# Arguments that concern real variables only: the inner optimizer's business.
_REAL_ONLY = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm")


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
        real_optimizer: a Keras optimizer, its name or configuration.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`. `weight_decay` and
            gradient clipping are handed to `real_optimizer`.
    """

    training_weights = "binary"

    def __init__(self, learning_rate, real_optimizer, name=None, **kwargs):
        real_only = {key: kwargs.pop(key, None) for key in _REAL_ONLY}
        super().__init__(learning_rate, name=name, **kwargs)
        self.real_optimizer = self._inner(real_optimizer, real_only)
        self._binary = {}
        self._aggregate = True
        self._warned = set()

    # Set-up

    def _inner(self, real_optimizer, real_only):
        """The optimizer of the real variables."""
        inner = keras.optimizers.get(real_optimizer)
        if isinstance(inner, BinaryOptimizer):
            raise ValueError(
                "`real_optimizer` updates what is not binary and cannot be "
                f"{type(inner).__name__}. "
                f"Received: real_optimizer={real_optimizer}"
            )
        if getattr(inner, "use_ema", False):
            raise ValueError(
                f"Give `use_ema` to {type(self).__name__}, not to "
                "`real_optimizer`: it averages all variables. Received: "
                f"real_optimizer={real_optimizer}"
            )
        steps = getattr(self, "gradient_accumulation_steps", None)
        settings = {**real_only, "gradient_accumulation_steps": steps}
        for key, value in settings.items():
            if value is None:
                continue
            present = getattr(inner, key, None)
            if present is not None and present != value:
                raise ValueError(
                    f"`{key}` is set on `real_optimizer` already, to "
                    f"{present}. Received: {key}={value}"
                )
            setattr(inner, key, value)
        # Its state is part of ours; Keras would save and load it twice, the
        # second time after `load_own_variables` has put things in order.
        inner.save_own_variables = lambda store: None
        inner.load_own_variables = lambda store: None
        return inner

    def build(self, variables):
        """Creates all state.

        Args:
            variables: the model's trainable variables, at least one of them a
                binary kernel.
        """
        if not self.is_built():
            with tf.init_scope():
                self._build(list(variables))

    def _build(self, variables):
        binary, real = {}, []
        for variable in variables:
            mark = recording.mark_of(variable)
            if mark is None:
                real.append(variable)
            else:
                self._check_weights(mark)
                binary[self.variable_key(variable)] = mark
        if not binary:
            raise ValueError(
                f"`{type(self).__name__}` found no trainable binary kernel "
                "among the `variables`. Use a layer of `keras_qpsbgd.layers`, "
                "or another optimizer. "
                f"Received: {[v.name for v in variables]}"
            )
        super().build(variables)
        self._binary = binary
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
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        variables = list(trainable_variables)
        if not self.is_built():
            self.build(variables)
        binary, real = self.split(grads, variables)
        self.apply_real([g for g, _, _ in real], [v for _, v, _ in real])
        self.stock_apply(
            [_bare(grad) for grad, _, _ in binary],
            [variable for _, variable, _ in binary],
            self._aggregate,
        )

    def split(self, grads, variables):
        """Two lists of (gradient, variable, mark): binary and real.

        Variables without a gradient are in neither.
        """
        binary, real = [], []
        for grad, variable in zip(grads, variables):
            if grad is None:
                self._warn_once(
                    id(variable),
                    f"No gradient exists for the variable `{variable.name}`; "
                    "it is not updated.",
                )
                continue
            mark = self._binary.get(self.variable_key(variable))
            (real if mark is None else binary).append((grad, variable, mark))
        return binary, real

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
        if self.variable_key(variable) in self._binary:
            self.update_kernel(
                variable,
                tf.cast(gradient, variable.dtype),
                tf.cast(learning_rate, variable.dtype),
            )

    def update_kernel(self, kernel, gradient, learning_rate):
        """The rule, all arguments in the precision of the kernel."""
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
        for key in _REAL_ONLY:
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
        for variable, weight in zip(self.variables, weights):
            variable.assign(weight)

    def load_own_variables(self, store):
        super().load_own_variables(store)
        steps = self._accumulates()
        if steps and int(self._iterations) % steps:
            self._drop_partial_update()
            warnings.warn(
                "The optimizer was saved in the middle of a gradient "
                "accumulation. What had been accumulated is dropped; training "
                "goes on with the next whole update.",
                stacklevel=2,
            )


def _bare(gradient):
    """The gradient without the rows that only `QPSBGD` uses."""
    if isinstance(gradient, recording.RecordedGradient):
        return gradient.gradient
    return gradient
