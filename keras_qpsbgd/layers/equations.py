"""The equation of an `EinsumDense` layer as a product of rows and a matrix.

The kernel axes of a supported equation are either contracted with the inputs or
appear in the outputs. The matrix has the contracted axes as its rows, in the
order of the kernel, and the other axes as its columns, in the order of the
outputs.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Equation(NamedTuple):
    inputs: str
    kernel: str
    outputs: str

    @property
    def contracted(self):
        return [axis for axis in self.kernel if axis in self.inputs]

    @property
    def free(self):
        return [axis for axis in self.outputs if axis in self.kernel]


def parse(equation: str) -> Equation:
    """Splits an equation such as `"abc,cd->abd"` or `"...x,xy->...y"`."""
    left, _, outputs = equation.replace(" ", "").partition("->")
    inputs, _, kernel = left.partition(",")
    return Equation(inputs, kernel, outputs)


def problem(equation: str) -> str | None:
    """Returns why an equation is not supported, or `None`."""
    parsed = parse(equation)
    inputs, kernel, outputs = (set(part) - {"."} for part in parsed)
    if kernel & inputs & outputs:
        return f"kernel with batch axes: {equation}"
    if kernel - inputs - outputs or inputs - kernel - outputs:
        return f"sum over an axis of one operand: {equation}"
    if not kernel & inputs or not kernel & outputs:
        return f"not a matrix product: {equation}"
    return None


def num_output_axes(equation: str) -> int | None:
    """Returns the number of output axes of the kernel of `BinaryEinsumDense`.

    Returns:
        Integer, or `None` if the layer does not support the equation. In a
        supported equation, the contracted axes are the last axes of the inputs
        and the first axes of the kernel. The other kernel axes are the last
        axes of the outputs.
    """
    parsed = parse(equation)
    contracted, free = "".join(parsed.contracted), "".join(parsed.free)
    batch = parsed.inputs.removesuffix(contracted)
    letters = (batch + contracted + free).replace("...", "")
    is_dense = (
        contracted
        and free
        and parsed == (batch + contracted, contracted + free, batch + free)
        and len(set(letters)) == len(letters)
    )
    return len(free) if is_dense else None


def _permutation(parsed):
    axes = [*parsed.contracted, *parsed.free]
    return [parsed.kernel.index(axis) for axis in axes]


def to_matrix(equation: str, kernel: np.ndarray) -> np.ndarray:
    """Returns a kernel as a matrix of shape `(n, m)`."""
    parsed = parse(equation)
    moved = kernel.transpose(_permutation(parsed))
    rows = math.prod(moved.shape[: len(parsed.contracted)])
    return moved.reshape(rows, -1)


def from_matrix(
    equation: str, matrix: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Returns a matrix as a kernel of the given shape."""
    order = _permutation(parse(equation))
    moved = matrix.reshape([shape[axis] for axis in order])
    return moved.transpose(np.argsort(order))


def rows(equation: str, inputs: tf.Tensor) -> tf.Tensor:
    """Returns the inputs as rows of shape `(B, n)`."""
    parsed = parse(equation)
    before, _, after = parsed.inputs.partition("...")
    rank = len(inputs.shape)
    # The axes of `...` have no letter.
    elided = [""] * (rank - len(before) - len(after))
    letters = [*before, *elided, *after]
    last = [letters.index(axis) for axis in parsed.contracted]
    rest = [axis for axis in range(rank) if axis not in last]
    size = math.prod(inputs.shape[axis] for axis in last)
    return tf.reshape(tf.transpose(inputs, [*rest, *last]), (-1, size))


def bias_is_per_output(equation: str, bias_axes: str | None) -> bool:
    """Returns whether the bias has one entry per column of the matrix."""
    return bias_axes is not None and set(bias_axes) == set(parse(equation).free)
