"""How the rows and gradients of a backward pass reach the optimizer.

The backward pass of a binary layer calls `QuboAccumulator.record`; the
optimizer calls `QuboAccumulator.read` when it updates the kernel. In between:

- Inside `model.fit` the optimizer announces the pass before the gradients are
  taken (`begin_pass`). What the pass records is kept as plain tensors and read
  in the same step: no variable is written, nothing outlives the step.
- Otherwise (a loop of your own, a wrapping optimizer, gradient accumulation, a
  layer inside `tf.while_loop`) the pass is summed into variables: couplings,
  fields, offset and statistics, for everything in them is a sum. They are
  created when the first such pass is recorded.

So nothing is recorded unless a `QPSBGD` wants it: with another optimizer the
layers cost what straight-through layers cost and no n x n variable exists.

The problem comes in two forms with the same solution. `gram` is the sums.
`rows` keeps the rows themselves, for layers wider than `WIDE` whose pass was
not summed: no n x n matrix is made (`ridge` makes one if there are more rows
than inputs), and searches that work on the residual need it. (A variable cannot
hold the rows: XLA does not let a variable change its shape, and the number of
rows is not known beforehand.)
"""

import gc
import threading
import weakref

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import ops

WIDE = 256

_local = threading.local()
_recorders = weakref.WeakSet()
_latent = weakref.WeakSet()


class Owner:
    """What one optimizer wants of the binary kernels that are its own.

    The optimizer holds it, as `kernel_owner`; accumulators refer to it weakly,
    so what it wants ends with the optimizer.

    Args:
        forward: what layers multiply by in training: `"sign"` of the kernel, or
            `"latent"`, the real kernel itself.
    """

    def __init__(self, forward="sign"):
        self.forward = forward
        if forward == "latent":
            _latent.add(self)

    @property
    def records_unannounced(self):
        """Whether passes that nobody announced are recorded for it."""
        return False


class Recorder(Owner):
    """One optimizer's wish to have passes recorded.

    Attributes:
        on_host: whether the problems are solved outside the graph.
        announces: whether the optimizer's last step was announced by
            `begin_pass`. If so, a pass that is not announced belongs to another
            optimizer and is not recorded.
    """

    def __init__(self, on_host):
        super().__init__()
        self.on_host = on_host
        self.announces = False
        _recorders.add(self)

    @property
    def records_unannounced(self):
        return not self.announces


class Pass:
    """What one announced backward pass has recorded so far."""

    def __init__(self, recorder):
        self.recorder = weakref.ref(recorder)
        self.graph = _keras.current_graph()
        self.calls = {}


def host_solver_alive():
    """Whether an optimizer exists that solves outside the graph."""
    if any(recorder.on_host for recorder in _recorders):
        # One that is merely waiting for the garbage collector does not count.
        gc.collect()
    return any(recorder.on_host for recorder in _recorders)


def begin_pass(recorder):
    """Announces that `recorder` will read what is recorded from here on.

    A pass that was announced but never read (a wrapping optimizer skipped the
    step, an exception ended it) is forgotten.
    """
    _local.current = Pass(recorder)


def end_pass(recorder):
    """Takes the announced pass of `recorder`, or `None` if there is none."""
    current = getattr(_local, "current", None)
    if current is None or current.recorder() is not recorder:
        return None
    _local.current = None
    return current


class QuboAccumulator:
    """What one update has gathered for one binary kernel.

    Args:
        kernel: the variable.
        num_variables: n.
        num_columns: m.
        name: name of the layer, for messages.
    """

    def __init__(self, kernel, num_variables, num_columns, name):
        self.kernel = kernel
        self.num_variables = num_variables
        self.num_columns = num_columns
        self.name = name
        self.sums = None  # variables, where something had to be summed
        self._owner = lambda: None

    @property
    def owner(self):
        """The `Owner` that was built on the kernel last, while it exists."""
        return self._owner()

    def claim(self, owner):
        """Makes `owner` the owner; what another had summed is dropped."""
        if self.owner is not owner:
            self._owner = weakref.ref(owner)
            self.sums = None

    @property
    def forward(self):
        """What a call in training multiplies by: `"sign"` or `"latent"`.

        In a loop of your own the owner says it. In `fit` the owner may be an
        optimizer of earlier days: if the model has it no more, the one that it
        was compiled with says it.
        """
        if not _latent:
            return "sign"
        owner = self.owner
        optimizers = _keras.training_optimizers()
        if optimizers is not None:
            owners = [getattr(opt, "kernel_owner", None) for opt in optimizers]
            if owner not in owners:
                owner = owners[0]
        return "sign" if owner is None else owner.forward

    def record(self, make_call):
        """Records one call of the layer in a backward pass, if anybody asks.

        Args:
            make_call: function that returns the `ops.LayerCall`.
        """
        current = getattr(_local, "current", None)
        announced = None if current is None else current.recorder()
        if announced is not None and current.graph is _keras.current_graph():
            current.calls.setdefault(self, []).append(make_call())
        elif announced is not None:
            # Tensors of an inner graph cannot leave it, variables can.
            self.claim(announced)
            self._add(make_call())
        elif self.owner is not None and self.owner.records_unannounced:
            self._add(make_call())

    def store(self, one_pass):
        """Sums an announced pass into the variables."""
        for call in one_pass.calls.pop(self, []):
            self._add(call)

    def read(self, one_pass):
        """The problem of this update and its statistics, over all replicas.

        To be called in replica context.

        Args:
            one_pass: the announced pass, or `None`.

        Returns:
            `(Problem, Statistics)`, or `None` if nothing was ever recorded.
        """
        calls = [] if one_pass is None else one_pass.calls.get(self, [])
        if self.sums is not None:
            problems = [_gram(_normalized(call)) for call in calls]
            return _read_gram([self.sums.read(), *problems])
        if not calls:
            return None
        return _problem([_normalized(call) for call in calls], self.is_wide)

    @property
    def is_wide(self):
        """Whether the rows are kept instead of summed, where they can be."""
        return self.num_variables > WIDE

    def clear(self):
        """Empties the variables, if there are any."""
        if self.sums is not None:
            self.sums.clear()

    def prepare(self):
        """Creates the variables now: a second trace may not."""
        if self.sums is None:
            self.sums = _Sums(self.num_variables, self.num_columns)

    def _add(self, call):
        if _keras.inside_while_gradient():
            raise ValueError(
                f"The binary layer `{self.name}` is called inside a "
                "`tf.while_loop`, whose gradient cannot be recorded. Unroll "
                "the loop (for a Keras RNN: `unroll=True`), or train with "
                "another optimizer. Received: a call inside "
                f"{_keras.current_graph()}"
            )
        self.prepare()
        self.sums.add(*_gram(_normalized(call)))


def _normalized(call):
    return ops.normalize(
        call.rows, call.row_gradients, call.kept, batch=call.batch
    )


def _problem(calls, rows_kept):
    """The problem of some `ops.CallRows` and its statistics."""
    if rows_kept:
        return _read_rows(calls)
    problem, statistics = _read_gram([_gram(call) for call in calls])
    if _num_replicas() == 1:
        rows, gradients = _concatenated(calls)
        problem = problem._replace(
            normalized_rows=rows, row_gradients=gradients
        )
    return problem, statistics


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


class _Sums:
    """Variables with the sums of all passes since the last update.

    Each replica adds to its own copy; they are summed when they are read. No
    Keras object tracks them, so they are neither weights nor saved.
    """

    def __init__(self, n, m):
        shapes = {
            "couplings": (n, n),
            "fields": (n, m),
            "offset": (m,),
            "max_gradient": (),
            "counts": (3,),
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

    def add(self, problem, statistics):
        # A LossScaleOptimizer that skips a step leaves what was recorded in
        # it behind, infinite. (The optimizer tests the gradients themselves.)
        sound = tf.math.is_finite(tf.reduce_sum(self.offset.read_value()))

        def earlier(variable):
            value = variable.read_value()
            return tf.where(sound, value, tf.zeros_like(value))

        self.couplings.assign(earlier(self.couplings) + problem.couplings)
        self.fields.assign(earlier(self.fields) + problem.fields)
        self.counts.assign(earlier(self.counts) + tf.stack(statistics[1:]))
        self.max_gradient.assign(
            tf.maximum(earlier(self.max_gradient), statistics.max_gradient)
        )
        self.offset.assign(earlier(self.offset) + problem.offset)

    def read(self):
        problem = ops.Problem(
            self.couplings.read_value(),
            self.fields.read_value(),
            self.offset.read_value(),
        )
        statistics = ops.Statistics(
            self.max_gradient.read_value(),
            *tf.unstack(self.counts.read_value(), num=3),
        )
        return problem, statistics

    def clear(self):
        for variable in vars(self).values():
            variable.assign(tf.zeros(variable.shape))


def _read_gram(parts):
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


def _read_rows(calls):
    rows, gradients = _concatenated(calls)
    statistics = _total([ops.statistics(call) for call in calls])
    if _num_replicas() > 1:
        context = tf.distribute.get_replica_context()
        rows = context.all_gather(rows, axis=0)
        gradients = context.all_gather(gradients, axis=0)
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
