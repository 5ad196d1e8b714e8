r"""The problems of an update, as TensorFlow operations.

In a training step, a binary layer multiplies its rows \(X\) (\(B \times n\)) by
the weights \(W\) (\(n \times m\)) of its latent kernel \(\Omega\). An update
solves one quadratic unconstrained binary optimization problem (QUBO) for each
column \(j\) of \(W\),

$$g_j = \mathrm{argmin}_{g \in \{-1,+1\}^n} \; g^T Q g + s_j^T g ,$$

and the step is \(\Omega_j \leftarrow \Omega_j - \alpha g_j\) with the learning
rate \(\alpha\). The rule of `QPSBGD` defines the couplings \(Q\) and the fields
\(s_j\).

| Formula                                               | Function            |
|-------------------------------------------------------|---------------------|
| \(\sum_{l \ne i} Q_{il}^2\), the squared forces       | `squared_forces`    |
| \(-g\) in place of \(g\) where \(s_j^T g > 0\)        | `never_ascend`      |
| The entries of \(\Omega\) that the step may change    | `has_information`   |

`Qubo` is the same problem in NumPy.

Reference: Krahn et al., "Projected Stochastic Gradient Descent with Quantum
Annealed Binary Gradients", BMVC 2024, https://arxiv.org/abs/2310.15128
"""

from typing import Any
from typing import NamedTuple
from typing import Optional

import tensorflow as tf

# A gradient smaller than this fraction of the largest one in its layer is a
# rounding error.
ROUNDING = 2.0**-22
# Tensors with at most this many entries are checked together.
SMALL_CHECK = 4096


class Problem(NamedTuple):
    """The QUBOs of one layer as tensors: `m` columns with `n` variables each.

    Attributes:
        couplings: Tensor of shape (n, n), the same for all columns, or `None`
            for backends that do not use them.
        fields: Tensor of shape (n, m).
        start: Tensor of shape (n, m) (optional). States to start a search from.
        informative: Boolean tensor of shape (n, m) (optional). The result of
            `has_information`. The states of other entries do not matter.
    """

    couplings: tf.Tensor
    fields: tf.Tensor
    start: Optional[tf.Tensor] = None
    informative: Optional[tf.Tensor] = None


class LayerProblems(NamedTuple):
    """The problems of one layer, before they are computed.

    A backend that compiles its search also compiles this computation.

    Attributes:
        build: Function of the tensors. Returns a list of `Problem`, one for
            each block of the layer. Must be a module-level function that
            depends only on its arguments.
        tensors: Tuple of tensors or of structures of tensors. May contain
            `None`.
        shape: Tuple `(n, m)`. The numbers of inputs and outputs of the layer.
        is_warm: Boolean. Whether the problems start from the states of the last
            update, which are then close to their solutions.
    """

    build: Any
    tensors: tuple
    shape: tuple
    is_warm: bool = False

    def problems(self):
        """Computes the problems."""
        return self.build(*self.tensors)

    @classmethod
    def of(cls, problems):
        """Wraps problems that are already computed."""
        return cls(_as_list, tuple(problems), tuple(problems[0].fields.shape))


def _as_list(*problems):
    return list(problems)


def sign(x):
    """Returns the sign, with `sign(0) = +1`, so every weight is +1 or -1."""
    return tf.where(x >= 0, tf.constant(1, x.dtype), tf.constant(-1, x.dtype))


def hard_tanh(x):
    """Clips `x` to [-1, 1], the activation function of the paper."""
    return tf.clip_by_value(x, -1.0, 1.0)


def never_ascend(states, problem_fields):
    r"""Replaces \(g\) by \(-g\) in columns where \(s_j^T g > 0\).

    The quadratic part of the energy is the same for both signs, so the energy
    of \(-g\) is lower.
    """
    ascent = tf.reduce_sum(problem_fields * states, axis=-2, keepdims=True) > 0
    return states * tf.where(ascent, -1.0, 1.0)


def has_gradient(gradient):
    """Returns which columns of a gradient (n, m) are not zero, shape (m,).

    A column that is only rounding noise, compared with the others, counts as
    zero.
    """
    largest = tf.reduce_max(tf.abs(gradient), axis=0)
    return largest > ROUNDING * tf.reduce_max(largest)


def has_information(fields, has_gradient, is_coupled=None):
    r"""Returns a mask of the entries for which a problem has information.

    The optimizer does not change the other entries. The mask is false for

    - a column without a gradient,
    - an entry with neither a field nor couplings to other entries, because both
      signs have the same energy. An input that was never active has neither.

    Args:
        fields: Tensor of shape (n, m).
        has_gradient: Boolean tensor of shape (m,). The columns with a gradient.
        is_coupled: Boolean tensor of shape (n,) (optional). The inputs with
            couplings to others. Defaults to `None`, which means no input.

    Returns:
        Boolean tensor of shape (n, m).
    """
    decided = fields != 0
    if is_coupled is not None:
        decided |= is_coupled[:, None]
    return decided & has_gradient


def padded(tensor, axis, size):
    """Appends zeros to an axis until it has `size` entries."""
    missing = size - tensor.shape[axis]
    if not missing:
        return tensor
    padding = [(0, 0)] * len(tensor.shape)
    padding[axis] = (0, missing)
    return tf.pad(tensor, padding)


def squared_forces(couplings):
    r"""Returns \(\sum_{l \ne i} Q_{il}^2\) for each input i, shape (n,).

    This is the mean square of the force that the couplings exert on a variable
    in a random state.
    """
    total = tf.reduce_sum(tf.square(couplings), axis=-1)
    forces = total - tf.square(tf.linalg.diag_part(couplings))
    # After rounding, the difference of equal numbers may not be zero.
    return tf.where(forces > ROUNDING * total, forces, 0.0)


def is_finite(tensors):
    """Returns a scalar that is true if all entries are finite.

    Numbers so large that the sum of their squares overflows count as infinite.
    Small tensors are checked together, because an operation takes longer to
    start than to check a few numbers.
    """
    small, squares = [tf.zeros((1,))], []
    for tensor in tensors:
        tensor = tf.cast(tensor, tf.float32)
        size = tensor.shape.num_elements()
        if size is None or size > SMALL_CHECK:
            squares.append(tf.nn.l2_loss(tensor))
        else:
            small.append(tf.reshape(tensor, (-1,)))
    squares.append(tf.nn.l2_loss(tf.concat(small, 0)))
    return tf.math.is_finite(tf.add_n(squares))
