"""Finds the passes of a gradient in a graph, by walking up from it.

This happens while the graph is traced and costs nothing when it runs.

A linear path goes through sums, differences, products with a number and casts.
It gives each pass its coefficient. A linear path ends at any other operation
(packing gradients into one vector, a sum over replicas, a mask). All passes
above such an operation belong to the gradient, too.

No part of the gradient may remain unexplained. A value from elsewhere (an
argument of the function, a variable, the result of an inner function) could be
a gradient as well, so the origin is unknown then.
"""

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.recording.passes import UnknownOrigin
from keras_qpsbgd.recording.passes import carries_pass
from keras_qpsbgd.recording.passes import pass_of

# One input goes through as it is.
_FORWARD = {
    "Cast",
    "CheckNumerics",
    "ClipByValue",
    "EnsureShape",
    "ExpandDims",
    "Identity",
    "PlaceholderWithDefault",
    "PreventGradient",
    "Reshape",
    "Snapshot",
    "Squeeze",
    "StopGradient",
}
_SUMS = {"Add", "AddV2", "AddN", "AccumulateNV2"}
_PRODUCTS = {"Mul", "MulNoNan"}
_QUOTIENTS = {"RealDiv", "Div", "DivNoNan"}
# Clipping, and holes filled: the entries of one of the inputs.
_CHOICES = {"Maximum": (0, 1), "Minimum": (0, 1)}
_CHOICES.update({"Select": (1, 2), "SelectV2": (1, 2)})
_LOOPS = {"While", "StatelessWhile"}
_CALLS = {
    "Case",
    "If",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "StatelessCase",
    "StatelessIf",
}

_CARRY = (
    "Gradients that leave a function need "
    "`keras_qpsbgd.with_rows(gradients, variables)` inside it."
)
_SUM = (
    "To accumulate gradients, add those that "
    "`keras_qpsbgd.with_rows(gradients, variables)` returns"
    + (
        ", or set `gradient_accumulation_steps` on the optimizer."
        if _keras.KERAS_3
        else "."
    )
)


def passes(gradient, mark):
    """The passes of a symbolic gradient.

    Args:
        gradient: symbolic tensor.
        mark: the `BinaryKernel`.

    Returns:
        List of pairs `(Pass, coefficient)`, the coefficient a float or a scalar
        tensor.

    Raises:
        UnknownOrigin: if part of the gradient cannot be explained.
        ValueError: if it comes out of a `tf.while_loop`.
    """
    linear, elsewhere = {}, {}
    stack = [(gradient, 1.0)]
    while stack:
        tensor, factor = stack.pop()
        one_pass = pass_of(tensor, mark)
        if one_pass is not None:
            known = linear.get(one_pass)
            linear[one_pass] = factor if known is None else known + factor
            continue
        _raise_if_opaque(tensor, mark)
        above = _above(tensor, factor)
        if above is None:
            for found, coefficient in _search(tensor, factor, mark).items():
                elsewhere.setdefault(found, coefficient)
        else:
            stack.extend(above)
    found = _of_this_replica({**elsewhere, **linear})
    if not found:
        raise UnknownOrigin(
            "does not come from a backward pass through the layer",
            "Call the layer without `training=False`.",
        )
    return found


def _raise_if_opaque(tensor, mark):
    """Raises if a tensor comes from elsewhere."""
    if not tf.is_symbolic_tensor(tensor):
        raise UnknownOrigin("contains an eager tensor", _CARRY)
    operation = tensor.op
    kind = operation.type
    if kind == "Placeholder" and _keras.captured_from(tensor) is None:
        raise UnknownOrigin("is an argument of a `tf.function`", _CARRY)
    if kind == "ReadVariableOp" and not _reads(operation, mark):
        raise UnknownOrigin("contains the value of a variable", _SUM)
    if kind in _CALLS:
        raise UnknownOrigin(
            "was computed inside a `tf.cond` or another `tf.function`",
            "If the model calls a `tf.function`, remove that decorator: `fit` "
            f"compiles the whole step. {_CARRY}",
        )
    if kind in _LOOPS:
        raise ValueError(
            f"The gradient of the binary layer `{mark.name}` comes out of a "
            "`tf.while_loop` (a loop over `tf.range` is one), which hides its "
            "backward passes. Apply the gradients inside the loop, or unroll "
            "it (a Keras RNN: `unroll=True`). "
            f"Received: a gradient from {operation.name}"
        )


def _above(tensor, factor):
    """The next tensors of the linear path, or `None` where it ends."""
    operation = tensor.op
    kind, inputs = operation.type, operation.inputs
    if kind in _FORWARD:
        return [(inputs[0], factor)]
    if kind == "IdentityN":
        return [(inputs[tensor.value_index], factor)]
    if kind in _SUMS:
        return [(one, factor) for one in inputs]
    if kind == "Sub":
        return [(inputs[0], factor), (inputs[1], -factor)]
    scaled = _scaled(operation, factor)
    if scaled is not None:
        return [scaled]
    if kind in _CHOICES:
        chosen = [inputs[index] for index in _CHOICES[kind]]
        return [(one, factor) for one in chosen if not _is_number(one)]
    if kind == "Placeholder":
        return [(_keras.captured_from(tensor), factor)]
    return None


def _scaled(operation, factor):
    """The input that an operation multiplies by a number, and the factor."""
    kind, inputs = operation.type, operation.inputs
    if kind == "Neg":
        return inputs[0], -factor
    if kind in _QUOTIENTS and _is_number(inputs[1]):
        return inputs[0], factor * (1.0 / _number(inputs[1]))
    if kind not in _PRODUCTS:
        return None
    # The number of a kernel with one entry is the one without axes.
    left, right = sorted(inputs, key=lambda one: one.shape.rank != 0)
    if _is_number(left) and (left.shape.rank == 0 or not _is_number(right)):
        return right, factor * _number(left)
    if _is_number(right) and not _is_number(left):
        return left, factor * _number(right)
    return None


def _search(tensor, factor, mark):
    """All passes above a tensor, with the factors of one path to each.

    Raises:
        UnknownOrigin: if there is no pass, but a tensor from elsewhere that has
            the shape of the kernel.
    """
    found, others = {}, []
    seen = set()
    stack = [(tensor, factor)]
    while stack:
        tensor, factor = stack.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        one_pass = pass_of(tensor, mark)
        if one_pass is not None:
            found[one_pass] = factor
        elif not carries_pass(tensor):
            if tensor.shape == mark.kernel.shape:
                others.append(tensor)
            if tf.is_symbolic_tensor(tensor):
                stack.extend(_any_above(tensor, factor))
    if not found:
        for tensor in others:
            _raise_if_opaque(tensor, mark)
    return found


def _any_above(tensor, factor):
    operation = tensor.op
    kind, inputs = operation.type, operation.inputs
    if kind == "Placeholder":
        outer = _keras.captured_from(tensor)
        return [] if outer is None else [(outer, factor)]
    scaled = _scaled(operation, factor)
    if scaled is not None:
        return [scaled]
    return [(one, factor) for one in inputs]


def _of_this_replica(found):
    """Each replica contributes its own passes to the update."""
    context = tf.distribute.get_replica_context()
    replica = context and context.replica_id_in_sync_group
    return [
        (one_pass, factor)
        for one_pass, factor in found.items()
        if _same(one_pass.replica, replica)
    ]


def _same(one, other):
    values = [
        tf.get_static_value(value) if tf.is_tensor(value) else value
        for value in (one, other)
    ]
    return None in values or values[0] == values[1]


def _is_number(tensor):
    return tensor.dtype.is_floating and tensor.shape.num_elements() == 1


def _number(tensor):
    return tf.cast(tf.reshape(tensor, ()), tf.float32)


def _reads(operation, mark):
    """Whether an operation reads the kernel itself, as a regularizer does."""
    handle = operation.inputs[0]
    while tf.is_symbolic_tensor(handle) and handle.op.type == "Placeholder":
        handle = _keras.captured_from(handle)
    return handle is not None and _keras.is_handle_of(handle, mark.kernel)
