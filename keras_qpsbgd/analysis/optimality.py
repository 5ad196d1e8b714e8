"""Measures how far the energies of solvers are from the optimum."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import Union

import numpy as np
from numpy.typing import ArrayLike

from keras_qpsbgd import backends
from keras_qpsbgd.analysis import common
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.qubo import Qubo

# The backend `exact` enumerates this many variables in less than a second per
# column.
MAX_EXACT = 20

SolverLike = Union[backends.Solution, BackendLike]


@dataclasses.dataclass
class OptimalityGap:
    """The result of `optimality_gap`.

    Attributes:
        names: List of strings. Names of the solvers.
        gaps: Array (solvers, m). The gap of each column. 0 is the optimum, and
            1 is a random state.
        energies: Array (solvers, m). The energies of the solvers.
        best: Array (m,). The energies that the gaps are relative to.
        random: Array (m,). The mean energies of random states.
        is_exact: Boolean. Whether `best` is known to be the optimum.
    """

    names: list[str]
    gaps: np.ndarray
    energies: np.ndarray
    best: np.ndarray
    random: np.ndarray
    is_exact: bool

    def __str__(self):
        """Returns a table with one line per solver."""
        width = max(len("solver"), *map(len, self.names))
        head = f"{'solver':<{width}}  {'mean gap':>10}  {'largest':>10}  hits"
        lines = [head, "-" * len(head)]
        for name, gaps in zip(self.names, self.gaps):
            hits = np.mean(gaps <= TIE)
            lines.append(
                f"{name:<{width}}  {gaps.mean():>10.2g}  {gaps.max():>10.2g}  "
                f"{100 * hits:>3.0f}%"
            )
        reference = "the optimum" if self.is_exact else "the best known energy"
        return "\n".join([*lines, f"Gaps are relative to {reference}."])


# Gaps up to this size are rounding errors.
TIE = 1e-6


def optimality_gap(
    qubo: Qubo,
    solvers: SolverLike | Mapping[str, SolverLike],
    best: ArrayLike | None = None,
    seed: int = 0,
) -> OptimalityGap:
    r"""Compares the energies of solvers with the optimum, column by column.

    The gap of a column is

    $$\frac{E - E_\mathrm{best}}{E_\mathrm{rand} - E_\mathrm{best}},$$

    where \(E_\mathrm{rand} = \mathrm{offset} + \mathrm{tr}\, Q\) is the mean
    energy of a random state. Plain ratios of energies would be meaningless,
    because they depend on the constant part of the energy. If the best energy
    of a column equals that of a random state, its gap is 0.

    Args:
        qubo: A `Qubo`.
        solvers: A `Solution` of `qubo`, anything that `backends.get` accepts
            (which then solves `qubo`), or a dictionary that maps names to
            these.
        best: Array (m,), or float (optional). The best known energies. Defaults
            to `None`, which computes the optimum for up to 20 variables, and
            otherwise uses the best energies of the solvers.
        seed: Integer. Seed of the backends. Defaults to `0`.

    Returns:
        An `OptimalityGap`. `print` shows it as a table.

    Raises:
        ValueError: If there is no solver, or if a `Solution` has the wrong
            shape.

    Example:
        ```python
        found = kq.analysis.optimality_gap(
            qubo, {"fast": "native", "relaxed": "ridge", "no couplings": "sign"}
        )
        print(found)
        ```
    """
    common.check_qubo(qubo)
    if not isinstance(solvers, Mapping) or "name" in solvers:
        solvers = {_name(solvers): solvers}
    if not solvers:
        raise ValueError(
            "`solvers` must contain at least one solver. Received: solvers={}"
        )
    states = [_states(qubo, solver, seed) for solver in solvers.values()]
    # Without the constant part, which would hide small gaps.
    varying = qubo.varying_energies(np.stack(states))
    random = qubo.random_energy()
    is_exact = best is None and qubo.num_variables <= MAX_EXACT
    if best is not None:
        least = np.broadcast_to(np.asarray(best, np.float64), random.shape)
        least = least - random
    elif is_exact:
        optimum = backends.get("exact").solve(qubo).states
        least = qubo.varying_energies(optimum[None])[0]
    else:
        least = varying.min(axis=0)
    gaps = np.divide(
        varying - least, -least, out=np.zeros_like(varying), where=least < 0
    )
    return OptimalityGap(
        list(solvers), gaps, varying + random, least + random, random, is_exact
    )


def plot_optimality_gap(found: OptimalityGap, ax: Any = None) -> Any:
    """Draws the gap of every column, one row per solver.

    Args:
        found: An `OptimalityGap`.
        ax: Matplotlib axes (optional). Defaults to `None`, which creates a
            figure.

    Returns:
        The axes.
    """
    ax = common.new_axes() if ax is None else ax
    # The same places in every row, so that columns can be compared.
    spread = np.linspace(-0.25, 0.25, found.gaps.shape[1])
    for row, gaps in enumerate(found.gaps):
        color = common.COLORS[row % len(common.COLORS)]
        ax.plot(gaps, row + spread, "o", color=color, alpha=0.6, markersize=4)
        ax.plot(gaps.mean(), row, "|", color="black", markersize=18)
    ax.axvline(0.0, color="0.8", linewidth=0.8, zorder=0)
    # Linear near 0, which a logarithmic axis could not show.
    ax.set_xscale("symlog", linthresh=1e-3)
    ax.set_xlim(min(-2e-4, 1.5 * found.gaps.min()), 2 * found.gaps.max() + 1e-3)
    ax.set(
        yticks=range(len(found.names)),
        yticklabels=found.names,
        ylim=(len(found.names) - 0.5, -0.5),
        xlabel=f"gap to the {'optimum' if found.is_exact else 'best known'}"
        " (1: random state)",
        title=f"{found.gaps.shape[1]} columns; bars are means",
    )
    return ax


def _states(qubo, solver, seed):
    if not isinstance(solver, backends.Solution):
        solver = backends.get(solver).solve(qubo, seed)
    if solver.states.shape != qubo.fields.shape:
        raise ValueError(
            f"`solvers` must have states of shape {qubo.fields.shape}. "
            f"Received: states.shape={solver.states.shape}"
        )
    return solver.states


def _name(solver):
    if isinstance(solver, backends.Solution):
        return "solution"
    if isinstance(solver, str):
        return solver
    if isinstance(solver, Mapping):
        return str(solver["name"])
    return str(getattr(solver, "name", None) or type(solver).__name__)
