"""Finds the passes of a gradient in a graph, by following its operations.

The search starts at the gradient and follows the inputs of each operation back
to the passes. It runs while the graph is traced and costs nothing at run time.
Each tensor on the way gets its coefficient in the gradient:

- Sums, differences, products with a number, casts and similar operations are
  followed exactly.
- Any other operation (a mask, clipped entries, packing into one vector) is
  followed if there is only one pass among its inputs. Its effect on the entries
  does not change the rows. Its coefficient is that of the projection onto the
  gradient of the pass.

All parts of the gradient must be explained. A part without a pass may consist
only of constants and of the kernel itself, like the gradient of a regularizer.
Any other part (an argument of the function, a variable, the result of an inner
function, a product with data) could also be a gradient of the layer, so the
origin is unknown.
"""

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.recording.passes import UnknownOrigin
from keras_qpsbgd.recording.passes import carries_pass
from keras_qpsbgd.recording.passes import pass_of
from keras_qpsbgd.recording.passes import replica

# Operations that return their first input, reshaped or summed over replicas.
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
# Operations that rearrange the entries of several tensors.
_MOVES = {"ConcatV2", "Pack", "Slice", "Split", "SplitV", "StridedSlice"}
_MOVES |= {"Transpose", "Unpack"}
_SUMS = {"Add", "AddV2", "AddN", "AccumulateNV2"}
_PRODUCTS = {"Mul", "MulNoNan"}
_QUOTIENTS = {"RealDiv": tf.divide, "Div": tf.divide}
_QUOTIENTS["DivNoNan"] = tf.math.divide_no_nan
_CALLS = {"Case", "If", "StatelessCase", "StatelessIf"}
_CALLS |= {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}

# Advice for the user.
_USE_WITH_ROWS = (
    "For gradients that leave a function, call "
    "`keras_qpsbgd.with_rows(gradients, variables)` inside that function."
)
_HOW_TO_ACCUMULATE = (
    "To accumulate gradients, add the gradients that "
    "`keras_qpsbgd.with_rows(gradients, variables)` returns"
    + (
        ", or set `gradient_accumulation_steps` on the optimizer."
        if _keras.KERAS_3
        else "."
    )
)
_SUPPORTED = (
    "Apply the gradient of a training loss. Before you apply it, you can only "
    "add, scale and clip gradients."
)


def find_passes(gradient, mark):
    """Finds the passes of a symbolic gradient.

    Args:
        gradient: Symbolic tensor.
        mark: The `BinaryKernel`.

    Returns:
        List of pairs `(Pass, coefficient)`. The coefficient is a float or a
        scalar tensor.

    Raises:
        UnknownOrigin: If a part of the gradient cannot be explained.
    """
    ancestors = _Ancestors(gradient, mark)
    factors = {id(gradient): 1.0}
    found = {}
    for tensor in ancestors.in_order:
        factor = factors.get(id(tensor))
        if factor is None:
            continue
        recording = pass_of(tensor, mark)
        if recording is not None:
            found[recording] = factor
        elif not ancestors.passes[id(tensor)]:
            _check_without_pass(tensor, mark)
        else:
            for source, part in _sources(tensor, factor, ancestors):
                known = factors.get(id(source))
                factors[id(source)] = part if known is None else known + part
    here = replica()
    found = [
        (recording, factor)
        for recording, factor in found.items()
        if None in (here, recording.replica) or recording.replica == here
    ]
    if not found:
        raise UnknownOrigin(
            "does not come from a backward pass through the layer",
            "Do not call the layer with `training=False`.",
        )
    return found


class _Ancestors:
    """All tensors that a gradient is computed from, back to the passes.

    Attributes:
        in_order: List of the tensors, each before its own inputs.
        passes: Dictionary. Maps the `id` of each tensor to the `id`s of the
            gradients of passes that it is computed from.
    """

    def __init__(self, gradient, mark):
        self.in_order = []
        self.passes = {}
        self._alive = []  # an `id` is valid only while its object is alive
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
            passes = [self.passes[id(source)] for source in _inputs(tensor)]
            self.passes[id(tensor)] = frozenset().union(*passes)

    def pass_gradient(self, tensor):
        """Returns the gradient of the only pass, or `None`."""
        passes = self.passes[id(tensor)]
        if len(passes) != 1:
            return None
        return next(known for known in self._alive if id(known) in passes)


def _inputs(tensor):
    """Returns the inputs of a tensor, also outside of its function."""
    if not tf.is_symbolic_tensor(tensor):
        return []
    if tensor.op.type == "Placeholder":
        outer = _keras.captured_from(tensor)
        return [] if outer is None else [outer]
    return list(tensor.op.inputs)


def _sources(tensor, factor, ancestors):
    """Returns the inputs that a tensor combines, with their factors."""
    operation = tensor.op
    kind, inputs = operation.type, list(operation.inputs)
    if kind == "Placeholder":
        return [(_keras.captured_from(tensor), factor)]
    if kind in _FORWARD:
        return [(inputs[0], factor)]
    if kind == "IdentityN":
        return [(inputs[tensor.value_index], factor)]
    if kind in _SUMS:
        return [(source, factor) for source in inputs]
    if kind == "Sub":
        return [(inputs[0], factor), (inputs[1], -factor)]
    if kind == "Neg":
        return [(inputs[0], -factor)]
    if kind in _QUOTIENTS and _is_number(inputs[1]):
        number = _QUOTIENTS[kind](1.0, _number(inputs[1]))
        return [(inputs[0], factor * number)]
    if kind in _PRODUCTS:
        # If the kernel has one entry, both inputs have one element. The input
        # of rank 0 is then the number.
        for number, other in (inputs, inputs[::-1]):
            if number.shape.rank == 0 or (
                _is_number(number) and not _is_number(other)
            ):
                return [(other, factor * _number(number))]
    if kind in ("Select", "SelectV2") and inputs[0].shape.num_elements() == 1:
        first = _number(inputs[0])
        chosen = [(inputs[1], first), (inputs[2], 1.0 - first)]
        return [(source, factor * share) for source, share in chosen]
    return _other_sources(tensor, factor, ancestors)


def _other_sources(tensor, factor, ancestors):
    """Like `_sources`, for operations that do more than add and scale."""
    gradient = ancestors.pass_gradient(tensor)
    if gradient is None:
        raise UnknownOrigin(
            f"is not a weighted sum of gradients (`{tensor.op.type}`)",
            _SUPPORTED,
        )
    sources = [
        source for source in tensor.op.inputs if ancestors.passes[id(source)]
    ]
    if tensor.op.type in _MOVES:
        return [(sources[0], factor)]
    if tensor.shape != gradient.shape:
        raise UnknownOrigin(
            f"was reduced or reshaped (`{tensor.op.type}`)", _SUPPORTED
        )
    reference = tf.cast(gradient, tf.float32)
    share = tf.reduce_sum(tf.cast(tensor, tf.float32) * reference)
    size = tf.reduce_sum(tf.square(reference))
    # The inputs get a factor of zero, so that they are still checked for parts
    # that cannot be explained.
    return [
        (gradient, factor * tf.math.divide_no_nan(share, size)),
        *((source, 0.0) for source in sources if source is not gradient),
    ]


def _check_without_pass(tensor, mark):
    """Raises if a part without a pass is not like that of a regularizer."""
    seen = set()
    stack = [tensor]
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen or carries_pass(tensor):
            continue
        seen.add(id(tensor))
        if not tf.is_symbolic_tensor(tensor):
            if tensor.dtype == tf.resource:
                continue  # a handle, checked at its `ReadVariableOp`
            if tensor.shape.rank:
                raise UnknownOrigin("contains an eager tensor", _USE_WITH_ROWS)
            continue
        operation = tensor.op
        kind = operation.type
        if kind == "ReadVariableOp":
            if not _reads(operation, mark) and not _is_number(tensor):
                raise UnknownOrigin(
                    "contains the value of a variable", _HOW_TO_ACCUMULATE
                )
            continue
        if kind == "Placeholder" and _keras.captured_from(tensor) is None:
            raise UnknownOrigin(
                "contains an argument of a `tf.function` that is not part of "
                "a recorded backward pass",
                _USE_WITH_ROWS,
            )
        if kind in _CALLS:
            raise UnknownOrigin(
                "was computed inside a `tf.cond` or another `tf.function`",
                "If the model calls a `tf.function`, remove the decorator, "
                f"because `fit` compiles the whole step. {_USE_WITH_ROWS}",
            )
        if kind in _LOOPS:
            raise UnknownOrigin(
                "was computed in a `tf.while_loop` or a loop over `tf.range`",
                "Apply the gradients inside the loop, or unroll the loop. For "
                "a Keras RNN, pass `unroll=True`.",
            )
        stack += _inputs(tensor)


def _is_number(tensor):
    return tensor.dtype.is_floating and tensor.shape.num_elements() == 1


def _number(tensor):
    return tf.cast(tf.reshape(tensor, ()), tf.float32)


def _reads(operation, mark):
    """Returns whether an operation reads the kernel, as a regularizer does."""
    handle = operation.inputs[0]
    while tf.is_symbolic_tensor(handle) and handle.op.type == "Placeholder":
        handle = _keras.captured_from(handle)
    return handle is not None and _keras.is_handle_of(handle, mark.kernel)
