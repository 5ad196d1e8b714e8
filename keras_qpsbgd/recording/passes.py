"""What a backward pass leaves behind, and how a gradient carries it."""

import collections

import tensorflow as tf

from keras_qpsbgd import ops

# How many backward passes an eager update can be put together from.
LATEST = 16

# Names of attributes: of a variable and of its gradients.
_MARK = "_keras_qpsbgd_mark"
_PASS = "_keras_qpsbgd_pass"


class UnknownOrigin(ValueError):
    """The backward passes that a gradient came from cannot be found.

    Args:
        reason: why, the end of a sentence that says `because it ...`.
        advice: what to do, whole sentences.
    """

    def __init__(self, reason, advice):
        super().__init__(f"{reason}. {advice}")
        self.reason = reason
        self.advice = advice


class BinaryKernel:
    """The mark of a binary kernel: what an optimizer knows about its layer.

    Args:
        kernel: the Keras variable, which gets the mark as an attribute.
        num_variables: n, the number of inputs of one output.
        num_columns: m, the number of outputs.
        name: name of the layer, for messages.
        training_weights: `"binary"` or `"latent"`, what the layer multiplies
            by in training.
    """

    def __init__(
        self, kernel, num_variables, num_columns, name, training_weights
    ):
        self.kernel = kernel
        self.num_variables = num_variables
        self.num_columns = num_columns
        self.name = name
        self.training_weights = training_weights
        self._latest = {}
        setattr(kernel, _MARK, self)

    @property
    def latest(self):
        """Eager passes of this replica, pairs of gradient and `Pass`.

        All were taken at the current value of the kernel. An update empties it.
        """
        return self._latest.setdefault(
            replica(), collections.deque(maxlen=LATEST)
        )

    def remember(self, gradient, one_pass):
        """Attaches a pass to the gradient that it returns."""
        setattr(gradient, _PASS, one_pass)
        if tf.executing_eagerly():
            latest = self.latest
            # Gradients that are added up were all taken at the same weights.
            if latest and not latest[-1][1].at(one_pass.value):
                latest.clear()
            latest.append((gradient, one_pass))


def mark_of(variable):
    """The `BinaryKernel` of a variable, or `None` if it is not binary."""
    return getattr(variable, _MARK, None)


def replica():
    """The number of this replica, or `None` outside of any."""
    context = tf.distribute.get_replica_context()
    number = context and context.replica_id_in_sync_group
    if tf.is_tensor(number):
        number = tf.get_static_value(number)
    return None if number is None else int(number)


class Pass:
    """One call of a layer in one backward pass.

    Args:
        mark: the `BinaryKernel`.
        value: tensor, the kernel in the forward pass.
        make_call: function that returns the `ops.LayerCall`. Nothing is
            computed before an optimizer asks for it.
    """

    def __init__(self, mark, value, make_call):
        self.mark = mark
        self.value = value
        self.make_call = make_call
        self.replica = replica()

    def at(self, value):
        """Whether the kernel had this value. Eager execution only."""
        return bool(tf.reduce_all(self.value == value))


def pass_of(tensor, mark):
    """The `Pass` that a tensor carries for a kernel, or `None`."""
    found = getattr(tensor, _PASS, None)
    if found is None or found.mark.kernel is not mark.kernel:
        return None
    return found


def carries_pass(tensor):
    """Whether a tensor is the gradient of any binary kernel."""
    return hasattr(tensor, _PASS)


def recorded_product(mark, kernel, inputs, multiply, make_call, noisy_axis):
    """The product with the sign of a kernel, whose gradient is recorded.

    Its backward function returns ordinary gradients, and attaches the pass to
    the gradient of the kernel. Other contributions to that gradient, such as
    second derivatives, arrive as tensors of their own, without a pass.

    Args:
        mark: the `BinaryKernel`.
        kernel: tensor, the value of the kernel.
        inputs: what `multiply` takes, a tensor or a structure of tensors.
        multiply: function of `inputs` and the binary kernel.
        make_call: function of `inputs`, the binary kernel and the gradient V
            of the product that returns the `ops.LayerCall`.
        noisy_axis: axis of the features of `inputs`, whose gradient is freed
            from rounding noise; `None` leaves it as it is.
    """
    flat = tf.nest.flatten(inputs)
    positions = [
        index
        for index, one in enumerate(flat)
        if isinstance(one, tf.Tensor) and one.dtype.is_floating
    ]

    @tf.custom_gradient
    def product(kernel, *differentiable):
        for index, tensor in zip(positions, differentiable):
            flat[index] = tensor
        given = tf.nest.pack_sequence_as(inputs, flat)
        sources = [kernel, *differentiable]
        with tf.GradientTape(
            persistent=True, watch_accessed_variables=False
        ) as tape:
            tape.watch(sources)
            binary = ops.binarize(kernel)
            result = multiply(given, binary)

        @tf.autograph.experimental.do_not_convert
        def backward(upstream):
            gradient, *others = tape.gradient(
                result, sources, upstream, tf.UnconnectedGradients.ZERO
            )
            # The identity is an object that no other gradient can be.
            gradient = tf.identity(tf.convert_to_tensor(gradient))
            mark.remember(
                gradient,
                Pass(mark, kernel, lambda: make_call(given, binary, upstream)),
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
