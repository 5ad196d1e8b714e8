r"""The two rules of `QPSBGD`: how gradient and statistics become a QUBO.

Both rules solve one QUBO for each column \(j\) of a kernel,

$$g_j = \mathrm{argmin}_{g \in \{-1,+1\}^n} \; g^T Q g + s_j^T g ,$$

and move the latent weights against the solution,
\(\Omega_j \leftarrow \Omega_j - \alpha g_j\). They differ in the couplings
\(Q\) and the fields \(s_j\).

**Averaged** (the default). \(M\) is the moving average of the gradient \(G\),
and \(C\) the moving average of the second moments of the inputs
(`statistics.MovingCovariance`). As in Nesterov's method, the fields look one
step ahead:

$$M \leftarrow \beta M + (1 - \beta) G , \qquad
  \tilde M = \beta M + (1 - \beta) G ,$$

$$Q = C , \qquad
  s_j = -2 \kappa f \frac{\tilde M_j}{\mathrm{rms}(\tilde M)} , \qquad
  f = \sqrt{\tfrac1n \sum_i \sum_{l \ne i} C_{il}^2} .$$

\(f\) is the root mean square of the force of the couplings on a variable of a
random state. So \(\kappa\) is the ratio of the linear to the quadratic force,
and does not depend on the scale of the loss, of the inputs or of the layer.

**Paper.** \(Q = \sum_b z_b z_b^T\) and \(s_j = -2 \sum_b v_{bj} z_b\) with the
normalized rows \(z_b = x_b / \lVert x_b \rVert^2\) of this update alone
(`statistics.BatchCouplings`). The layer returns \(Z^T V\) as the gradient, so
\(s_j = -2 G_j\).

A layer with several blocks of couplings has one problem for each block.
"""

import tensorflow as tf

from keras_qpsbgd import ops


def momentum(average, gradient, beta):
    r"""Returns \(\beta M + (1 - \beta) G\)."""
    return beta * average + (1.0 - beta) * gradient


def averaged(gradient, average, covariance, kappa, start=None):
    """Returns the problems of a layer with the averaged rule.

    Args:
        gradient: G, tensor of shape `(n, m)`. Columns without a gradient are
            held.
        average: The average of the gradient, tensor of shape `(n, m)`.
        covariance: C, tensor of shape `(blocks, width, width)`.
        kappa: Scalar.
        start: Tensor of shape `(n, m)` (optional). States of the last update,
            zero for entries that it held.

    Returns:
        List of `ops.Problem`, one for each block.
    """
    forces = ops.squared_forces(covariance)
    square = tf.reduce_sum(forces) / gradient.shape[0]
    # Without couplings, the scale of the fields does not matter.
    force = tf.where(square > 0, tf.sqrt(square), 1.0)
    # The squares of small numbers would underflow.
    average = tf.math.divide_no_nan(average, tf.reduce_max(tf.abs(average)))
    rms = tf.sqrt(tf.reduce_mean(tf.square(average)))
    fields = average * tf.math.divide_no_nan(-2.0 * kappa * force, rms)
    return _problems(gradient, covariance, forces, fields, start)


def signum(gradient, average):
    """Returns the problem of a layer without couplings."""
    informative = ops.has_information(gradient, average, None)
    return [ops.Problem(None, -average, informative=informative)]


def paper(gradient, couplings):
    """Returns the problems of a layer with the rule of the paper.

    Args:
        gradient: Z'V, tensor of shape `(n, m)`.
        couplings: Z'Z, tensor of shape `(blocks, width, width)`.

    Returns:
        List of `ops.Problem`, one for each block.
    """
    forces = ops.squared_forces(couplings)
    return _problems(gradient, couplings, forces, -2.0 * gradient)


def _problems(gradient, couplings, forces, fields, start=None):
    n = gradient.shape[0]
    forces = tf.reshape(tf.transpose(forces), (-1,))[:n]
    informative = ops.has_information(gradient, fields, forces)
    count, width = couplings.shape[:2]
    if start is not None:
        # Entries without a start get the state that their field prefers.
        start = tf.where(start == 0, ops.sign(-fields), start)
    problems = []
    for block in range(count):
        problem = ops.Problem(
            couplings[block],
            *(
                None if part is None else _block(part, block, count, width)
                for part in (fields, start, informative)
            ),
        )
        if start is not None:
            # Solvers on the host accept no zeros, not even for padding.
            problem = problem._replace(start=ops.sign(problem.start))
        problems.append(problem)
    return problems


def _block(tensor, block, count, width):
    """Returns one block of the rows of a matrix, padded with zeros."""
    if count == 1:
        return tensor
    part = tensor[block::count]
    missing = width - part.shape[0]
    return tf.pad(part, [(0, missing), (0, 0)]) if missing else part


def join(states, n):
    """Returns the states of a layer from those of its blocks."""
    if len(states) == 1:
        return states[0]
    columns = states[0].shape[1]
    return tf.reshape(tf.stack(states, axis=1), (-1, columns))[:n]
