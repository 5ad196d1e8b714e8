"""The problems of a QPU check, one `Check` per feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_qpsbgd.qubo import Qubo

# The layers of the network 16-4-4-2.
NETWORK = ((16, 4), (4, 4), (4, 2))
NUM_READS = 100
# A read that is no better than a random state has a gap of about 1.
MAX_GAP = 0.2
# A call with another time than this share of its estimate is reported.
MAX_ERROR = 0.3


class Check(NamedTuple):
    """One feature, and how to see that it works.

    Attributes:
        name: String. Name of the files.
        title: String. What is checked.
        sizes: Tuple of `(num_inputs, num_outputs)`, one per layer.
        options: Dictionary. Arguments of `DWaveBackend`.
        how: String. `"together"`: all layers in as few calls as possible.
            `"apart"`: each layer with its own calls. `"same"`: together,
            the same problem each time. `"refused"`: no call may be made.
        repeats: Integer. Number of times, each with another problem.
        verify: Function that receives the `Outcome` and yields pairs of a
            sentence and whether it holds.
        field_scales: Tuple of floats (optional). Factors of the columns.
    """

    name: str
    title: str
    sizes: tuple[tuple[int, int], ...]
    options: dict[str, Any]
    how: str
    repeats: int
    verify: Callable[[Any], Any]
    field_scales: tuple[float, ...] = ()

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


def _solved(outcome):
    mean = float(np.mean(outcome.gaps))
    yield f"mean gap {mean:.4f}, at most {MAX_GAP}", mean <= MAX_GAP
    ratio = outcome.charged / outcome.estimated
    yield (
        f"charged {1000 * outcome.charged:.1f} ms, estimated "
        f"{1000 * outcome.estimated:.1f} ms",
        abs(ratio - 1) <= MAX_ERROR,
    )
    ids = outcome.problem_ids
    yield (
        f"problem ids: {len(ids)}, calls: {outcome.num_calls}",
        len(ids) == outcome.num_calls and all(ids),
    )


def _calls(per_repeat):
    def verify(outcome):
        yield from _solved(outcome)
        wanted = per_repeat * outcome.check.repeats
        found = outcome.num_calls
        yield f"calls: {found}, expected {wanted}", found == wanted

    return verify


def _several_calls(outcome):
    yield from _solved(outcome)
    found = outcome.num_calls
    yield f"calls: {found}, expected at least 2", found >= 2


def _labeled(outcome):
    yield from _calls(1)(outcome)
    labels = {call.parameters.get("label") for call in outcome.calls}
    text = ", ".join(sorted(map(str, labels)))
    yield f"label: {text}", labels == {"keras_qpsbgd qpu-check"}


def _gauged(outcome):
    """A gauge flips signs. The sizes change by one factor per column.

    The factor differs because the range of couplings is not symmetric.
    """
    yield from _calls(1)(outcome)
    fields = []
    for call in outcome.calls[:2]:
        arrays = call.arrays()
        fields.append(arrays["linear"][np.argsort(arrays["qubits"])])
    first, second = fields
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


def _refused(word):
    def verify(outcome):
        yield f"refused: {outcome.refusal}", word in (outcome.refusal or "")
        yield f"calls: {outcome.num_calls}", outcome.num_calls == 0

    return verify


def _check(name, title, sizes, verify, how="together", repeats=1, **options):
    scales = options.pop("field_scales", ())
    options.setdefault("num_reads", NUM_READS)
    return Check(
        name, title, sizes, options, how, repeats, verify, tuple(scales)
    )


CHECKS = (
    _check(
        "together",
        "All layers of 16-4-4-2 in one call",
        NETWORK,
        _calls(1),
        repeats=5,
    ),
    _check(
        "apart",
        "The same layers, one call each",
        NETWORK,
        _calls(len(NETWORK)),
        how="apart",
        repeats=5,
    ),
    _check(
        "without_gauge",
        "The same layers in one call, without gauge transforms",
        NETWORK,
        _calls(1),
        repeats=5,
        gauge=False,
    ),
    _check(
        "gauge",
        "One problem twice, with two gauge transforms",
        ((12, 4),),
        _gauged,
        how="same",
        repeats=2,
    ),
    _check(
        "ranges",
        "A column with a small gradient beside one with a large gradient",
        ((8, 2),),
        _calls(1),
        field_scales=(1.0, 100.0),
    ),
    _check(
        "weak_chains",
        "Chains that are too weak",
        ((16, 4),),
        _weak_chains,
        chain_strength=0.01,
    ),
    _check(
        "several_calls",
        "More columns than fit on the chip",
        ((64, 10),),
        _several_calls,
        num_reads=20,
    ),
    _check(
        "blocks",
        "A layer in blocks",
        ((16, 2),),
        _calls(2),
        block_size=8,
        block_sweeps=1,
    ),
    _check(
        "label",
        "Problem ids and label",
        ((4, 2),),
        _labeled,
        num_reads=10,
        problem_label="keras_qpsbgd qpu-check",
    ),
    _check(
        "fast_anneal",
        "Fast anneal with linear biases, which must be refused",
        ((4, 2),),
        _refused("fast_anneal"),
        how="refused",
        parameters={"fast_anneal": True},
    ),
    _check(
        "budget",
        "A call beyond the budget, which must be refused",
        ((4, 2),),
        _refused("qpu_budget_seconds"),
        how="refused",
        qpu_budget_seconds=0.001,
    ),
)
