"""Finds the passes of a gradient in a graph, by walking up from it.

This happens while the graph is traced and costs nothing when it runs. Each
tensor between the gradient and the passes gets its coefficient in the gradient,
from the gradient upwards:

- Sums, differences, products with a number, casts and the like are followed
  exactly.
- Any other operation (a mask, clipped entries, packing into one vector) is
  followed if there is just one pass above it. What it does to the entries has
  no effect on the rows; its coefficient is that of the projection on the
  gradient of the pass.

All parts of the gradient must be explained. A part without a pass may only be
made of constants and of the kernel itself, as that of a regularizer is.
Everything else (an argument of the function, a variable, the result of an inner
function, a product with data) could be a gradient of the layer as well, so the
origin is unknown.
"""

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.recording.passes import UnknownOrigin
from keras_qpsbgd.recording.passes import carries_pass
from keras_qpsbgd.recording.passes import pass_of
from keras_qpsbgd.recording.passes import replica

# Operations that return their first input, moved or summed over replicas.
_FORWARD = {
    "Cast",
    "CheckNumerics",
    "CollectiveReduce",
    "CollectiveReduceV2",
    "EnsureShape",
    "ExpandDims",
    "Identity",
    "NcclAllReduce",
    "PlaceholderWithDefault",
    "PreventGradient",
    "Reshape",
    "Snapshot",
    "Squeeze",
    "StopGradient",
}
# Operations that move the entries of several tensors.
_MOVES = {"ConcatV2", "Pack", "Slice", "Split", "SplitV", "StridedSlice"}
_MOVES |= {"Transpose", "Unpack"}
_SUMS = {"Add", "AddV2", "AddN", "AccumulateNV2"}
_PRODUCTS = {"Mul", "MulNoNan"}
_QUOTIENTS = {"RealDiv": tf.divide, "Div": tf.divide}
_QUOTIENTS["DivNoNan"] = tf.math.divide_no_nan
_CALLS = {"Case", "If", "StatelessCase", "StatelessIf"}
_CALLS |= {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}

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
_OTHER = (
    "Apply the gradient of the loss of binary layers in training, with at most "
    "sums, weights and clipping in between."
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
    """
    above = _Ancestors(gradient, mark)
    factors = {id(gradient): 1.0}
    found = {}
    for tensor in above.in_order:
        factor = factors.get(id(tensor))
        if factor is None:
            continue
        one_pass = pass_of(tensor, mark)
        if one_pass is not None:
            found[one_pass] = factor
        elif not above.passes[id(tensor)]:
            _check_other(tensor, mark)
        else:
            for source, part in _sources(tensor, factor, above):
                known = factors.get(id(source))
                factors[id(source)] = part if known is None else known + part
    here = replica()
    found = [
        (one_pass, factor)
        for one_pass, factor in found.items()
        if None in (here, one_pass.replica) or one_pass.replica == here
    ]
    if not found:
        raise UnknownOrigin(
            "does not come from a backward pass through the layer",
            "Call the layer without `training=False`.",
        )
    return found


class _Ancestors:
    """All tensors above a gradient, up to the passes.

    Attributes:
        in_order: the tensors, each before those that it is made of.
        passes: by `id` of a tensor, the gradient tensors of the kernel's passes
            above it.
    """

    def __init__(self, gradient, mark):
        self.in_order = []
        self.passes = {}
        self._alive = []  # an `id` counts as long as its object lives
        stack = [(gradient, False)]
        while stack:
            tensor, is_done = stack.pop()
            if is_done:
                self._finish(tensor, mark)
            elif id(tensor) not in self.passes:
                self.passes[id(tensor)] = frozenset()
                self._alive.append(tensor)
                stack.append((tensor, True))
                if not carries_pass(tensor):
                    stack += [(source, False) for source in _inputs(tensor)]
        self.in_order.reverse()

    def _finish(self, tensor, mark):
        self.in_order.append(tensor)
        if pass_of(tensor, mark) is not None:
            self.passes[id(tensor)] = frozenset([id(tensor)])
        elif not carries_pass(tensor):
            above = [self.passes[id(source)] for source in _inputs(tensor)]
            self.passes[id(tensor)] = frozenset().union(*above)

    def pass_gradient(self, tensor):
        """The gradient tensor of the only pass above, `None` if more."""
        above = self.passes[id(tensor)]
        if len(above) != 1:
            return None
        return next(one for one in self._alive if id(one) in above)


def _inputs(tensor):
    """What a tensor is made of, also outside of its function."""
    if not tf.is_symbolic_tensor(tensor):
        return []
    if tensor.op.type == "Placeholder":
        outer = _keras.captured_from(tensor)
        return [] if outer is None else [outer]
    return list(tensor.op.inputs)


def _sources(tensor, factor, above):
    """The tensors that a tensor is a combination of, with their factors."""
    operation = tensor.op
    kind, inputs = operation.type, list(operation.inputs)
    if kind == "Placeholder":
        return [(_keras.captured_from(tensor), factor)]
    if kind in _FORWARD:
        return [(inputs[0], factor)]
    if kind == "IdentityN":
        return [(inputs[tensor.value_index], factor)]
    if kind in _SUMS:
        return [(one, factor) for one in inputs]
    if kind == "Sub":
        return [(inputs[0], factor), (inputs[1], -factor)]
    if kind == "Neg":
        return [(inputs[0], -factor)]
    if kind in _QUOTIENTS and _is_number(inputs[1]):
        number = _QUOTIENTS[kind](1.0, _number(inputs[1]))
        return [(inputs[0], factor * number)]
    if kind in _PRODUCTS:
        # The number of a kernel with one entry is the one without axes.
        for number, other in (inputs, inputs[::-1]):
            if number.shape.rank == 0 or (
                _is_number(number) and not _is_number(other)
            ):
                return [(other, factor * _number(number))]
    if kind in ("Select", "SelectV2") and inputs[0].shape.num_elements() == 1:
        first = _number(inputs[0])
        chosen = [(inputs[1], first), (inputs[2], 1.0 - first)]
        return [(one, factor * share) for one, share in chosen]
    return _through_other(tensor, factor, above)


def _through_other(tensor, factor, above):
    """Through an operation that does not just add and scale."""
    gradient = above.pass_gradient(tensor)
    if gradient is None:
        raise UnknownOrigin(
            f"is not just a weighted sum of gradients (`{tensor.op.type}`)",
            _OTHER,
        )
    sources = [one for one in tensor.op.inputs if above.passes[id(one)]]
    if tensor.op.type in _MOVES:
        return [(sources[0], factor)]
    if tensor.shape != gradient.shape:
        raise UnknownOrigin(
            f"was reduced or reshaped on its way (`{tensor.op.type}`)", _OTHER
        )
    reference = tf.cast(gradient, tf.float32)
    share = tf.reduce_sum(tf.cast(tensor, tf.float32) * reference)
    size = tf.reduce_sum(tf.square(reference))
    # The inputs are looked at for parts that cannot be explained only.
    return [
        (gradient, factor * tf.math.divide_no_nan(share, size)),
        *((one, 0.0) for one in sources if one is not gradient),
    ]


def _check_other(tensor, mark):
    """Raises unless a part without a pass is like that of a regularizer."""
    seen = set()
    stack = [tensor]
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen or carries_pass(tensor):
            continue
        seen.add(id(tensor))
        if not tf.is_symbolic_tensor(tensor):
            if tensor.dtype == tf.resource:
                continue  # judged where it is read
            if tensor.shape.rank:
                raise UnknownOrigin("contains an eager tensor", _CARRY)
            continue
        operation = tensor.op
        kind = operation.type
        if kind == "ReadVariableOp":
            if not _reads(operation, mark) and not _is_number(tensor):
                raise UnknownOrigin("contains the value of a variable", _SUM)
            continue
        if kind == "Placeholder" and _keras.captured_from(tensor) is None:
            raise UnknownOrigin(
                "contains an argument of a `tf.function` outside of a "
                "recorded backward pass",
                _CARRY,
            )
        if kind in _CALLS:
            raise UnknownOrigin(
                "was computed inside a `tf.cond` or another `tf.function`",
                "If the model calls a `tf.function`, remove that decorator: "
                f"`fit` compiles the whole step. {_CARRY}",
            )
        if kind in _LOOPS:
            raise UnknownOrigin(
                "comes out of a `tf.while_loop` (or a loop over `tf.range`)",
                "Apply the gradients inside the loop, or unroll it (a Keras "
                "RNN: `unroll=True`).",
            )
        stack += _inputs(tensor)


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
