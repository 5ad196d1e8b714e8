"""Runs the checks on one sampler, within a budget of QPU seconds."""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import Any

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.qpu_check.checks import Check
from keras_qpsbgd.qpu_check.recording_sampler import RecordingSampler

# Up to this number of variables, the optimum is found by enumeration.
MAX_EXACT = 16


@dataclasses.dataclass
class Outcome:
    """What one check found.

    Attributes:
        check: The `Check`.
        estimated: Float. QPU seconds, estimated before the calls.
        charged: Float. QPU seconds that the answers report.
        calls: List of `Call`.
        layers: List of dictionaries of arrays, one per layer and repetition.
        gaps: List of floats, one per column.
        chain_breaks: List of floats, one per column.
        problem_ids: List of strings, one per answered call.
        seconds: Float. Wall-clock time.
        refusal: String. The error of a check that must be refused.
        skipped: String. Why the check cannot run on this solver.
        error: String. An unexpected error.
        findings: List of pairs of a sentence and whether it holds.
    """

    check: Check
    estimated: float = 0.0
    charged: float = 0.0
    calls: list = dataclasses.field(default_factory=list)
    layers: list = dataclasses.field(default_factory=list)
    gaps: list = dataclasses.field(default_factory=list)
    chain_breaks: list = dataclasses.field(default_factory=list)
    problem_ids: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    refusal: str = ""
    skipped: str = ""
    error: str = ""
    findings: list = dataclasses.field(default_factory=list)

    @property
    def num_calls(self):
        return len(self.calls)

    @property
    def status(self):
        """One of "passed", "failed" and "skipped"."""
        if self.skipped:
            return "skipped"
        holds = all(holds for _, holds in self.findings)
        return "passed" if holds and not self.error else "failed"


class Runner:
    """Runs checks on one sampler.

    Args:
        sampler: A `DWaveSampler` or `MockQPU`. It is not closed.
        budget_seconds: Float. Maximum QPU access time of all checks. No call is
            made that could exceed it.
    """

    def __init__(self, sampler: Any, budget_seconds: float) -> None:
        self.sampler = RecordingSampler(sampler)
        # One for all checks, because every new one embeds the layers again.
        self._chip = DWaveBackend(sampler=self.sampler).open()
        self.budget_seconds = budget_seconds
        self.charged = 0.0

    def missing(self, check: Check) -> str:
        """Describes why the solver cannot run a check, "" if it can."""
        parameters = self.sampler.parameters
        unknown = set(check.options.get("parameters", ())) - set(parameters)
        if unknown:
            return f"this solver has no parameter {sorted(unknown)}"
        return ""

    def estimate(self, check: Check) -> float:
        """Estimates the QPU seconds of a check.

        Raises:
            BackendUnavailable: If the solver has no timing data that Ocean
                supports.
        """
        if check.how == "refused" or self.missing(check):
            return 0.0
        backend = self._backend(check)
        sizes = check.sizes
        if check.how == "apart":
            seconds = sum(backend.step_cost([size]).seconds for size in sizes)
        else:
            seconds = backend.step_cost(sizes).seconds
        return check.repeats * seconds

    def run(self, check: Check) -> Outcome:
        """Runs one check. Errors become part of the outcome."""
        outcome = Outcome(check, skipped=self.missing(check))
        if outcome.skipped:
            return outcome
        start = time.perf_counter()
        self.sampler.calls = outcome.calls
        backend = None
        try:
            outcome.estimated = self.estimate(check)
            backend = self._backend(check)
            with warnings.catch_warnings():
                # Small gradients are part of the checks.
                warnings.filterwarnings("ignore", "(?s).*below the precision")
                self._solve(check, backend, outcome)
            outcome.findings = list(check.verify(outcome))
        except Exception as error:  # a check must not end the others
            outcome.error = f"{type(error).__name__}: {error}"
        finally:
            if backend is not None:
                outcome.charged = backend.budget.charged
                self.charged += outcome.charged
        outcome.seconds = time.perf_counter() - start
        return outcome

    def _backend(self, check):
        left = max(0.0, self.budget_seconds - self.charged)
        options = {"qpu_budget_seconds": left, "retries": 1, **check.options}
        backend = DWaveBackend(sampler=self.sampler, **options)
        backend._handle = self._chip
        return backend

    def _solve(self, check, backend, outcome):
        for repeat in range(check.repeats):
            qubos = check.qubos(0 if check.how == "same" else repeat)
            # The seed chooses the gauge.
            seeds = [repeat] * len(qubos)
            if check.how == "refused":
                try:
                    backend.check(*check.sizes[0])
                    backend.solve(qubos[0])
                except (
                    backends.BackendUnavailable,
                    backends.SolverError,
                ) as error:
                    outcome.refusal = str(error)
                return
            if check.how == "apart":
                found = [backend.solve(q, s) for q, s in zip(qubos, seeds)]
            else:
                found = _solve_layers(backend, qubos, seeds)
            self._add(outcome, qubos, found)
        outcome.charged = backend.budget.charged

    def _add(self, outcome, qubos, solutions):
        for qubo, solution in zip(qubos, solutions):
            info = solution.info
            best = _best_energies(qubo)
            gaps = (solution.energies - best) / (qubo.random_energy() - best)
            outcome.gaps += gaps.tolist()
            breaks = np.asarray(info["chain_break_fraction"])
            outcome.chain_breaks += breaks.tolist()
            samples = solution.samples
            if samples is None:
                samples = solution.states[None]
            outcome.layers.append(
                {
                    "couplings": qubo.couplings,
                    "fields": qubo.fields,
                    "states": solution.states,
                    "samples": samples,
                    "energies": solution.energies,
                    "best_energies": best,
                    "chain_breaks": breaks,
                }
            )
        outcome.problem_ids = [
            str((call.found.info or {}).get("problem_id", ""))
            for call in outcome.calls
            if call.found is not None
        ]


def _solve_layers(backend, qubos, seeds):
    found = backend.solve_layers(qubos, seeds, True)
    for result in found:
        if isinstance(result, Exception):
            raise result
    return found


def _best_energies(qubo):
    """Returns the lowest energies, by enumeration if there are few states."""
    if qubo.num_variables <= MAX_EXACT:
        return backends.get("exact").solve(qubo).energies
    solver = {"name": "simulated_annealing", "num_reads": 50}
    return backends.get(solver).solve(qubo).energies
