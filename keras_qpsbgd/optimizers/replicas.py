"""Updates on one replica or several, and conditions on which they depend."""

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


def _none(_):
    """Returns `None`, because branches of `tf.cond` must return the same."""
