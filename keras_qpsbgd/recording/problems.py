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
from keras_qpsbgd.recording import reduction
from keras_qpsbgd.recording import stacked

WIDE = 256


def gather_all(layers, couplings=True, wide=WIDE):
    """Combines the calls of several layers into one problem for each.

    Must be called in replica context.

    Args:
        layers: List of pairs `(calls, mark)`, see `gather`.
        couplings: Boolean, see `gather`. Defaults to `True`.
        wide: Number, see `gather`. Defaults to `WIDE`.

    Returns:
        List of tuples `(Problem, Statistics)`.
    """
    if reduction.num_replicas() > 1 or not products.on_gpu():
        return [gather(*layer, couplings, wide) for layer in layers]
    problems = [None] * len(layers)
    for group in stacked.groups(layers):
        marks = [layers[i][1] for i in group]
        widths = [mark.num_variables > wide for mark in marks]
        if len(group) == 1 or (couplings and any(widths)):
            found = [gather(*layers[i], couplings, wide) for i in group]
        else:
            calls = [layers[i][0][0] for i in group]
            found = stacked.gather(calls, marks, couplings, wide)
        for i, problem in zip(group, found):
            problems[i] = problem
    return problems


def gather(calls, mark, couplings=True, wide=WIDE):
    """Combines the calls of all replicas into the problem of one update.

    Must be called in replica context.

    Args:
        calls: List of at least one `ops.LayerCall`.
        mark: The `BinaryKernel`.
        couplings: Boolean. If `False`, the problem has the `rows` form where
            possible. Defaults to `True`.
        wide: Number. Layers with more inputs have the `rows` form. Defaults to
            `WIDE`.

    Returns:
        Tuple `(Problem, Statistics)`.
    """
    calls = [_normalized(call) for call in calls]
    if mark.num_variables > wide:
        return _reduce_rows(calls)
    if not couplings and reduction.num_replicas() == 1:
        problem, statistics = _reduce_rows(calls)
        # The same entries as in the `gram` form.
        coupled = ops.has_couplings(problem.normalized_rows)
        informative = ops.has_information(problem, coupled)
        return problem._replace(informative=informative), statistics
    problem, statistics = _reduce_gram([_gram(call) for call in calls])
    if reduction.num_replicas() == 1:
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


class Sums(reduction.SumVariables):
    """Variables that sum the problems of all batches of an accumulation.

    Args:
        mark: The `BinaryKernel`.
    """

    def __init__(self, mark):
        n, m = mark.num_variables, mark.num_columns
        super().__init__(
            {
                "couplings": (n, n),
                "fields": (n, m),
                "offset": (m,),
                "max_gradient": (),
                "counts": (3,),
            }
        )

    def add(self, calls, loss_scale=1.0):
        """Adds the calls of one batch. The scale of the loss is kept."""
        del loss_scale
        for call in calls:
            problem, statistics = _gram(_normalized(call))
            self.add_values(
                {
                    "couplings": problem.couplings,
                    "fields": problem.fields,
                    "offset": problem.offset,
                    "counts": tf.stack(statistics[1:]),
                }
            )
            self.raise_to("max_gradient", statistics.max_gradient)

    def gather(self):
        """Returns the problem of the update and its statistics."""
        known = self.is_complete()
        values = self.values()
        problem = ops.Problem(
            values["couplings"],
            values["fields"] * known,
            values["offset"] * known,
        )
        statistics = ops.Statistics(
            values["max_gradient"], *tf.unstack(values["counts"], num=3)
        )
        return _reduce_gram([(problem, statistics)])


def _reduce_gram(parts):
    problems, statistics = zip(*parts)
    problem = problems[0]
    if len(problems) > 1:
        problem = ops.Problem(
            *(tf.add_n([p[i] for p in problems]) for i in range(3))
        )
    statistics = _total(statistics)
    if reduction.num_replicas() > 1:
        sums = reduction.all_reduce(list(problem[:3]) + list(statistics[1:]))
        problem = ops.Problem(*sums[:3])
        statistics = ops.Statistics(reduction.maximum(statistics[0]), *sums[3:])
    return problem, statistics


def _reduce_rows(calls):
    rows, gradients = _concatenated(calls)
    statistics = _total([ops.statistics(call) for call in calls])
    if reduction.num_replicas() > 1:
        context = tf.distribute.get_replica_context()
        widths = rows.shape[1], gradients.shape[1]
        rows = context.all_gather(rows, axis=0)
        gradients = context.all_gather(gradients, axis=0)
        # In a graph the result has no static shape, but backends need it.
        rows.set_shape((None, widths[0]))
        gradients.set_shape((None, widths[1]))
        statistics = ops.Statistics(
            reduction.maximum(statistics[0]),
            *reduction.all_reduce(list(statistics[1:])),
        )
    return ops.rows_problem(rows, gradients), statistics


def _total(statistics):
    if len(statistics) == 1:
        return statistics[0]
    return ops.Statistics(
        tf.reduce_max([s.max_gradient for s in statistics]),
        *(tf.add_n([s[i] for s in statistics]) for i in range(1, 4)),
    )
