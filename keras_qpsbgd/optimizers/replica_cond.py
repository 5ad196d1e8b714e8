"""Conditions on which an update depends, on one replica or several."""

import tensorflow as tf


def true_on_all_replicas(flag):
    """Returns whether a Boolean tensor is true on all replicas."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return flag
    count = context.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.cast(flag, tf.float32)
    )
    return count >= context.num_replicas_in_sync


def update_or_skip(condition, update, arguments, skip):
    """Calls `update(*arguments)` if `condition` is true, and `skip()` if not.

    Both functions run in replica context. TensorFlow does not allow a `tf.cond`
    in replica context to merge replicas, as an update does, even if there is
    only one replica. Under a strategy, `tf.cond` therefore runs in
    cross-replica context, and each branch enters the replicas again.
    """
    if not tf.distribute.has_strategy():
        tf.cond(
            condition, lambda: _none(update(*arguments)), lambda: _none(skip())
        )
        return

    def merged(strategy, condition, *arguments):
        first = strategy.experimental_local_results(condition)[0]

        def on_each_replica(function, arguments):
            strategy.extended.call_for_each_replica(function, args=arguments)

        tf.cond(
            first,
            lambda: _none(on_each_replica(update, arguments)),
            lambda: _none(on_each_replica(skip, ())),
        )

    context = tf.distribute.get_replica_context()
    context.merge_call(merged, args=(condition, *arguments))


def update_and_undo(condition, update, arguments, variables):
    """Calls `update(*arguments)`, and undoes it unless `condition` is true.

    In compiled programs this is faster than a branch, which copies its
    condition to the host and all of its operands on the device. The choice
    between two values is part of the operation that computes the new one.

    Args:
        condition: Scalar Boolean tensor.
        update: Function that changes some of the variables.
        arguments: Arguments of `update`.
        variables: List of all variables that `update` may change.
    """
    before = [tf.convert_to_tensor(variable) for variable in variables]
    update(*arguments)
    for variable, value in zip(variables, before):
        changed = tf.convert_to_tensor(variable)
        variable.assign(tf.where(condition, changed, value))


def _none(_):
    """Returns `None`, because branches of `tf.cond` must return the same."""
