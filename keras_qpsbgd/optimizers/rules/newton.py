"""Binary Newton: the solution of the QUBO is the weight vector itself."""

import numbers

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import products
from keras_qpsbgd.recording import newton

LATENT = ("average", "none")


class NewtonRule:
    r"""The update \(\Omega \leftarrow (1 - a) \Omega + a w'\).

    \(w'\) minimizes the quadratic model of the loss in `recording/newton.py`.
    The sums of a layer are its `newton.Terms`.

    Args:
        damping: Float.
        latent: String. `"average"` uses the learning rate as \(a\), `"none"`
            is \(a = 1\).
        curvature: String or dictionary, see `QPSBGD`.
        mean_curvature: Boolean, see `QPSBGD`.

    Raises:
        ValueError: If an argument is invalid.
    """

    def __init__(self, damping, latent, curvature, mean_curvature):
        if (
            isinstance(damping, bool)
            or not isinstance(damping, numbers.Real)
            or not 0 < damping < float("inf")
        ):
            raise ValueError(
                "`damping` must be a positive number. "
                f"Received: damping={damping!r}"
            )
        if latent not in LATENT:
            raise ValueError(
                f"`latent` must be one of {LATENT}. Received: latent={latent!r}"
            )
        by_layer = curvature if isinstance(curvature, dict) else {}
        unknown = set(by_layer.values()) if by_layer else {curvature}
        unknown -= set(newton.CURVATURES)
        if unknown:
            raise ValueError(
                f"`curvature` must be one of {newton.CURVATURES}, or a "
                "dictionary from names of layers to them. "
                f"Received: curvature={curvature!r}"
            )
        if not isinstance(mean_curvature, bool):
            raise ValueError(
                "`mean_curvature` must be a boolean. "
                f"Received: mean_curvature={mean_curvature!r}"
            )
        self._damping = float(damping)
        self._latent = latent
        self._curvature = curvature
        self._is_mean = mean_curvature

    def check(self, marks):
        """Checks that the rule can update these kernels.

        Raises:
            ValueError: If a kernel has several bits, or if `curvature` does not
                match the layers.
        """
        for mark in marks:
            if mark.bits != 1:
                raise ValueError(
                    '`update="newton"` requires layers with `bits=1`. '
                    f"Received: layer `{mark.name}` with bits={mark.bits}"
                )
        names = [mark.name for mark in marks]
        if isinstance(self._curvature, dict):
            missing = sorted(set(self._curvature) - set(names))
            if missing:
                raise ValueError(
                    f"`curvature` names layers that do not exist: {missing}. "
                    f"The binary layers are {names}. "
                    f"Received: curvature={self._curvature!r}"
                )
        elif self._curvature != "fisher" and len(marks) > 1:
            # It would be wrong for hidden layers.
            raise ValueError(
                f"The curvature {self._curvature!r} is that of the layer that "
                "computes the outputs. In a network with several binary "
                "layers, pass a dictionary with the name of this layer, such "
                f'as `{{"{names[-1]}": "{self._curvature}"}}`. The others use '
                f'"fisher". Received: curvature={self._curvature!r}'
            )

    def _curvature_of(self, mark):
        kind = self._curvature
        if isinstance(kind, dict):
            kind = kind.get(mark.name, "fisher")
        return newton.Curvature(kind, self._is_mean)

    def sum_variables(self, mark, steps):
        """Returns the variables for gradient accumulation."""
        curvature = self._curvature_of(mark)
        return newton.NewtonSums(mark, curvature, steps)

    def gather(self, layers, couplings, loss_scale):
        """Returns the `Terms` of each layer, see `GradientRule.gather`."""
        del couplings
        return [
            newton.gather(calls, self._curvature_of(mark), loss_scale)
            for calls, mark in layers
        ]

    def bounds(self, sums):
        """Returns tensors that are finite only if the sums are finite."""
        return newton.bounds(sums)

    def linear(self, sums):
        """Returns the part of the sums that momentum applies to."""
        return sums.gradient

    def with_linear(self, sums, gradient):
        """Replaces the part of the sums that momentum applies to."""
        return sums._replace(gradient=gradient)

    def problem(self, sums, mark, loss_scale):
        """Returns the problem of a layer and the scale of its gradient."""
        del loss_scale
        kernel = tf.cast(tf.convert_to_tensor(mark.kernel), tf.float32)
        shape = mark.num_variables, mark.num_columns
        weights = tf.reshape(ops.sign(kernel), shape)
        problem = newton.problem(sums, weights, self._damping, self._is_mean)
        return problem, tf.ones(())

    def finish(self, states, problem):
        """Replaces columns that do not lower the energy with the weights."""
        found = tf.where(states == 0, problem.start, states)
        change = found - problem.start
        slope = products.product(problem.couplings, found + problem.start)
        gain = tf.reduce_sum(change * (slope + problem.fields), axis=0)
        found = tf.where(gain < 0, found, problem.start)
        # If a solve failed, all states of the layer are zero.
        is_solved = tf.reduce_any(states != 0, axis=0)
        return tf.where(problem.informative & is_solved, found, 0.0)

    def update(self, kernel, states, learning_rate):
        """Changes the latent weights. A state of zero leaves them unchanged."""
        if self._latent == "average":
            value = tf.convert_to_tensor(kernel)
            new = (1.0 - learning_rate) * value + learning_rate * states
        else:
            new = states
        kernel.assign(tf.where(states == 0, tf.convert_to_tensor(kernel), new))
