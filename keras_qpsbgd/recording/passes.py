"""Recordings of backward passes, attached to the gradients of kernels."""

import collections

import tensorflow as tf

from keras_qpsbgd import ops

# Maximum number of backward passes that an eager update can combine.
MAX_LATEST = 16

# Attributes of a binary kernel and of its gradients.
_MARK = "_keras_qpsbgd_mark"
_PASS = "_keras_qpsbgd_pass"


class UnknownOrigin(ValueError):
    """Raised if the backward passes of a gradient cannot be found.

    Args:
        reason: String. The reason, which completes "because the gradient ...".
        advice: String. What the user can do, in complete sentences.
    """

    def __init__(self, reason, advice):
        super().__init__(f"{reason}. {advice}")
        self.reason = reason
        self.advice = advice


class BinaryKernel:
    """Marks a variable as a binary kernel and describes its layer.

    Args:
        kernel: Keras variable. Gets this object as an attribute.
        num_variables: Integer. The number n of inputs of each output.
        num_columns: Integer. The number m of outputs.
        name: String. The name of the layer, for messages.
        training_weights: `"binary"` or `"latent"`. The weights that the layer
            multiplies by during training.
        bits: Integer. The number of bits of a weight. Defaults to `1`.
    """

    def __init__(
        self, kernel, num_variables, num_columns, name, training_weights, bits=1
    ):
        self.kernel = kernel
        self.num_variables = num_variables
        self.num_columns = num_columns
        self.name = name
        self.training_weights = training_weights
        self.bits = bits
        self._latest = {}
        setattr(kernel, _MARK, self)

    @property
    def latest(self):
        """The latest eager passes of this replica, as `(gradient, Pass)` pairs.

        All of them were recorded at the current value of the kernel. An update
        clears them.
        """
        return self._latest.setdefault(
            replica(), collections.deque(maxlen=MAX_LATEST)
        )

    def remember(self, gradient, recording):
        """Attaches a `Pass` to its gradient."""
        setattr(gradient, _PASS, recording)
        if tf.executing_eagerly():
            latest = self.latest
            # Only passes at the same weights can be parts of one gradient.
            if latest and not latest[-1][1].is_at(recording.value):
                latest.clear()
            latest.append((gradient, recording))


def mark_of(variable):
    """Returns the `BinaryKernel` of a variable, `None` if it is not binary."""
    return getattr(variable, _MARK, None)


def replica():
    """Returns the number of the current replica, or `None` outside of one."""
    context = tf.distribute.get_replica_context()
    number = context and context.replica_id_in_sync_group
    if tf.is_tensor(number):
        number = tf.get_static_value(number)
    return None if number is None else int(number)


class Pass:
    """The recording of one call of a layer in one backward pass.

    Args:
        mark: The `BinaryKernel`.
        value: Tensor. The value of the kernel in the forward pass.
        make_call: Function that returns the `ops.LayerCall`. Nothing is
            computed until an optimizer calls it.
    """

    def __init__(self, mark, value, make_call):
        self.mark = mark
        self.value = value
        self.make_call = make_call
        self.replica = replica()

    def is_at(self, value):
        """Returns whether the kernel had this value, in eager execution."""
        return bool(tf.reduce_all(self.value == value))


def pass_of(tensor, mark):
    """Returns the `Pass` attached to a tensor for a kernel, or `None`."""
    found = getattr(tensor, _PASS, None)
    if found is None or found.mark.kernel is not mark.kernel:
        return None
    return found


def carries_pass(tensor):
    """Returns whether a tensor is the gradient of any binary kernel."""
    return hasattr(tensor, _PASS)


def recorded_product(mark, kernel, inputs, multiply, make_call, noisy_axis):
    """Multiplies by the weights of a kernel and records the backward pass.

    The backward function returns ordinary gradients and attaches a `Pass` to
    the gradient of the kernel. Other contributions to this gradient, such as
    second derivatives, are separate tensors without a `Pass`.

    Args:
        mark: The `BinaryKernel`.
        kernel: Tensor. The value of the kernel.
        inputs: Tensor or structure of tensors. The first argument of
            `multiply`.
        multiply: Function of `inputs` and the binary kernel.
        make_call: Function of `inputs`, the binary kernel and the gradient V of
            the product. Returns the `ops.LayerCall`.
        noisy_axis: Integer (optional). The feature axis of `inputs`, to remove
            rounding noise from the gradient of `inputs`. `None` leaves the
            gradient unchanged.

    Returns:
        The result of `multiply`.
    """
    flat = tf.nest.flatten(inputs)
    positions = [
        index
        for index, part in enumerate(flat)
        if isinstance(part, tf.Tensor) and part.dtype.is_floating
    ]

    @tf.custom_gradient
    def product(kernel, *differentiable):
        for index, tensor in zip(positions, differentiable):
            flat[index] = tensor
        structure = tf.nest.pack_sequence_as(inputs, flat)
        sources = [kernel, *differentiable]
        with tf.GradientTape(
            persistent=True, watch_accessed_variables=False
        ) as tape:
            tape.watch(sources)
            binary = ops.binarize(kernel, mark.bits)
            result = multiply(structure, binary)

        @tf.autograph.experimental.do_not_convert
        def backward(upstream):
            gradient, *others = tape.gradient(
                result, sources, upstream, tf.UnconnectedGradients.ZERO
            )
            # A new tensor object, which is not the gradient of anything else.
            gradient = tf.identity(tf.convert_to_tensor(gradient))
            mark.remember(
                gradient,
                Pass(
                    mark,
                    kernel,
                    lambda: make_call(structure, binary, upstream),
                ),
            )
            if noisy_axis is not None:
                others = [
                    ops.without_rounding_noise(
                        others[0], upstream, binary, noisy_axis
                    )
                ]
            return (gradient, *others)

        return result, backward

    return product(kernel, *(flat[index] for index in positions))
