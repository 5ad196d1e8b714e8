"""What raises the spectral gap of the paper's small networks?

The networks have layers of two, three or four neurons and see as many features
of UCI Adult, one sample at a time. Their QUBOs are collected from training with
the paper's rule. Each is changed in the ways that `CHANGES` lists, then
measured.

The text of the page `results/gaps/README.md` is written by hand. Its tables
are made here, from the stored numbers.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.qubo import Qubo
from research import pages
from research.analysis import anneals
from research.analysis import collect
from research.analysis.spectrum import all_energies
from research.analysis.spectrum import optimal
from research.analysis.spectrum import spectral_gap
from research.engine.statistics import mean_and_error
from research.engine.tables import markdown_table
from research.engine.task import random
from research.experiments.tasks import adult
from research.experiments.tasks import networks

WIDTHS = (2, 3, 4)
STEPS = 60
PER_SEED = 12
LEARNING_RATE = 0.05
DURATION = 10.0
VALUES = ("gap", "plain", "ghz", "optima", "quantum", "thermal", "kept", "held")
NUMBERS = "gaps.json"
HEAD = {
    "gap": "gap",
    "ghz": "gap (GHz)",
    "plain": "gap, unscaled",
    "optima": "optima",
    "quantum": "success, quantum",
    "thermal": "success, thermal",
    "kept": "optima kept",
    "held": "held",
}
COMPARED = ("gap", "ghz", "quantum", "thermal")
PERCENT = ("quantum", "thermal", "kept", "held")


@dataclasses.dataclass(frozen=True)
class Column:
    """One column, and the largest |V| of its layer."""

    qubo: Qubo
    largest: float


@dataclasses.dataclass(frozen=True)
class Change:
    """A row of the table.

    `base` is the row that the change is compared with. `apply` is a function
    of a `Column` that returns the changed `Qubo` and a mask of the variables
    that are left in it.
    """

    base: str
    apply: Callable


def scaled(kappa=None, damping=0.0, hold=False):
    """Scales the gradient, damps the couplings, and holds undecided variables.

    Args:
        kappa: what the largest |V| of the layer becomes; `None` is raw.
        damping: lambda; couplings become (1 - lambda) Q + lambda diag Q.
        hold: whether to leave out the variables that are +1 in one optimal
            state and -1 in another.
    """

    def apply(problem):
        factor = 1.0 if kappa is None else kappa / problem.largest
        couplings = (1.0 - damping) * problem.qubo.couplings
        fields = factor * problem.qubo.fields
        left = np.ones(len(fields), bool)
        if hold:
            states, energies = all_energies(Qubo(couplings, fields))
            best = states[optimal(energies)]
            left = (best == best[0]).all(axis=0)
        return Qubo(couplings[np.ix_(left, left)], fields[left]), left

    return apply


CHANGES = {
    "raw": Change("raw", scaled()),
    "max, kappa 1": Change("raw", scaled(1)),
    "max, kappa 4": Change("raw", scaled(4)),
    "max, kappa 16": Change("raw", scaled(16)),
    "raw, undecided held": Change("raw", scaled(hold=True)),
    "kappa 4, undecided held": Change("max, kappa 4", scaled(4, hold=True)),
    "raw, lambda 0.5": Change("raw", scaled(damping=0.5)),
    "raw, lambda 0.9": Change("raw", scaled(damping=0.9)),
    "kappa 4, lambda 0.5": Change("max, kappa 4", scaled(4, 0.5)),
    "kappa 4, lambda 0.9": Change("max, kappa 4", scaled(4, 0.9)),
}


def problems(width, seeds, data_dir=None):
    """QUBOs of a network in training: a list of `Column` per seed."""
    source = adult.Source(data_dir, width, at_random=False)
    model = collect.compiled(
        networks.mlp((width, width, 2), "binary", output_scale=None),
        "exact",
        LEARNING_RATE,
        "paper",
    )
    found = []
    for seed in seeds:
        rng = random(seed, 7)
        model.set_weights(
            [rng.uniform(-0.5, 0.5, w.shape) for w in model.get_weights()]
        )
        rows = rng.permutation(len(source.x))[:STEPS]
        x = source.x[np.ix_(rows, source.features(seed))]
        run = collect.record(model, x, source.y[rows], batch_size=1)
        columns = [
            Column(qubo.columns(j, j + 1), largest)
            for qubo in (_with_offset(update.qubo) for update in run.updates)
            if (largest := float(np.sqrt(qubo.offset.max()))) > 0
            for j in range(qubo.num_columns)
            if qubo.fields[:, j].any()  # held otherwise
        ]
        chosen = rng.permutation(len(columns))[:PER_SEED]
        found.append([columns[i] for i in sorted(chosen)])
    return found


def _with_offset(qubo):
    """Returns the problem of one sample in float64, with the offset V^2.

    The couplings are zz' and the fields of a column are -2Vz.
    """
    couplings = np.asarray(qubo.couplings, np.float64)
    fields = np.asarray(qubo.fields, np.float64)
    squares = (fields**2).sum(axis=0)
    norm = np.trace(couplings)
    offset = squares / (4 * norm) if norm > 0 else np.zeros_like(squares)
    return Qubo(couplings, fields, offset)


def measure(problem, change, seed=0):
    """Measures one changed problem.

    Returns:
        Dictionary of `VALUES`: the gap with the linear schedule, scaled to the
        chip (`gap`) and not (`plain`); in GHz on Advantage; the number of
        optima; probabilities of an optimal answer; whether the optima are those
        of the base; the share of held variables. All but the last are NaN if
        nothing is left to solve.
    """
    qubo, left = change.apply(problem)
    found = dict.fromkeys(VALUES, np.nan)
    found["held"] = float(1.0 - left.mean())
    _, energies = all_energies(qubo)
    if not left.any() or optimal(energies).all():
        return found
    on_chip = spectral_gap(qubo)
    fitted = multiplied(qubo, on_chip.scale)
    found.update(
        gap=on_chip.gap,
        plain=spectral_gap(qubo, scale=False).gap,
        ghz=spectral_gap(qubo, schedule="advantage").gap,
        optima=float(on_chip.degeneracy),
        thermal=anneals.thermal(fitted, seed=seed),
        quantum=anneals.quantum(fitted, DURATION),
        kept=kept(problem, change, qubo, left),
    )
    return found


def kept(problem, change, qubo, left):
    """Share of the optima that are optima of the base, too.

    Held variables may have any value there.
    """
    base, _ = CHANGES[change.base].apply(problem)
    states, energies = all_energies(base)
    targets = {tuple(g[left]) for g in states[optimal(energies)]}
    states, energies = all_energies(qubo)
    best = states[optimal(energies)]
    return float(np.mean([tuple(g) in targets for g in best]))


def study(seeds, data_dir=None):
    """Measures all changes on all networks.

    Returns:
        Dictionary for `write`: settings, and for every network and change
        the mean of each value and of its difference to the base, per seed.
    """
    rows = []
    for width in WIDTHS:
        by_seed = problems(width, range(seeds), data_dir)
        measured = {
            name: [_measure_all(group, change) for group in by_seed]
            for name, change in CHANGES.items()
        }
        for name, change in CHANGES.items():
            pairs = list(zip(measured[name], measured[change.base]))
            plain = np.concatenate([one["plain"] for one in measured[name]])
            rows.append(
                {
                    "width": width,
                    "change": name,
                    "base": change.base,
                    "problems": sum(map(len, by_seed)),
                    "least": _apply(np.min, plain),
                    "seeds": {
                        key: [_apply(np.mean, new[key]) for new, _ in pairs]
                        for key in VALUES
                    },
                    "differences": {
                        key: [
                            _apply(np.mean, new[key] - old[key])
                            for new, old in pairs
                        ]
                        for key in VALUES
                    },
                }
            )
    return {
        "rule": "paper",
        "seeds": seeds,
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "duration": DURATION,
        "rows": rows,
    }


def _measure_all(group, change):
    """Arrays of all values, with one entry per problem."""
    measured = [measure(p, change, seed) for seed, p in enumerate(group)]
    return {key: np.array([one[key] for one in measured]) for key in VALUES}


def _apply(function, values):
    """Applies it to the problems that could be measured, if there are any.

    Keeps five digits. The others may depend on the machine.
    """
    values = values[np.isfinite(values)]
    return float(f"{function(values):.5g}") if values.size else None


def multiplied(qubo, factor):
    """The first column times a factor."""
    return Qubo(factor * qubo.couplings, factor * qubo.fields[:, :1])


# The page


def store(found, folder):
    """Writes the numbers of `study` to a folder."""
    text = json.dumps(found, indent=1) + "\n"
    disk.write(pathlib.Path(folder, NUMBERS), text)


def write(folder):
    """Writes the tables from the numbers in a folder.

    Returns:
        The path of the page.
    """
    folder = pathlib.Path(folder)
    found = json.loads((folder / NUMBERS).read_text())
    tables = {"comparison": comparison(found), "table": table(found)}
    title = "What raises the spectral gap?"
    return pages.write(folder / pages.NAME, title, tables)


def table(study):
    """All rows as a Markdown table."""
    lines = [
        [
            f"{row['width']}-{row['width']}-2",
            row["change"],
            *(_text(key, row["seeds"][key]) for key in HEAD),
        ]
        for row in study["rows"]
    ]
    return markdown_table(["network", "QUBO", *HEAD.values()], lines)


def comparison(study):
    """A table of signs: each change against its base."""
    lines = []
    for name, group in _changes(study):
        kept = [_mean(row["seeds"]["kept"]) for row in group]
        signs = (" ".join(_signs(key, group)) for key in COMPARED)
        lines.append([name, group[0]["base"], *signs, _range(kept)])
    head = ["change", "compared with", *(HEAD[key] for key in COMPARED)]
    return markdown_table([*head, HEAD["kept"]], lines)


def _changes(study):
    """Names of the changes, each with its rows by network."""
    names = dict.fromkeys(
        row["change"] for row in study["rows"] if row["change"] != row["base"]
    )
    return [
        (name, [row for row in study["rows"] if row["change"] == name])
        for name in names
    ]


def _signs(key, group):
    """A sign per network, `?` if there is nothing to compare."""
    signs = []
    for row in group:
        differences = [d for d in row["differences"][key] if d is not None]
        if len(differences) < 2:
            signs.append("?")
            continue
        mean, error = mean_and_error(differences)
        # Values are rounded to five digits.
        is_clear = abs(mean) > max(2 * error, 1e-4)
        signs.append(("+" if mean > 0 else "-") if is_clear else "=")
    return signs


def _mean(values):
    values = [value for value in values if value is not None]
    return float(np.mean(values)) if values else np.nan


def _range(shares):
    shares = [100 * share for share in shares if np.isfinite(share)]
    if not shares:
        return "None"
    low, high = f"{min(shares):.0f}", f"{max(shares):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _text(key, values):
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    factor, digits = (100, 0) if key in PERCENT else (1, 3)
    if key == "optima":
        digits = 1
    mean, error = mean_and_error(factor * np.array(values))
    unit = " %" if key in PERCENT else ""
    if not np.isfinite(error):
        return f"{mean:.{digits}f}{unit}"
    return f"{mean:.{digits}f} +- {error:.{digits}f}{unit}"
