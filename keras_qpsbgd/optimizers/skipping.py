"""Skips an update if a number is not finite."""

import tensorflow as tf

from keras_qpsbgd.qubo import ops


class Skipping:
    """Applies an update, or skips all of it, and counts skipped updates."""

    variable = None  # created in `build`

    def build(self, add_array):
        """Creates the counter."""
        self.variable = add_array((), "int32", "skipped_updates")

    @property
    def count(self):
        """The number of skipped updates."""
        # Another thread may read this while the optimizer is being built.
        if self.variable is None:
            return 0
        return int(tf.convert_to_tensor(self.variable))

    def apply(self, tensors, update, arguments, skip, changed):
        """Calls `update(*arguments)` if `tensors` are finite, or else `skip()`.

        Args:
            tensors: List of tensors.
            update: Function that applies the update.
            arguments: Arguments of `update`.
            skip: Function without arguments. It is not called if `changed` is
                given.
            changed: List of all variables that `update` may change if the step
                is one compiled program. Otherwise `None`.
        """
        finite = _true_on_all_replicas(ops.is_finite(tensors))
        if changed is not None:
            _update_and_undo(finite, update, arguments, changed)
            self.variable.assign_add(tf.cast(~finite, tf.int32))
            return

        def count_and_skip():
            self.variable.assign_add(1)
            skip()

        _update_or_skip(finite, update, arguments, count_and_skip)

    def warn(self, warn_once):
        """Warns if updates were skipped."""
        count = self.count
        if count:
            warn_once(
                "skipped",
                f"{count} update(s) were skipped because a gradient or the "
                "learning rate was not finite. They changed no variable and no "
                "optimizer state. (The forward pass may have changed moving "
                "statistics, such as those of batch normalization.) See "
                "`optimizer.skipped_updates`.",
            )


def _update_and_undo(condition, update, arguments, variables):
    """Calls `update(*arguments)`, and undoes it unless `condition` is true.

    In compiled programs this is faster than a branch, which copies its
    condition to the host and all of its operands on the device. The compiler
    fuses the choice between the old and the new value into the operation that
    computes the new one.

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


def _true_on_all_replicas(flag):
    """Returns whether a Boolean tensor is true on all replicas."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return flag
    count = context.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.cast(flag, tf.float32)
    )
    return count >= context.num_replicas_in_sync


def _update_or_skip(condition, update, arguments, skip):
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
    """Returns `None`, because both branches of `tf.cond` must match."""
