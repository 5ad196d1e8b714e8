"""Solves the QUBOs of one update."""

import weakref

import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd.backends.host.call import HostCall
from keras_qpsbgd.backends.host.progress import HostProgress
from keras_qpsbgd.backends.host.report import SolverReport
from keras_qpsbgd.optimizers import record_step
from keras_qpsbgd.optimizers import replica_cond
from keras_qpsbgd.optimizers import rules


class StepSolver:
    """Solves the problems of all layers, in the graph or on the host.

    Args:
        backend: A `Backend`.
        on_failure: What to do if a solve on the host fails, see `QPSBGD`.
        warn_once: Bound method that receives a key and a message.

    Raises:
        ValueError: If an argument is invalid.
    """

    def __init__(self, backend, on_failure, warn_once):
        self.backend = backend
        self.on_host = not isinstance(backend, backends.GraphBackend)
        self.on_failure = on_failure
        self.fallback = None
        if on_failure not in ("raise", "hold"):
            try:
                self.fallback = backends.get(on_failure)
            except ValueError as error:
                raise ValueError(
                    '`on_failure` must be "raise", "hold" or a backend '
                    f"({error}). Received: on_failure={on_failure!r}"
                ) from error
        self.last_error = None
        self.report = SolverReport()
        self.progress = HostProgress()
        self._warn_once = weakref.WeakMethod(warn_once)

    @property
    def all_backends(self):
        """The backend and, if there is one, the fallback."""
        return [self.backend] + [self.fallback] * (self.fallback is not None)

    def solve(self, names, layers, seeds, step, recorder):
        """Returns the states of each layer, zero for entries to hold.

        Args:
            names: List of strings. Names of the layers.
            layers: List of `ops.LayerProblems`.
            seeds: List of int32 tensors of shape `(2,)`.
            step: Scalar int tensor. Number of the update.
            recorder: The recorder of `record_step`, or `None`.

        Returns:
            List of float32 tensors of shape `(n, m)`.
        """
        recorder = record_step.reference_if_wanted(recorder, step, names)
        if self.on_host and layers:
            found = self._solve_on_host(names, layers, seeds, step, recorder)
        else:
            found = self.backend.step_in_graph(layers, seeds)
            if recorder is not None:
                record_step.record_states(recorder, step, names, layers, found)
        return [
            rules.join(states, layer.shape[0])
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
            for block_name in record_step.block_names(name, len(layer))
        ]
        call = self._host_call(recorder)
        solved, messages = call(problems, all_seeds, all_names, step)
        if self.on_failure != "hold":
            # A message also remains if the backend of `on_failure` failed.
            solved = replica_cond.states_or_error(solved, messages)
        solved = iter(solved)
        return [
            [tf.where(p.informative, next(solved), 0.0) for p in layer]
            for layer in layers
        ]

    def _host_call(self, recorder):
        # TensorFlow keeps callbacks alive, and a strong reference would keep
        # the optimizer alive with them.
        return HostCall(
            self.backend,
            self.fallback,
            self.report,
            weakref.WeakMethod(self._on_error),
            self.progress,
            stop_at_failure=self.on_failure != "hold",
            recorder=recorder,
        )

    def _on_error(self, error, layer, message):
        self.last_error = error
        warn_once = self._warn_once()
        if self.on_failure != "raise" and warn_once is not None:
            spent = isinstance(error, backends.BudgetExceeded)
            event = "The QPU budget is spent." if spent else "A solve failed."
            warn_once(
                ("failed", layer, type(error)),
                f"{event} Using on_failure={self.on_failure!r}. {message}",
            )
