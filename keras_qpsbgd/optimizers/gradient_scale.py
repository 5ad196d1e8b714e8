r"""Scales of the gradient before the QUBO is solved.

The solution of a QUBO depends on the scale of the gradient. With
\(z = x / \lVert x \rVert^2\), \(z^T g\) is of order 1, but the gradient of a
mean over B samples is of order 1/B. Without scaling, the couplings dominate,
the gradient hardly affects the solution, and nothing is learned. Scaling V by c
scales the fields by c and does not change the couplings.

| name    | factor c                             | default kappa |
|---------|--------------------------------------|---------------|
| `max`   | kappa / max\|V\|                     | 4             |
| `reach` | kappa * mean l1 norm of z / max\|V\| | 1             |
| `rms`   | kappa / rms(V)                       | 1             |
| `batch` | number of samples in the update      |               |
| `raw`   | 1, the paper's rule                  |               |

The first three do not depend on the scale of the loss.
"""

import numbers

import tensorflow as tf

DEFAULT_KAPPA = {"max": 4.0, "reach": 1.0, "rms": 1.0}
NAMES = ("max", "reach", "rms", "batch", "raw")


class GradientScale:
    """Computes the factor c of a layer.

    Args:
        name: String, one of the names in the table. Defaults to `"max"`.
        kappa: Float > 0 (optional). `None` means the default in the table.
            Defaults to `None`.
    """

    def __init__(self, name="max", kappa=None):
        if name not in NAMES:
            raise ValueError(
                f"`gradient_scale` must be one of {NAMES}. "
                f"Received: gradient_scale={name!r}"
            )
        if kappa is not None and name not in DEFAULT_KAPPA:
            raise ValueError(
                f"`kappa` must be None with gradient_scale={name!r}. "
                f"Received: kappa={kappa}"
            )
        if kappa is not None and not (
            isinstance(kappa, numbers.Real) and 0 < kappa < float("inf")
        ):
            raise ValueError(
                "`kappa` must be a positive number or None. "
                f"Received: kappa={kappa!r}"
            )
        self.name = name
        self.kappa = DEFAULT_KAPPA.get(name) if kappa is None else float(kappa)

    def factor(self, problem, statistics, loss_scale):
        """Returns the factor c of a layer, or zero if its gradient is zero.

        Args:
            problem: The `ops.Problem` of the layer.
            statistics: The `ops.Statistics` of the layer.
            loss_scale: Float, the factor that the row gradients contain. It is
                the loss scale factor times the number of accumulated batches.
        """
        divide = tf.math.divide_no_nan
        if self.name == "max":
            return divide(self.kappa, statistics.max_gradient)
        if self.name == "reach":
            reach = divide(statistics.row_norms, statistics.kept_rows)
            return divide(self.kappa * reach, statistics.max_gradient)
        if self.name == "rms":
            count = statistics.kept_rows * problem.fields.shape[1]
            mean_square = divide(tf.reduce_sum(problem.offset), count)
            return divide(self.kappa, tf.sqrt(mean_square))
        if self.name == "batch":
            return statistics.batch / loss_scale
        return tf.constant(1.0) / loss_scale
