"""Sums over replicas, and over the batches of a gradient accumulation."""

import tensorflow as tf


def num_replicas():
    """Returns the number of replicas."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def all_reduce(tensors):
    """Sums tensors over replicas."""
    return tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, tensors
    )


def maximum(scalar):
    """Returns the maximum of a scalar over replicas."""
    # `ReduceOp` has no maximum.
    gathered = tf.distribute.get_replica_context().all_gather(
        tf.reshape(scalar, (1,)), axis=0
    )
    return tf.reduce_max(gathered)


def total(parts):
    """Sums named tuples of tensors, also over replicas."""
    kind = type(parts[0])
    sums = list(parts[0])
    if len(parts) > 1:
        sums = [tf.add_n(tensors) for tensors in zip(*parts)]
    if num_replicas() > 1:
        sums = all_reduce(sums)
    return kind(*sums)


class SumVariables:
    """Variables that sum over all batches of a gradient accumulation.

    Each replica adds to its own copy, and the copies are summed when they are
    read. No Keras object tracks the variables, so they are not saved, and
    loading an optimizer drops a partial update.

    Args:
        shapes: Dictionary of names and shapes.
    """

    def __init__(self, shapes):
        self._variables = {}
        with tf.init_scope():
            for name, shape in {**shapes, "incomplete": ()}.items():
                self._variables[name] = tf.Variable(
                    tf.zeros(shape),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                    name=f"qubo_{name}",
                )

    def add_values(self, values):
        """Adds a dictionary of tensors."""
        for name, value in values.items():
            self._variables[name].assign_add(value)

    def raise_to(self, name, value):
        """Sets a variable to the maximum of itself and a tensor."""
        variable = self._variables[name]
        variable.assign(tf.maximum(variable.read_value(), value))

    def values(self):
        """Returns the sums of this replica, as a dictionary of tensors."""
        return {
            name: variable.read_value()
            for name, variable in self._variables.items()
            if name != "incomplete"
        }

    def mark_incomplete(self):
        """Holds the kernel in this update. The rows of a batch are unknown."""
        self._variables["incomplete"].assign(1.0)

    def is_complete(self):
        """Returns 1.0 if the rows of all batches are known, and 0.0 if not."""
        incomplete = self._variables["incomplete"].read_value()
        return tf.cast(incomplete == 0, tf.float32)

    def clear(self):
        """Resets the sums for the next update."""
        for variable in self._variables.values():
            variable.assign(tf.zeros(variable.shape))
