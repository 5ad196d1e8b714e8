r"""The rule of the paper.

It solves one QUBO for each column \(j\) of a kernel,

$$\sum_b (v_{bj} - z_b^T g)^2 = g^T Q g + s_j^T g + \mathrm{const} , \qquad
  g \in \{-1,+1\}^n ,$$

where \(V\) is the gradient of the loss with respect to the product of the
layer. So \(Q = \sum_b z_b z_b^T\) and \(s_j = -2 \sum_b v_{bj} z_b\) with the
normalized rows \(z_b = x_b / \lVert x_b \rVert^2\) of this update alone
(`statistics.BatchCouplings`). The layer returns \(Z^T V\) as the gradient, so
\(s_j = -2 G_j\). The step is \(\Omega_j \leftarrow \Omega_j - \alpha g_j\).

Reference: Krahn et al., "Projected Stochastic Gradient Descent with Quantum
Annealed Binary Gradients", BMVC 2024, https://arxiv.org/abs/2310.15128
"""

import tensorflow as tf

from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers.rule import Rule
from keras_qpsbgd.optimizers.rule import block_problems
from keras_qpsbgd.qubo import blocks
from keras_qpsbgd.qubo import ops


class Paper(Rule):
    """The rule of the paper. Its averages are the gradient itself."""

    widest = 8192

    def __init__(self, kappa, momentum, covariance_decay, **kwargs):
        # Without couplings, it would not be the rule of the paper.
        kwargs.update(uses_couplings=True, is_warm=False)
        super().__init__(kappa, momentum, covariance_decay, **kwargs)

    def build(self, marks, add_array, add_zeros_like):
        """Creates the variables. See `Averaged`."""
        del add_zeros_like
        for index, mark in enumerate(marks):
            total = self.add_couplings(mark, add_array, index, "sum")
            self.observers[mark] = statistics.BatchCouplings(total)

    def check(self, marks, is_connected, warn_once):
        """Raises if a layer computed its gradient without this rule."""
        del is_connected, warn_once
        if self.missed(marks):
            raise ValueError(
                '`rule="paper"` changes the gradients that binary layers '
                "compute, so the optimizer must be built before the first "
                "training step. Call "
                "`optimizer.build(model.trainable_variables)`. Received: "
                "gradients from before the optimizer was built"
            )

    def averages(self, gradient, mark):
        """Returns the gradient."""
        del mark
        return gradient

    def layer_problems(self, gradient, mark):
        """Returns the `ops.LayerProblems` of a kernel."""
        tensors = gradient, tf.convert_to_tensor(self.couplings[mark])
        shape = mark.num_variables, mark.num_columns
        return ops.LayerProblems(problems, tensors, shape)

    def store(self, gradient, mark):
        """Starts the couplings of the next update."""
        del gradient
        self.observers[mark].clear()

    def drop(self, accumulated):
        """Discards the rows since the last update."""
        for observer in self.observers.values():
            observer.clear()
        for gradient in accumulated:
            gradient.assign(tf.zeros(gradient.shape))

    def step_size(self, mark):
        """Returns the distance of a step, in units of the learning rate."""
        del mark
        return 1.0


def problems(gradient, couplings):
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
        blocks.join_vector(is_coupled, gradient.shape[0]),
    )
    return block_problems(couplings, fields, informative)
