"""Solves the QUBOs of one update."""

import functools
import weakref

import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd.backends import reads as combined_reads
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.host.call import HostCall
from keras_qpsbgd.backends.host.progress import HostProgress
from keras_qpsbgd.backends.host.report import SolverReport
from keras_qpsbgd.optimizers import record_step
from keras_qpsbgd.optimizers import replica_cond

READS = ("best", "mean")


class StepSolver:
    """Solves the problems of all layers, in the graph or on the host.

    Args:
        backend: A `Backend`.
        on_failure: What to do if a solve on the host fails, see `QPSBGD`.
        warn_once: Bound method that receives a key and a message.
        reads: String. `"best"` or `"mean"`, see `QPSBGD`.
        read_temperature: Float (optional), see `QPSBGD`.

    Raises:
        ValueError: If an argument is invalid.
    """

    def __init__(self, backend, on_failure, warn_once, reads, read_temperature):
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
        self._set_reads(reads, read_temperature)
        self.last_error = None
        self.report = SolverReport()
        self.progress = HostProgress()
        self._warn_once = weakref.WeakMethod(warn_once)
        # States of the previous step, for backends with `warm_start`.
        self._last_states: dict = {}

    def _set_reads(self, reads, temperature):
        if reads not in READS:
            raise ValueError(
                f"`reads` must be one of {READS}. Received: reads={reads!r}"
            )
        if reads == "mean" and not self.backend.has_reads:
            raise ValueError(
                f"The backend `{self.backend.name}` has no reads to average. "
                'Use `reads="best"`, or a backend with several reads, such as '
                f"`native` or an annealer. Received: reads={reads!r}"
            )
        if temperature is not None:
            if reads != "mean":
                raise ValueError(
                    '`read_temperature` requires `reads="mean"`. Received: '
                    f"reads={reads!r}, read_temperature={temperature!r}"
                )
            check_number("read_temperature", temperature, above=0)
        self.reads = reads
        self.read_temperature = temperature

    @property
    def all_backends(self):
        """The backend and, if there is one, the fallback."""
        return [self.backend] + [self.fallback] * (self.fallback is not None)

    def solve(self, names, problems, factors, seeds, step, recorder):
        """Returns the states of each layer, zero for entries to hold.

        Args:
            names: List of strings. Names of the layers.
            problems: List of `ops.Problem`.
            factors: List of scalars, the scales of the gradients. See
                `ops.scale_problem`.
            seeds: List of int32 tensors of shape `(2,)`.
            step: Scalar int tensor. Number of the update.
            recorder: The recorder of `record_step`, or `None`.

        Returns:
            List of float32 tensors of shape `(n, m)`.
        """
        recorder = record_step.reference_if_wanted(recorder, step, names)
        if self.on_host and problems:
            return self._solve_on_host(
                names, problems, factors, seeds, step, recorder
            )
        if self.reads == "mean":
            states = self.backend.mean_reads_in_graph(
                problems, seeds, factors, self.read_temperature
            )
        else:
            states = self.backend.step_in_graph(problems, seeds, factors)
        if recorder is not None:
            record_step.record_states(
                recorder, step, names, problems, factors, states
            )
        return states

    def _solve_on_host(self, names, problems, factors, seeds, step, recorder):
        scaled = [
            ops.scale_problem(problem, factor)
            for problem, factor in zip(problems, factors)
        ]
        applied = [ops.has_information(problem) for problem in scaled]
        call = self._host_call(recorder)
        solved, messages = call(scaled, seeds, names, step, applied)
        if self.on_failure != "hold":
            # A message also remains if the backend of `on_failure` failed.
            solved = replica_cond.states_or_error(solved, messages)
        return [
            tf.where(mask, states, 0.0) for mask, states in zip(applied, solved)
        ]

    def _host_call(self, recorder):
        # TensorFlow keeps callbacks alive, and a strong reference would keep
        # the optimizer alive with them.
        on_error = weakref.WeakMethod(self._on_error)
        combine = None
        if self.reads == "mean":
            combine = functools.partial(
                combined_reads.mean, temperature=self.read_temperature
            )
        return HostCall(
            self.backend,
            self.fallback,
            self.report,
            on_error,
            self.progress,
            stop_at_failure=self.on_failure != "hold",
            recorder=recorder,
            last_states=self._last_states,
            combine=combine,
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
