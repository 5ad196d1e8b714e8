r"""Builds the problem of a binary Newton step.

A binary Newton step minimizes a quadratic model of the loss over all binary
weights \(w'\) of a column \(j\) of a kernel \(W\),

$$\min_{w' \in \{-1,+1\}^n} g_j^T (w' - w_j)
  + \frac{\lambda}{2} (w' - w_j)^T Q_j (w' - w_j) ,$$

where \(\lambda\) is the damping. The gradient and the curvature are sums over
the rows \(x_b\) of the layer. \(V\) is the gradient of the loss with respect
to the product \(R = XW\):

$$g_j = \sum_b v_{bj} x_b , \qquad Q_j = \sum_b c_{bj} x_b x_b^T .$$

The weights \(c_{bj}\) are the second derivatives of the loss with respect to
\(R_{bj}\), or an approximation of them. They follow from \(V\), the number
\(B\) of samples, the output scale \(\sigma\) of the layer and the number \(m\)
of outputs:

| `curvature`                  | \(c_{bj}\)                                |
|------------------------------|-------------------------------------------|
| `"fisher"`                   | \(B v_{bj}^2\), the empirical Fisher      |
| `"categorical_crossentropy"` | \(\sigma |v_{bj}| - B v_{bj}^2\)          |
| `"binary_crossentropy"`      | \(\sigma |v_{bj}| - B m v_{bj}^2\)        |
| `"mean_squared_error"`       | \(2 \sigma^2 / (B m)\)                    |

The last three are exact for the layer that computes the outputs of the network,
if every sample has one label and the loss is the mean over the samples.
(For the softmax cross-entropy, \(v = \sigma (p - y) / B\), so
\(\sigma |v| - B v^2 = \sigma^2 p (1 - p) / B\).)

All columns of a problem share their couplings. Therefore \(c_{bj}\) is replaced
with \(a_b d_j\), which has the same sums over rows and over columns:

$$a_b = \frac{1}{m} \sum_j c_{bj} , \qquad
  d_j = \sum_b c_{bj} \Big/ \sum_b a_b .$$

Divided by \(d_j\), the model is a QUBO with the couplings
\(\frac{\lambda}{2} Q\), \(Q = \sum_b a_b x_b x_b^T\), and the fields
\(g_j / d_j - \lambda Q w_j\).
"""

from typing import NamedTuple

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import products
from keras_qpsbgd.recording import reduction

CURVATURES = (
    "fisher",
    "categorical_crossentropy",
    "binary_crossentropy",
    "mean_squared_error",
)
# Smallest d of a column. Smaller values would overflow the fields.
MIN_SHARE = 1e-6


class Terms(NamedTuple):
    """The sums of a binary Newton step over the rows of one layer."""

    couplings: tf.Tensor  # n x n, sum of a_b x_b x_b', see `Curvature.is_mean`
    gradient: tf.Tensor  # n x m, sum of v_bj x_b
    curvature: tf.Tensor  # m, sum of c_bj over the rows
    count: tf.Tensor  # scalar, number of rows with a gradient


class Curvature(NamedTuple):
    """How to compute the weights c of a layer.

    Attributes:
        kind: String. One of `CURVATURES`.
        is_mean: Boolean. Whether to replace the weights of the rows by their
            mean over all rows with a gradient. The mean is known only when all
            rows are summed, so `Terms.couplings` does not contain it.
    """

    kind: str = "fisher"
    is_mean: bool = False

    def weights(self, v, factor, samples):
        """Returns the weights c of shape `(B, m)`.

        Args:
            v: Tensor of shape `(B, m)`. Gradient of the mean loss with respect
                to the product.
            factor: Scalar or tensor of shape `(m,)`. The output scale.
            samples: Scalar. Number of samples that the loss is a mean over.
        """
        m = v.shape[1]
        if self.kind == "fisher":
            return samples * tf.square(v)
        if self.kind == "mean_squared_error":
            factor = tf.convert_to_tensor(factor, tf.float32)
            return tf.zeros_like(v) + 2.0 * tf.square(factor) / (samples * m)
        if self.kind == "binary_crossentropy":
            samples *= m
        # The gradient of a rare label can be slightly above its limit.
        size = tf.abs(v)
        return tf.maximum(size * (factor - samples * size), 0.0)


def terms_of(call, curvature, loss_scale):
    """Returns the `Terms` of one call of a layer.

    Args:
        call: An `ops.LayerCall`.
        curvature: A `Curvature`.
        loss_scale: Scalar. The factor that the row gradients contain.
    """
    rows = tf.cast(call.rows, tf.float32)
    v = tf.cast(call.row_gradients, tf.float32) / loss_scale
    # Every replica divides its loss by the number of replicas.
    samples = tf.cast(call.batch, tf.float32) * reduction.num_replicas()
    c = curvature.weights(v, call.output_factor, samples)
    kept = ops.kept_rows(v, call.kept)
    if curvature.is_mean:
        c *= kept
        of_rows = kept
    else:
        of_rows = tf.reduce_mean(c, axis=1, keepdims=True)
    weighted = rows * tf.sqrt(of_rows)
    return Terms(
        couplings=products.product(weighted, weighted, transpose_a=True),
        gradient=products.product(rows, v, transpose_a=True),
        curvature=tf.reduce_sum(c, axis=0),
        count=tf.reduce_sum(kept),
    )


def gather(calls, curvature, loss_scale):
    """Returns the `Terms` of all calls of all replicas.

    Must be called in replica context.

    Args:
        calls: List of at least one `ops.LayerCall`.
        curvature: A `Curvature`.
        loss_scale: Scalar, see `terms_of`.
    """
    parts = [terms_of(call, curvature, loss_scale) for call in calls]
    return reduction.total(parts)


class NewtonSums(reduction.SumVariables):
    """Variables that sum the terms of all batches of an accumulation.

    Args:
        mark: The `BinaryKernel`.
        curvature: A `Curvature`.
        steps: Integer. Number of batches of an accumulation.
    """

    def __init__(self, mark, curvature, steps):
        n, m = mark.num_variables, mark.num_columns
        super().__init__(
            {
                "couplings": (n, n),
                "gradient": (n, m),
                "curvature": (m,),
                "count": (),
            }
        )
        self._curvature = curvature
        self._steps = steps

    def add(self, calls, loss_scale):
        """Adds the calls of one batch."""
        for call in calls:
            terms = terms_of(call, self._curvature, loss_scale)
            self.add_values(terms._asdict())

    def gather(self):
        """Returns the mean `Terms` of the batches."""
        known = self.is_complete()
        terms = Terms(**self.values())
        terms = terms._replace(gradient=terms.gradient * known)
        terms = Terms(*(part / self._steps for part in terms))
        return reduction.total([terms])


def problem(terms, weights, damping, is_mean):
    """Returns the `ops.Problem` of a binary Newton step.

    Its energy is zero at the current weights, which are the start.

    Args:
        terms: The `Terms` of the layer.
        weights: Tensor of shape `(n, m)`. The current weights, +1 and -1.
        damping: Float.
        is_mean: Boolean, see `Curvature`.
    """
    mean = tf.reduce_mean(terms.curvature)
    couplings = terms.couplings * (damping / 2.0)
    if is_mean:
        couplings *= tf.math.divide_no_nan(mean, terms.count)
    share = tf.math.divide_no_nan(terms.curvature, mean)
    share = tf.maximum(share, MIN_SHARE)
    slope = terms.gradient / share
    pull = 2.0 * products.product(couplings, weights)
    diagonal = tf.linalg.diag_part(couplings)
    has_gradient = tf.reduce_any(terms.gradient != 0, axis=0, keepdims=True)
    return ops.Problem(
        couplings=couplings,
        fields=slope - pull,
        offset=tf.reduce_sum(weights * (pull / 2.0 - slope), axis=0),
        start=weights,
        diagonal=diagonal,
        informative=(diagonal > 0)[:, None] & has_gradient,
    )


def bounds(terms):
    """Returns tensors that are finite only if all terms are finite."""
    return list(terms)
