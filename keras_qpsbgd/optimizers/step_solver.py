"""Solves the QUBOs of one update, and passes them to a recorder.

A recorder is any object with three methods.

- `wants(step, layer)` returns whether to record a layer in an update. While a
  graph is traced, `step` is a tensor. The result is then also a tensor, or
  `False` if the layer is never recorded.
- `record(step, layer, qubo, states, samples, sample_energies, info)` receives a
  `Qubo` and arrays, on the host. It must not keep the arrays of the `Qubo`.
- `budget_spent(step)` receives the number of every step that the QPU budget did
  not cover.

For solvers on the host, which return more than states, `HostCall` records the
updates.
"""

import logging
import math
import weakref

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import backends
from keras_qpsbgd._messages import reason
from keras_qpsbgd.backends.host.host_call import HostCall
from keras_qpsbgd.backends.host.host_call import pack_problems
from keras_qpsbgd.backends.host.solver_report import SolverReport
from keras_qpsbgd.qubo import blocks

_logger = logging.getLogger("keras_qpsbgd")


class StepSolver:
    """Solves the problems of all layers, in the graph or on the host.

    Args:
        backend: A `Backend`.
        on_failure: What to do if a solve on the host fails. See `QPSBGD`.
        warn_once: Bound method that receives a key and a message.
        drop: Bound method (optional) that is called when a failed solve ends
            the step. Defaults to `None`.

    Raises:
        ValueError: If an argument is invalid.
    """

    def __init__(self, backend, on_failure, warn_once, drop=None):
        self.backend = backend
        self.on_host = not isinstance(backend, backends.GraphBackend)
        self.on_failure = on_failure
        self.fallback = None
        if on_failure not in ("raise", "hold"):
            try:
                self.fallback = backends.get(on_failure)
            except ValueError as error:
                raise ValueError(
                    '`on_failure` must be "raise", which ends training, '
                    '"hold", which leaves the layer unchanged in this step, or '
                    f"a backend ({reason(error)}). "
                    f"Received: on_failure={on_failure!r}"
                ) from error
        self.last_error = None
        self.report = SolverReport()
        self._warn_once = weakref.WeakMethod(warn_once)
        self._drop = drop and weakref.WeakMethod(drop)
        self.is_checked = False

    def get_config(self):
        """Returns the arguments of `QPSBGD` that select the solver."""
        on_failure = self.on_failure
        if self.fallback is not None:
            on_failure = backends.serialize(self.fallback)
        return {
            "backend": backends.serialize(self.backend),
            "on_failure": on_failure,
        }

    def check(self, sizes, blocks_note):
        """Checks the backends at the start of every step.

        `build` does not check them, because Keras calls it to load a model.
        Loading must work without the license or token of the solver.

        Args:
            sizes: List of tuples `(num_inputs, num_outputs)`, one per QUBO.
            blocks_note: Function that returns what to add to errors about these
                sizes, because a layer may have several QUBOs.

        Raises:
            ValueError: If XLA compiles the step and the backend solves on the
                host.
            BackendUnavailable: If a backend cannot run or cannot solve a QUBO
                of these sizes.
        """
        if self.on_host and _keras.inside_xla():
            raise ValueError(
                f"The backend `{self.backend.name}` solves on the host, and "
                "XLA cannot call the host. Pass `jit_compile=False` to "
                "`compile` or to your `tf.function`. On a GPU, Keras 3 uses "
                "XLA by default. Received: jit_compile=True"
            )
        if self.is_checked:
            return
        try:
            self.backend.check_layers(sizes)
            if self.fallback is not None:
                self.fallback.check_layers(sizes)
        except backends.BackendUnavailable as error:
            error.args = (f"{error}{blocks_note()}",)
            raise
        _log_cost(self.backend, sizes)
        self.is_checked = True

    def solve(self, names, layers, seeds, step, recorder):
        """Returns the states of each layer, zero for entries to hold.

        Args:
            names: List of strings. Names of the layers.
            layers: List of `ops.LayerProblems`.
            seeds: List of int32 tensors of shape `(2,)`.
            step: Scalar int tensor. Number of the update.
            recorder: The recorder, or `None`.

        Returns:
            List of float32 tensors of shape `(n, m)`.
        """
        recorder = _reference_if_wanted(recorder, step, names)
        if self.on_host and layers:
            found = self._solve_on_host(names, layers, seeds, step, recorder)
        else:
            found = self.backend.step_in_graph(layers, seeds)
            if recorder is not None:
                _record_states(recorder, step, names, layers, found)
        return [
            blocks.join(states, layer.shape[0])
            for states, layer in zip(found, layers)
        ]

    def _solve_on_host(self, names, layers, seeds, step, recorder):
        """Passes the problems of all layers to the host in one call."""
        layers = [layer.problems() for layer in layers]
        problems = [problem for layer in layers for problem in layer]
        all_seeds = [
            seed + [0, 104729 * block]
            for seed, layer in zip(seeds, layers)
            for block in range(len(layer))
        ]
        all_names = [
            block_name
            for name, layer in zip(names, layers)
            for block_name in blocks.block_names(name, len(layer))
        ]
        # TensorFlow keeps callbacks alive, and a strong reference would keep
        # the optimizer alive with them.
        call = HostCall(
            self.backend,
            self.fallback,
            self.report,
            weakref.WeakMethod(self._on_error),
            stop_at_failure=self.on_failure != "hold",
            recorder=recorder,
        )
        solved, messages = call(problems, all_seeds, all_names, step)
        if self.on_failure != "hold":
            # There is also a message if the `on_failure` backend failed.
            solved = _states_or_error(solved, messages)
        solved = iter(solved)
        return [
            [tf.where(p.informative, next(solved), 0.0) for p in layer]
            for layer in layers
        ]

    def _on_error(self, error, layer, message):
        self.last_error = error
        if self.on_failure != "hold" and self._drop is not None:
            # The graph cannot do this, because the error that ends the step
            # also ends the graph. This does no harm to an `on_failure` backend,
            # which already has the problem.
            drop = self._drop()
            if drop is not None:
                drop()
        warn_once = self._warn_once()
        if self.on_failure != "raise" and warn_once is not None:
            policy = f"Using on_failure={self.on_failure!r}."
            if isinstance(error, backends.BudgetExceeded):
                # The layers share the budget, so warn only once.
                warn_once("spent", f"The QPU budget is spent. {policy} {error}")
                return
            warn_once(
                ("failed", layer, type(error)),
                f"A solve failed. {policy} {message}",
            )


def _log_cost(backend, sizes):
    """Logs the QPU time of an update, before the first one.

    Args:
        backend: A `Backend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per QUBO.
    """
    cost = backend.step_cost(sizes)
    if not cost.calls:
        return
    left = None if backend.budget is None else backend.budget.remaining()
    lasts = ""
    if left is not None and cost.seconds > 0:
        updates = math.floor(left / cost.seconds + 1e-9)
        lasts = f" The budget of {left:.4g} s lasts for {updates:,} updates."
    _logger.info(
        "An update takes %d QPU call%s and about %.1f ms of QPU time.%s %s",
        cost.calls,
        "" if cost.calls == 1 else "s",
        1e3 * cost.seconds,
        lasts,
        cost.note,
    )


def update_seeds(first, step, count):
    """Returns a different seed for each layer and update.

    Args:
        first: Scalar int32 tensor. The seed of the optimizer.
        step: Scalar int32 tensor. The number of the update.
        count: Integer. The number of layers.
    """
    differences = [(7919 * index, 0) for index in range(count)]
    differences = tf.reshape(tf.constant(differences, tf.int32), (-1, 2))
    return tf.unstack(tf.stack([first, step]) + differences)


def _states_or_error(states, messages):
    """Returns the states, or fails the step if a message is not empty."""
    failure = tf.strings.strip(tf.strings.reduce_join(messages, separator=" "))
    check = tf.debugging.Assert(tf.equal(failure, ""), [failure])
    if tf.executing_eagerly():
        return states
    with tf.control_dependencies([check]):
        return [tf.identity(state) for state in states]


def _reference_if_wanted(recorder, step, layers):
    """Returns a weak reference to the recorder if it records any layer.

    TensorFlow keeps callbacks alive, and a strong reference would keep the
    recorder and its model alive with them.

    Args:
        recorder: The recorder, or `None`.
        step: Scalar int tensor.
        layers: List of strings. Names of the layers.

    Returns:
        A `weakref.ref`, or `None`.

    Raises:
        ValueError: If XLA compiles the step.
    """
    if recorder is None or not _wanted(recorder, step, layers):
        return None
    if _keras.inside_xla():
        raise ValueError(
            "`QuboRecorder` records on the host, and XLA cannot call the host. "
            "Pass `jit_compile=False` to `compile` or to your `tf.function`. "
            "On a GPU, Keras 3 uses XLA by default. Received: jit_compile=True"
        )
    return weakref.ref(recorder)


def _record_states(reference, step, names, layers, states):
    """Records the states that a backend found in the graph.

    Args:
        reference: Weak reference to the recorder.
        step: Scalar int tensor. Number of updates before this one.
        names: List of strings. Names of the layers.
        layers: List of `ops.LayerProblems`.
        states: For each layer, a list of tensors of shape (n, m), one for each
            of its problems. 0 for weights that are held.
    """
    wanted = _wanted(reference(), step, names)
    all_names = [
        name
        for index in wanted
        for name in blocks.block_names(names[index], len(states[index]))
    ]

    def record():
        # Compute this inside the branch, so that other steps do not pay for it.
        arrays, unpack = pack_problems(
            [
                problem
                for index in wanted
                for problem in layers[index].problems()
            ]
        )

        def callback(step, *arrays):
            recorder = reference()
            count = len(all_names)
            found, qubos = arrays[:count], unpack(iter(arrays[count:]))
            for name, qubo, state in zip(all_names, qubos, found):
                if recorder is not None and recorder.wants(int(step), name):
                    recorder.record(int(step), name, qubo, state)
            return []

        found = [state for index in wanted for state in states[index]]
        tf.numpy_function(callback, [step, *found, *arrays], [])

    tf.cond(tf.reduce_any(list(wanted.values())), record, lambda: None)


def _wanted(recorder, step, layers):
    """Maps the index of each layer that may be recorded to a Boolean tensor."""
    wanted = {
        index: recorder.wants(step, layer) for index, layer in enumerate(layers)
    }
    return {index: flag for index, flag in wanted.items() if flag is not False}
