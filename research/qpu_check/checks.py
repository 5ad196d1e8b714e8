"""Small problems for each feature of the backend `dwave`, and verdicts."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import dimod
import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.qubo import Qubo

# The layers of the network 16-4-4-2.
NETWORK = ((16, 4), (4, 4), (4, 2))
NUM_READS = 100
LABEL = "keras_qpsbgd qpu-check"
# A read that is no better than a random state has a gap of about 1.
MAX_GAP = 0.2
# A call with another time than this share of its estimate is reported.
MAX_ERROR = 0.3
# Up to this number of variables, the optimum is found by enumeration.
MAX_EXACT = 16


class Check(NamedTuple):
    """One feature, and how to see that it works.

    Attributes:
        name: String. Name of the file.
        title: String. What is checked.
        sizes: Tuple of `(num_inputs, num_outputs)`, one per layer.
        options: Dictionary. Arguments of `DWaveBackend`.
        calls: Integer. Expected number of calls per repetition. With `None`,
            several are expected.
        repeats: Integer. Number of times, each with another problem.
        same: Boolean. Whether each repetition has the same problem.
        field_scales: Tuple of floats (optional). Factors of the columns.
        max_gap: Float (optional). Largest mean gap.
        also: Function (optional) that receives the `Outcome` and yields more
            pairs of a sentence and whether it holds.
    """

    name: str
    title: str
    sizes: tuple[tuple[int, int], ...]
    options: dict[str, Any]
    calls: int | None = 1
    repeats: int = 1
    same: bool = False
    field_scales: tuple[float, ...] = ()
    max_gap: float | None = MAX_GAP
    also: Callable[[Any], Any] | None = None

    def qubos(self, repeat):
        """Returns the problems of one repetition, always the same."""
        rng = np.random.default_rng([repeat, len(self.sizes)])
        found = []
        for n, m in self.sizes:
            rows, v = rng.normal(size=(32, n)), rng.normal(size=(32, m))
            qubo = Qubo.from_rows(rows, v)
            if self.field_scales:
                fields = qubo.fields * np.asarray(self.field_scales)
                qubo = Qubo(qubo.couplings, fields)
            found.append(qubo)
        return found


@dataclasses.dataclass
class Outcome:
    """What one check found.

    Attributes:
        check: The `Check`.
        estimated: Float. QPU seconds, estimated before the calls.
        charged: Float. QPU seconds that the answers report.
        calls: List of dictionaries: the `problem` on the qubits as it was sent,
            the `parameters`, and the `answer`, or `None` if the call failed.
        energies: List of floats. The energy of each column.
        gaps: List of floats. The gap of each column: 0 is the optimum, 1 a
            random state.
        chain_breaks: List of floats. The fraction of broken chains of each
            column.
        error: String. The error that ended the check, if any.
        findings: List of pairs of a sentence and whether it holds.
    """

    check: Check
    estimated: float = 0.0
    charged: float = 0.0
    calls: list = dataclasses.field(default_factory=list)
    energies: list = dataclasses.field(default_factory=list)
    gaps: list = dataclasses.field(default_factory=list)
    chain_breaks: list = dataclasses.field(default_factory=list)
    error: str = ""
    findings: list = dataclasses.field(default_factory=list)

    @property
    def passed(self):
        holds = all(holds for _, holds in self.findings)
        return holds and bool(self.findings)

    @property
    def problem_ids(self):
        answers = [call["answer"] for call in self.calls if call["answer"]]
        return [str(found.info.get("problem_id", "")) for found in answers]


class _RecordingSampler:
    """Forwards everything to another sampler, and records its calls."""

    def __init__(self, sampler):
        self._sampler = sampler
        self.calls = []

    def __getattr__(self, name):
        return getattr(self._sampler, name)

    def sample(self, model, **parameters):
        call = {
            "problem": model.copy(),
            "parameters": {name: str(v) for name, v in parameters.items()},
            "answer": None,
        }
        self.calls.append(call)
        found = self._sampler.sample(model, **parameters)
        if isinstance(found, dimod.SampleSet):
            found.resolve()
            call["answer"] = found
        return found


class Runner:
    """Runs checks on one sampler, within a budget.

    Args:
        sampler: A `DWaveSampler` or `MockQPU`. It is not closed.
        budget_seconds: Float. Maximum QPU access time of all checks. No call is
            made that could exceed it.

    Attributes:
        charged: Float. QPU seconds of all checks so far.
    """

    def __init__(self, sampler: Any, budget_seconds: float) -> None:
        self.budget_seconds = budget_seconds
        self.charged = 0.0
        self._sampler = _RecordingSampler(sampler)
        self._chip = DWaveBackend(sampler=self._sampler).open()

    def estimate(self, check: Check) -> float:
        """Estimates the QPU seconds of a check.

        Raises:
            BackendUnavailable: If the solver has no timing data that Ocean
                supports.
        """
        seconds = self._backend(check).step_cost(check.sizes).seconds
        return check.repeats * seconds

    def run(self, check: Check) -> Outcome:
        """Runs one check. Errors become part of the outcome."""
        outcome = Outcome(check)
        self._sampler.calls = outcome.calls
        backend = self._backend(check)
        try:
            outcome.estimated = self.estimate(check)
            with warnings.catch_warnings():
                # Small gradients are part of the checks.
                warnings.filterwarnings("ignore", "(?s).*below the precision")
                _solve(check, backend, outcome)
        except Exception as error:  # a check must not end the others
            outcome.error = f"{type(error).__name__}: {error}"
        finally:
            outcome.charged = backend.budget.charged
            self.charged += outcome.charged
        if not outcome.error:
            outcome.findings = [
                (text, bool(holds)) for text, holds in _findings(outcome)
            ]
        return outcome

    def _backend(self, check):
        left = max(0.0, self.budget_seconds - self.charged)
        options = {"qpu_budget_seconds": left, "retries": 1, **check.options}
        backend = DWaveBackend(sampler=self._sampler, **options)
        # Every new chip would embed the layers again.
        backend._handle = self._chip
        return backend


def _solve(check, backend, outcome):
    for repeat in range(check.repeats):
        qubos = check.qubos(0 if check.same else repeat)
        seeds = [repeat] * len(qubos)  # they choose the gauge
        found = backend.solve_layers(qubos, seeds, True)
        for qubo, solution in zip(qubos, found):
            if isinstance(solution, Exception):
                raise solution
            best = _best_energies(qubo)
            gaps = (solution.energies - best) / (qubo.random_energy() - best)
            breaks = np.asarray(solution.info["chain_break_fraction"])
            outcome.energies += solution.energies.tolist()
            outcome.gaps += gaps.tolist()
            outcome.chain_breaks += breaks.tolist()


def _best_energies(qubo):
    """Returns the lowest energies, by enumeration if there are few states."""
    solver: Any = "exact"
    if qubo.num_variables > MAX_EXACT:
        solver = {"name": "simulated_annealing", "num_reads": 50}
    return backends.get(solver).solve(qubo).energies


# Verdicts


def _findings(outcome):
    """Yields pairs of a sentence and whether it holds."""
    check, found = outcome.check, len(outcome.calls)
    if check.max_gap is not None:
        mean = float(np.mean(outcome.gaps))
        text = f"mean gap {mean:.4f}, at most {check.max_gap}"
        yield text, mean <= check.max_gap
    ratio = outcome.charged / outcome.estimated
    yield (
        f"charged {1000 * outcome.charged:.1f} ms, estimated "
        f"{1000 * outcome.estimated:.1f} ms",
        abs(ratio - 1) <= MAX_ERROR,
    )
    ids = outcome.problem_ids
    yield (
        f"problem ids: {len(ids)}, calls: {found}",
        len(ids) == found and all(ids),
    )
    if check.calls is None:
        yield f"calls: {found}, expected at least 2", found >= 2
    else:
        wanted = check.calls * check.repeats
        yield f"calls: {found}, expected {wanted}", found == wanted
    if check.also is not None:
        yield from check.also(outcome)


def _labeled(outcome):
    labels = {call["parameters"].get("label") for call in outcome.calls}
    text = ", ".join(sorted(map(str, labels)))
    yield f"label: {text}", labels == {LABEL}


def _gauged(outcome):
    """A gauge flips signs. The sizes change by one factor per column.

    The factor differs because the range of couplings is not symmetric.
    """
    models = [call["problem"].spin for call in outcome.calls[:2]]
    first, second = (
        np.array([model.linear[qubit] for qubit in sorted(model.variables)])
        for model in models
    )
    flipped = float(np.mean(np.sign(first) != np.sign(second)))
    yield f"{100 * flipped:.0f} % of the signs differ", 0.1 < flipped < 0.9
    factors = np.unique(np.round(np.abs(second / first), 5))
    columns = outcome.check.sizes[0][1]
    yield (
        f"the sizes of the fields differ by {len(factors)} factors, at most "
        f"{columns}, one per column",
        len(factors) <= columns,
    )


def _weak_chains(outcome):
    share = float(np.mean(outcome.chain_breaks))
    yield f"{100 * share:.1f} % of the chains are broken", share > 0.01


READS = {"num_reads": NUM_READS}
CHECKS = (
    Check(
        "together",
        "All layers of 16-4-4-2 in one call",
        NETWORK,
        READS,
        repeats=5,
    ),
    Check(
        "gauge",
        "One problem twice, with two gauge transforms",
        ((12, 4),),
        READS,
        same=True,
        repeats=2,
        also=_gauged,
    ),
    Check(
        "ranges",
        "A column with a small gradient beside a large one",
        ((8, 2),),
        READS,
        field_scales=(1.0, 100.0),
    ),
    Check(
        "weak_chains",
        "Chains that are too weak",
        ((16, 4),),
        {**READS, "chain_strength": 0.01},
        max_gap=None,
        also=_weak_chains,
    ),
    Check(
        "several_calls",
        "More columns than fit on the chip",
        ((64, 10),),
        {"num_reads": 20},
        calls=None,
    ),
    Check(
        "blocks",
        "A layer in blocks",
        ((16, 2),),
        {**READS, "block_size": 8, "block_sweeps": 1},
        calls=2,
    ),
    Check(
        "label",
        "Problem ids and label",
        ((4, 2),),
        {"num_reads": 10, "problem_label": LABEL},
        also=_labeled,
    ),
)
