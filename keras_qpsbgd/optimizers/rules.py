r"""The two rules of `QPSBGD`: how gradient and statistics become a QUBO.

Both rules solve one QUBO for each column \(j\) of a kernel,

$$g_j = \mathrm{argmin}_{g \in \{-1,+1\}^n} \; g^T Q g + s_j^T g ,$$

and move the latent weights against the solution. They differ in the couplings
\(Q\), the fields \(s_j\), and the size of the step.

**Averaged** (the default). \(M\) is the moving average of the gradient \(G\),
\(V\) that of its mean square, and \(C\) that of the second moments of the
inputs (`statistics.MovingCovariance`). As in Nesterov's method, the fields look
one step ahead:

$$\tilde M = \beta^2 M + (1 - \beta^2) G , \qquad
  M \leftarrow \beta M + (1 - \beta) G , \qquad
  V \leftarrow \gamma V + (1 - \gamma) \, \mathrm{mean}(G^2) .$$

As in Adam, all averages start at zero. A hat divides them by the sum of the
weights that gradients have so far. The average gradient in units of the size of
a gradient is \(U\), and its size is \(\rho\):

$$U = \frac{\hat M}{\sqrt{\hat V}} , \qquad \rho = \mathrm{rms}(U) .$$

\(\rho\) is 1 if the gradients of all steps agree. It is small if they are
noise, or smaller than they were in the last thousand steps. The step follows
it, \(\Omega_j \leftarrow \Omega_j - \alpha \rho g_j\), and so do the fields:

$$Q = C , \qquad s_j = -2 \kappa f U_j , \qquad
  f = \sqrt{\tfrac1n \sum_i \sum_{l \ne i} C_{il}^2} .$$

\(f\) is the root mean square of the force that the couplings exert on a
variable in a random state. So \(\kappa \rho\) is the ratio of the linear to the
quadratic force, and does not depend on the scale of the loss, the inputs or the
layer.

**Paper.** \(Q = \sum_b z_b z_b^T\) and \(s_j = -2 \sum_b v_{bj} z_b\) with the
normalized rows \(z_b = x_b / \lVert x_b \rVert^2\) of this update alone
(`statistics.BatchCouplings`). The layer returns \(Z^T V\) as the gradient, so
\(s_j = -2 G_j\). The step is \(\Omega_j \leftarrow \Omega_j - \alpha g_j\).

A layer with several blocks of couplings has one problem for each block.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_qpsbgd.qubo import ops

# The decay of V, as in Adam.
MEMORY = 0.999
# The number of scalars of `averages`.
SCALARS = 4


class Averages(NamedTuple):
    r"""The averages of the gradient of one kernel, after an update.

    Attributes:
        gradient: G, tensor of shape `(n, m)`.
        momentum: M, tensor of the same shape.
        ahead: \(\tilde M\), tensor of the same shape.
        scalars: Tensor of shape `(SCALARS,)`: V, the sums of the weights in V
            and in M, and \(\rho\).
        unit: Scalar. U is this number times `ahead`.
    """

    gradient: tf.Tensor
    momentum: tf.Tensor
    ahead: tf.Tensor
    scalars: tf.Tensor
    unit: tf.Tensor


def averages(gradient, momentum, scalars, beta):
    """Updates the averages of the gradient of one kernel.

    Args:
        gradient: G, tensor of shape `(n, m)`.
        momentum: M before the update, tensor of shape `(n, m)`.
        scalars: `Averages.scalars` before the update.
        beta: Float. The decay of M.

    Returns:
        `Averages`.
    """
    # One operation fewer than two calls of `average`.
    change = gradient - momentum
    ahead = gradient - beta**2 * change
    square = average(scalars[0], mean_square(gradient), MEMORY)
    square_weight = average(scalars[1], 1.0, MEMORY)
    ahead_weight = average(scalars[2], 1.0, beta**2)
    size = tf.sqrt(square / square_weight) * ahead_weight
    unit = tf.math.divide_no_nan(1.0, size)
    step_size = tf.sqrt(mean_square(ahead)) * unit
    return Averages(
        gradient,
        momentum + (1.0 - beta) * change,
        ahead,
        tf.stack(
            [square, square_weight, average(scalars[2], 1.0, beta), step_size]
        ),
        unit,
    )


def average(before, new, decay):
    """Returns the next value of a moving average."""
    return decay * before + (1.0 - decay) * new


def mean_square(tensor):
    """Returns the mean of the squares of the entries."""
    # TensorFlow has a fast kernel for `l2_loss`.
    return tf.nn.l2_loss(tensor) * (2.0 / tensor.shape.num_elements())


def averaged(gradient, covariance, kappa):
    """Returns the problems of a first update with the averaged rule.

    Args:
        gradient: G, tensor of shape `(n, m)`. Columns without a gradient are
            held.
        covariance: C, tensor of shape `(blocks, width, width)`.
        kappa: Scalar.

    Returns:
        List of `ops.Problem`, one for each block.
    """
    zeros = tf.zeros_like(gradient), tf.zeros((SCALARS,))
    found = averages(gradient, *zeros, beta=0.0)
    found = gradient, gradient, *scales(found, covariance, kappa)
    return scaled(covariance, *found)


def scales(averages, covariance, kappa):
    """Returns the arguments of `scaled` that are reductions over a whole layer.

    On a CPU, TensorFlow computes them faster than a compiled function.

    Returns:
        Tuple of the factor from `averages.ahead` to fields (scalar) and the
        inputs with couplings (Boolean vector).
    """
    n = averages.gradient.shape[0]
    forces = ops.squared_forces(covariance)
    square = tf.reduce_sum(forces) / n
    # Without couplings, the scale of the fields does not matter.
    force = tf.where(square > 0, tf.sqrt(square), 1.0)
    factor = -2.0 * kappa * force * averages.unit
    return factor, _in_order(forces > 0, n)


def scaled(covariance, gradient, ahead, factor, is_coupled, start=None):
    """Returns the problems of the averaged rule, given the result of `scales`.

    Args:
        covariance: C, tensor of shape `(blocks, width, width)`.
        gradient: See `Averages`.
        ahead: See `Averages`.
        factor: See `scales`.
        is_coupled: See `scales`.
        start: Tensor of shape `(n, m)` (optional). States of the last update,
            zero for entries that it held.

    Returns:
        List of `ops.Problem`, one for each block.
    """
    fields = ahead * factor
    informative = ops.has_information(
        fields, ops.has_gradient(gradient), is_coupled
    )
    return _problems(covariance, fields, informative, start)


def signum(gradient, ahead):
    """Returns the problem of a layer without couplings."""
    informative = ops.has_information(ahead, ops.has_gradient(gradient))
    return [ops.Problem(None, -ahead, informative=informative)]


def paper(gradient, couplings):
    """Returns the problems of a layer with the rule of the paper.

    Args:
        gradient: Z'V, tensor of shape `(n, m)`.
        couplings: Z'Z, tensor of shape `(blocks, width, width)`.

    Returns:
        List of `ops.Problem`, one for each block.
    """
    is_coupled = ops.squared_forces(couplings) > 0
    fields = -2.0 * gradient
    informative = ops.has_information(
        fields,
        ops.has_gradient(gradient),
        _in_order(is_coupled, gradient.shape[0]),
    )
    return _problems(couplings, fields, informative)


def _in_order(values, n):
    """Returns one value per input from values of shape `(blocks, width)`."""
    return tf.reshape(tf.transpose(values), (-1,))[:n]


def _problems(couplings, fields, informative, start=None):
    count, width = couplings.shape[:2]
    if start is not None:
        # Entries without a start get the state that their field prefers.
        start = tf.where(start == 0, ops.sign(-fields), start)
    fields, start, informative = (
        None if part is None else _stacked(part, count, width)
        for part in (fields, start, informative)
    )
    if start is not None:
        # Solvers on the host accept no zeros, not even for padding.
        start = ops.sign(start)
    return [
        ops.Problem(
            couplings[block],
            *(
                None if part is None else part[block]
                for part in (fields, start, informative)
            ),
        )
        for block in range(count)
    ]


def _stacked(tensor, count, width):
    """Returns the blocks of the rows of a matrix, padded with zeros."""
    if count == 1:
        return tensor[None]
    tensor = ops.padded(tensor, 0, count * width)
    tensor = tf.reshape(tensor, (width, count, tensor.shape[1]))
    return tf.transpose(tensor, (1, 0, 2))


def join(states, n):
    """Returns the states of a layer from those of its blocks."""
    if len(states) == 1:
        return states[0]
    columns = states[0].shape[1]
    states = tf.transpose(tf.stack(states), (1, 0, 2))
    return tf.reshape(states, (-1, columns))[:n]
