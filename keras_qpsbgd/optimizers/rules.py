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

$$\tilde M = \beta^2 M + (1 - \beta^2) G , \qquad
  M \leftarrow \beta M + (1 - \beta) G ,$$

$$Q = C , \qquad
  s_j = -2 \kappa f \frac{\tilde M_j}{\mathrm{rms}(\tilde M)} , \qquad
  f = \sqrt{\tfrac1n \sum_i \sum_{l \ne i} C_{il}^2} .$$

\(f\) is the root mean square of the force that the couplings exert on a
variable in a random state. So \(\kappa\) is the ratio of the linear to the
quadratic force, and does not depend on the scale of the loss, the inputs or the
layer.

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
    return gradient + beta * (average - gradient)


def look_ahead(average, gradient, beta):
    r"""Returns \(\tilde M\), which is `momentum` applied twice."""
    return momentum(average, gradient, beta**2)


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
    found = scales(gradient, average, covariance, kappa)
    return scaled(average, covariance, *found, start)


def scales(gradient, average, covariance, kappa):
    """Returns the arguments of `scaled` that are reductions over a whole layer.

    On a CPU, TensorFlow computes them faster than a compiled function.

    Returns:
        Tuple of the factor from averages to fields (scalar), the columns with a
        gradient and the inputs with couplings (Boolean vectors).
    """
    n, m = average.shape
    forces = ops.squared_forces(covariance)
    square = tf.reduce_sum(forces) / n
    # Without couplings, the scale of the fields does not matter.
    force = tf.where(square > 0, tf.sqrt(square), 1.0)
    rms = tf.sqrt(2.0 / (n * m) * tf.nn.l2_loss(average))
    factor = tf.math.divide_no_nan(-2.0 * kappa * force, rms)
    return factor, ops.has_gradient(gradient), _in_order(forces > 0, n)


def scaled(average, covariance, factor, has_gradient, is_coupled, start=None):
    """Returns the problems of the averaged rule, given the result of `scales`.

    See `averaged` for the other arguments.
    """
    fields = average * factor
    informative = ops.has_information(fields, has_gradient, is_coupled)
    return _problems(covariance, fields, informative, start)


def signum(gradient, average):
    """Returns the problem of a layer without couplings."""
    informative = ops.has_information(average, ops.has_gradient(gradient))
    return [ops.Problem(None, -average, informative=informative)]


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
