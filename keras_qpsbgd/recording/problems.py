"""Combines the calls of a layer into one problem.

A problem has one of two forms with the same solution. The `gram` form consists
of couplings, fields, offset and statistics, which are all sums over rows. The
`rows` form keeps the rows themselves. It is used for layers with more than
`WIDE` inputs, because it avoids an n x n matrix (`ridge` builds one if there
are more rows than inputs) and because searches that work on the residual need
the rows. Gradient accumulation always uses the `gram` form, because XLA does
not allow a variable to change its shape, and the number of rows is not known in
advance.
"""

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import products
from keras_qpsbgd.recording import stacked

WIDE = 256


def gather_all(layers, couplings=True):
    """Combines the calls of several layers into one problem for each.

    Must be called in replica context.

    Args:
        layers: List of pairs `(calls, mark)`, see `gather`.
        couplings: Boolean, see `gather`. Defaults to `True`.

    Returns:
        List of tuples `(Problem, Statistics)`.
    """
    if _num_replicas() > 1 or not products.on_gpu():
        return [gather(calls, mark, couplings) for calls, mark in layers]
    problems = [None] * len(layers)
    for group in stacked.groups(layers):
        marks = [layers[i][1] for i in group]
        widths = [mark.num_variables > WIDE for mark in marks]
        if len(group) == 1 or (couplings and any(widths)):
            found = [gather(*layers[i], couplings) for i in group]
        else:
            calls = [layers[i][0][0] for i in group]
            found = stacked.gather(calls, marks, couplings, WIDE)
        for i, problem in zip(group, found):
            problems[i] = problem
    return problems


def gather(calls, mark, couplings=True):
    """Combines the calls of all replicas into the problem of one update.

    Must be called in replica context.

    Args:
        calls: List of at least one `ops.LayerCall`.
        mark: The `BinaryKernel`.
        couplings: Boolean. If `False`, the problem has the `rows` form where
            possible. Defaults to `True`.

    Returns:
        Tuple `(Problem, Statistics)`.
    """
    calls = [_normalized(call) for call in calls]
    if mark.num_variables > WIDE:
        return _reduce_rows(calls)
    if not couplings and _num_replicas() == 1:
        problem, statistics = _reduce_rows(calls)
        # The same entries as in the `gram` form.
        coupled = ops.has_couplings(problem.normalized_rows)
        informative = ops.has_information(problem, coupled)
        return problem._replace(informative=informative), statistics
    problem, statistics = _reduce_gram([_gram(call) for call in calls])
    if _num_replicas() == 1:
        rows, gradients = _concatenated(calls)
        problem = problem._replace(
            normalized_rows=rows, row_gradients=gradients
        )
    return problem, statistics


def _normalized(call):
    return ops.normalize(
        call.rows, call.row_gradients, call.kept, batch=call.batch
    )


def _concatenated(calls):
    if len(calls) == 1:
        return calls[0].normalized_rows, calls[0].row_gradients
    return (
        tf.concat([call.normalized_rows for call in calls], axis=0),
        tf.concat([call.row_gradients for call in calls], axis=0),
    )


def _gram(call):
    problem = ops.gram_problem(call.normalized_rows, call.row_gradients)
    return problem, ops.statistics(call)


class Sums:
    """Variables that sum over all batches of a gradient accumulation.

    Each replica adds to its own copy, and the copies are summed when they are
    read. No Keras object tracks the variables, so they are not saved, and
    loading an optimizer drops a partial update.

    Args:
        mark: The `BinaryKernel`.
    """

    def __init__(self, mark):
        n, m = mark.num_variables, mark.num_columns
        shapes = {
            "couplings": (n, n),
            "fields": (n, m),
            "offset": (m,),
            "max_gradient": (),
            "counts": (3,),
            "incomplete": (),
        }
        with tf.init_scope():
            for name, shape in shapes.items():
                variable = tf.Variable(
                    tf.zeros(shape),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                    name=f"qubo_{name}",
                )
                setattr(self, name, variable)

    def add(self, calls):
        """Adds the calls of one batch."""
        for call in calls:
            problem, statistics = _gram(_normalized(call))
            self.couplings.assign_add(problem.couplings)
            self.fields.assign_add(problem.fields)
            self.offset.assign_add(problem.offset)
            self.counts.assign_add(tf.stack(statistics[1:]))
            self.max_gradient.assign(
                tf.maximum(
                    self.max_gradient.read_value(), statistics.max_gradient
                )
            )

    def mark_incomplete(self):
        """Holds the kernel in this update. The rows of a batch are unknown."""
        self.incomplete.assign(1.0)

    def gather(self):
        """Returns the problem of the update and its statistics."""
        known = tf.cast(self.incomplete.read_value() == 0, tf.float32)
        problem = ops.Problem(
            self.couplings.read_value(),
            self.fields.read_value() * known,
            self.offset.read_value() * known,
        )
        statistics = ops.Statistics(
            self.max_gradient.read_value(),
            *tf.unstack(self.counts.read_value(), num=3),
        )
        return _reduce_gram([(problem, statistics)])

    def clear(self):
        """Resets the sums for the next update."""
        for variable in vars(self).values():
            variable.assign(tf.zeros(variable.shape))


def _reduce_gram(parts):
    problems, statistics = zip(*parts)
    problem = problems[0]
    if len(problems) > 1:
        problem = ops.Problem(
            *(tf.add_n([p[i] for p in problems]) for i in range(3))
        )
    statistics = _total(statistics)
    if _num_replicas() > 1:
        sums = _all_reduce(list(problem[:3]) + list(statistics[1:]))
        problem = ops.Problem(*sums[:3])
        statistics = ops.Statistics(_maximum(statistics[0]), *sums[3:])
    return problem, statistics


def _reduce_rows(calls):
    rows, gradients = _concatenated(calls)
    statistics = _total([ops.statistics(call) for call in calls])
    if _num_replicas() > 1:
        context = tf.distribute.get_replica_context()
        widths = rows.shape[1], gradients.shape[1]
        rows = context.all_gather(rows, axis=0)
        gradients = context.all_gather(gradients, axis=0)
        # In a graph the result has no static shape, but backends need it.
        rows.set_shape((None, widths[0]))
        gradients.set_shape((None, widths[1]))
        statistics = ops.Statistics(
            _maximum(statistics[0]), *_all_reduce(list(statistics[1:]))
        )
    return ops.rows_problem(rows, gradients), statistics


def _total(statistics):
    if len(statistics) == 1:
        return statistics[0]
    return ops.Statistics(
        tf.reduce_max([s.max_gradient for s in statistics]),
        *(tf.add_n([s[i] for s in statistics]) for i in range(1, 4)),
    )


def _num_replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def _all_reduce(tensors):
    return tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, tensors
    )


def _maximum(scalar):
    # `ReduceOp` has no maximum.
    gathered = tf.distribute.get_replica_context().all_gather(
        tf.reshape(scalar, (1,)), axis=0
    )
    return tf.reduce_max(gathered)
