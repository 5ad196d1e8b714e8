"""The rule of the paper: moves the latent weights against a binary gradient."""

import math

from keras_qpsbgd import ops
from keras_qpsbgd import recording
from keras_qpsbgd.optimizers.gradient_scale import GradientScale


class GradientRule:
    r"""The update \(\Omega \leftarrow \Omega - \alpha g\), see `QPSBGD`.

    The sums of a layer are an `ops.Problem` and `ops.Statistics`.

    Args:
        gradient_scale: String, see `GradientScale`.
        kappa: Float (optional), see `GradientScale`.
        has_momentum: Boolean. Whether the fields are changed by momentum. The
            fields then no longer follow from the rows of one batch.
    """

    def __init__(self, gradient_scale, kappa, has_momentum):
        self._scale = GradientScale(gradient_scale, kappa)
        self._has_momentum = has_momentum

    def check(self, marks):
        """Does nothing, because this rule can update all binary kernels."""

    def sum_variables(self, mark, steps):
        """Returns the variables for gradient accumulation."""
        del steps
        return recording.Sums(mark)

    def gather(self, layers, couplings, loss_scale):
        """Returns the sums of each layer.

        Args:
            layers: List of pairs of `ops.LayerCall`s and their `BinaryKernel`.
            couplings: Boolean. Whether the solver needs couplings.
            loss_scale: Scalar. The factor that the row gradients contain.
        """
        del loss_scale
        wide = math.inf if self._has_momentum else recording.WIDE
        return recording.gather_all(layers, couplings, wide)

    def bounds(self, sums):
        """Returns tensors that are finite only if the sums are finite."""
        problem, _ = sums
        return ops.bounds(problem)

    def linear(self, sums):
        """Returns the part of the sums that momentum applies to."""
        problem, _ = sums
        return problem.fields

    def with_linear(self, sums, fields):
        """Replaces the part of the sums that momentum applies to."""
        problem, statistics = sums
        problem = problem._replace(
            fields=fields,
            normalized_rows=None,
            row_gradients=None,
            informative=None,
        )
        return problem, statistics

    def problem(self, sums, mark, loss_scale):
        """Returns the problem of a layer and the scale of its gradient."""
        del mark
        problem, statistics = sums
        return problem, self._scale.factor(problem, statistics, loss_scale)

    def finish(self, states, problem):
        """Returns the states to move along."""
        del problem
        return states

    def update(self, kernel, states, learning_rate):
        """Changes the latent weights. A state of zero leaves them unchanged."""
        kernel.assign_sub(learning_rate * states)
