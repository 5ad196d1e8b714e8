"""Whether an update is made, on one replica or several."""

import tensorflow as tf


def all_replicas(flag):
    """Whether a flag is set on all replicas."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return flag
    count = context.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.cast(flag, tf.float32)
    )
    return count >= context.num_replicas_in_sync


def unless_failed(messages, states):
    """The states, if all messages are empty; ends the step otherwise."""
    failure = tf.strings.strip(tf.strings.reduce_join(messages, separator=" "))
    check = tf.debugging.Assert(tf.equal(failure, ""), [failure])
    if tf.executing_eagerly():
        return states
    with tf.control_dependencies([check]):
        return [tf.identity(state) for state in states]


def in_one_branch(condition, update, arguments, skip):
    """`tf.cond` between an update in replica context and a skip.

    TensorFlow does not allow a branch in replica context to merge replicas, as
    an update does, even if there is only one. So under a strategy the branch is
    taken in cross-replica context and the replicas are entered anew inside it.
    """
    if not tf.distribute.has_strategy():
        tf.cond(
            condition, lambda: _none(update(*arguments)), lambda: _none(skip())
        )
        return

    def across(strategy, condition, *arguments):
        first = strategy.experimental_local_results(condition)[0]

        def branch(function, arguments):
            strategy.extended.call_for_each_replica(function, args=arguments)

        tf.cond(
            first,
            lambda: _none(branch(update, arguments)),
            lambda: _none(branch(skip, ())),
        )

    context = tf.distribute.get_replica_context()
    context.merge_call(across, args=(condition, *arguments))


def _none(_):
    """Branches of `tf.cond` must return the same: nothing."""
