"""Combines the batches of several replicas and steps in one update."""

import tensorflow as tf


class Accumulation:
    """Sums the gradients of an update.

    Args:
        steps: Integer or `None`. The number of steps of an update,
            `gradient_accumulation_steps` of Keras. `None` means that every step
            is an update, and no sums are stored.
    """

    def __init__(self, steps):
        self.steps = steps
        self.sums = {}  # variables by `BinaryKernel`

    def build(self, marks, add_array):
        """Creates the sums."""
        if self.steps:
            for index, mark in enumerate(marks):
                self.sums[mark] = add_array(
                    (mark.num_variables, mark.num_columns),
                    "float32",
                    f"accumulated_{index}",
                    aggregation="none",
                )

    def total(self, grads, marks, scale, sums_replicas):
        """Returns the mean gradients of the whole batch so far.

        Args:
            grads: List of gradients of this step on this replica.
            marks: List of `statistics.BinaryKernel`.
            scale: Float. The scale of the loss.
            sums_replicas: Boolean. Whether to sum the gradients over replicas,
                because the caller has not.

        Returns:
            List of float32 tensors of shape `(n, m)`.
        """
        scale *= float(self.steps or 1)
        grads = [
            tf.reshape(
                tf.cast(tf.convert_to_tensor(grad), tf.float32),
                (mark.num_variables, mark.num_columns),
            )
            for grad, mark in zip(grads, marks)
        ]
        if scale != 1.0:
            grads = [grad / scale for grad in grads]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1 and sums_replicas:
            grads = context.all_reduce(tf.distribute.ReduceOp.SUM, grads)
        if not self.steps:
            return grads
        return [
            grad + tf.convert_to_tensor(self.sums[mark])
            for grad, mark in zip(grads, marks)
        ]

    def is_complete(self, iterations):
        """Returns whether this step ends an update, a tensor or `True`."""
        return (iterations + 1) % self.steps == 0 if self.steps else True

    def store(self, grads, marks, is_complete):
        """Stores the sums, or resets them at the end of an update."""
        if self.steps:
            for grad, mark in zip(grads, marks):
                kept = tf.where(is_complete, tf.zeros_like(grad), grad)
                self.sums[mark].assign(kept)


def if_true(condition, function, otherwise):
    """Calls one of two functions. `condition` is a tensor or `True`."""
    if condition is True:
        return function()
    return tf.cond(condition, function, otherwise)


def on_first_replica(solve, shapes):
    """Returns `solve()` on the first replica, and zeros on the others.

    The subsequent sum over replicas gives all of them the same result. The
    copies therefore stay equal even if the solver has no seed, and the solver
    is called only once.

    Args:
        solve: Function that returns a list of float32 tensors.
        shapes: List of the shapes of these tensors.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return solve()
    return tf.cond(
        tf.equal(context.replica_id_in_sync_group, 0),
        solve,
        lambda: [tf.zeros(shape) for shape in shapes],
    )
