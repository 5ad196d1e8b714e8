r"""Averages the fields of a QUBO over the updates.

The fields of one batch are replaced with their moving average, corrected for
its start at zero as in Adam:

$$M_t = \mu M_{t-1} + (1 - \mu) s_t , \qquad
  \bar s_t = M_t / (1 - \mu^t) .$$
"""

import tensorflow as tf


class Momentum:
    """Moving averages of the fields of all layers.

    Args:
        mu: Float. At least 0 and below 1.
    """

    def __init__(self, mu):
        self._mu = mu
        self._means = {}
        self._count = None

    def add_state(self, optimizer, marks):
        """Creates the variables, which are saved with the optimizer."""
        if self._mu == 0:
            return
        self._count = optimizer.add_array(
            (), "float32", "momentum_updates", per_replica=True
        )
        for index, mark in enumerate(marks):
            self._means[mark] = optimizer.add_array(
                (mark.num_variables, mark.num_columns),
                "float32",
                f"momentum_{index}",
                per_replica=True,
            )

    def average(self, rule, sums, marks):
        """Averages the sums of all layers.

        Args:
            rule: The rule that computed the sums.
            sums: List of the sums of each layer.
            marks: List of `BinaryKernel`.

        Returns:
            Tuple of the averaged sums and a list of pairs of variables and
            their new values, see `store`.
        """
        if self._mu == 0:
            return sums, []
        count = tf.convert_to_tensor(self._count) + 1.0
        correction = 1.0 - tf.pow(tf.constant(self._mu), count)
        averaged, values = [], [(self._count, count)]
        for layer, mark in zip(sums, marks):
            mean = self._means[mark]
            new = self._mu * tf.convert_to_tensor(mean)
            new += (1.0 - self._mu) * rule.linear(layer)
            averaged.append(rule.with_linear(layer, new / correction))
            values.append((mean, new))
        return averaged, values

    def store(self, values, is_update):
        """Sets the state to the new values, on all replicas.

        Args:
            values: List of pairs of variables and values.
            is_update: Boolean tensor, or `True`. If false, the state does not
                change, because an accumulation is not complete.
        """
        for variable, value in values:
            if is_update is not True:
                old = tf.convert_to_tensor(variable)
                value = tf.where(is_update, value, old)
            variable.assign(value)
