"""What a backward pass leaves behind, and how a gradient carries it."""

import collections

import tensorflow as tf

from keras_qpsbgd import ops

# How many backward passes an eager update can be put together from.
LATEST = 32

# Names of the attributes that tensors carry.
_MARK = "binary_kernel"
_PASS = "_keras_qpsbgd_pass"
_UPSTREAM = "_keras_qpsbgd_upstream"


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

    Attributes:
        latest: eager passes taken at the current value of the kernel, as pairs
            of gradient and `Pass`. An update empties it.
    """

    def __init__(
        self, kernel, num_variables, num_columns, name, training_weights
    ):
        self.kernel = kernel
        self.num_variables = num_variables
        self.num_columns = num_columns
        self.name = name
        self.training_weights = training_weights
        self.latest = collections.deque(maxlen=LATEST)
        setattr(kernel, _MARK, self)

    def remember(self, gradient, one_pass):
        """Attaches a pass to the gradient that it returns."""
        setattr(gradient, _PASS, one_pass)
        if tf.executing_eagerly():
            # Gradients that are added up were all taken at the same weights.
            if self.latest and not self.latest[-1][1].at(one_pass.value):
                self.latest.clear()
            self.latest.append((gradient, one_pass))


def mark_of(variable):
    """The `BinaryKernel` of a variable, or `None` if it is not binary."""
    return getattr(variable, _MARK, None)


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
        context = tf.distribute.get_replica_context()
        self.replica = context and context.replica_id_in_sync_group

    def at(self, value):
        """Whether the kernel had this value. Eager execution only."""
        return bool(tf.reduce_all(self.value == value))


def pass_of(tensor, mark):
    """The `Pass` that a tensor carries for a kernel, or `None`."""
    found = getattr(tensor, _PASS, None)
    return found if found is not None and found.mark is mark else None


def carries_pass(tensor):
    """Whether a tensor is the gradient of any binary kernel."""
    return hasattr(tensor, _PASS)


def recorded_product(mark, kernel, inputs, multiply, make_call, noisy_axis):
    """The product with the sign of a kernel, whose gradient is recorded.

    The backward pass through the product reaches kernel and inputs by ordinary
    gradients. They are watched on their way: the backward function of the
    kernel, which runs only if its gradient is requested, attaches the pass.
    For this it must know the gradient V of the product. V comes along the same
    way, on the gradient of a "ticket", a scalar that each watched tensor hands
    to the product. So it is always the V of this very backward pass.

    Args:
        mark: the `BinaryKernel`.
        kernel: tensor, the value of the kernel.
        inputs: what `multiply` takes, a tensor or a structure of tensors.
        multiply: function of `inputs` and the binary kernel.
        make_call: function of `inputs`, the binary kernel and V that returns
            the `ops.LayerCall`.
        noisy_axis: axis of the features of `inputs`, whose gradient is freed
            from rounding noise; `None` leaves it as it is.
    """

    def attach(gradient, upstream):
        gradient = tf.identity(gradient)  # no other tensor is this object
        one_pass = Pass(
            mark, kernel, lambda: make_call(inputs, binary, upstream)
        )
        mark.remember(gradient, one_pass)
        return gradient

    def silence(gradient, upstream):
        return ops.without_rounding_noise(gradient, upstream, noisy_axis)

    binary, ticket = _watched(kernel, ops.sign, attach)
    tickets = [ticket]
    watched_inputs = inputs
    if noisy_axis is not None:
        watched_inputs, ticket = _watched(inputs, tf.identity, silence)
        tickets.append(ticket)
    return _with_tickets(multiply(watched_inputs, binary), *tickets)


def _watched(tensor, forward, on_gradient):
    """`forward(tensor)`, with the identity as gradient, and a ticket.

    Args:
        tensor: a tensor.
        forward: function of it.
        on_gradient: function of the gradient and of V that returns the gradient
            to pass on. It is not called in a backward pass that does not go
            through the product, such as that of a gradient penalty.
    """

    @tf.custom_gradient
    def watched(tensor):
        def backward(gradient, ticket_gradient):
            upstream = getattr(ticket_gradient, _UPSTREAM, None)
            if upstream is None:
                return gradient
            return on_gradient(gradient, upstream)

        return (forward(tensor), tf.constant(0.0)), backward

    return watched(tensor)


@tf.custom_gradient
def _with_tickets(product, *tickets):
    """The product, whose backward function hands V to all tickets."""

    def backward(upstream):
        gradients = []
        for _ in tickets:
            gradient = tf.constant(0.0)
            setattr(gradient, _UPSTREAM, upstream)
            gradients.append(gradient)
        return (upstream, *gradients)

    return tf.identity(product), backward
