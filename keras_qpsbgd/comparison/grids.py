r"""The grids of all methods: their form, the defaults, and wider ones.

All methods have the same number of configurations. QP-SBGD, its relaxations,
BinaryConnect and the real-valued network have a learning rate to tune.
ProxQuant has a learning rate and a regularization strength, and Bop has an
averaging rate and a threshold.

Default configurations for a new network: four for each method.

A step of QP-SBGD moves every latent weight by the learning rate, so the default
rates are proportional to the size of these weights, \(a = \sqrt{6 / (n + m)}\).
This is Glorot's bound for a layer with n inputs and m outputs (the geometric
mean over the binary layers). Short runs need larger steps, and deep networks
need smaller ones. With T steps and L binary layers, let

$$ f = (300 / T)^{1/3}, \qquad d = \min(1, 2 / L). $$

| method | setting | default | chosen in the experiments |
|---|---|---|---|
| native, ridge, paper | rate | a f d times 0.02 to 0.54 | 0.02 to 0.29 |
| signsgd, signum | rate | a f d times 0.02 to 0.54 | 0.02 to 0.29 |
| adam | rate | a f d times 0.02 to 0.54 | 0.02 to 0.50 |
| real | rate | a f d times 0.007 to 0.18 | 0.006 to 0.29 |
| sgd | rate | 0.3 to 10 | 1 to 10 |
| proxquant | rate | f times 1 to 60 | 1 to 24 |
| bop | threshold | (a f)^2 times 0.0003 to 0.04 | 0.0003 to 0.0055 |

The last column comes from the experiments in `research` with the rules of
version 0.1: networks from 3-1 to 784-256-10 with 30 to 4,690 steps. It leaves
out Cora and PubMed. There a real-valued encoder is trained together with the
binary layers, and the best rates of BinaryConnect were below the default ones.
"""

import itertools
import warnings

from keras_qpsbgd.comparison import statistics
from keras_qpsbgd.comparison.task import grid

BINARY = (0.02, 0.06, 0.18, 0.54)
REAL = (0.0067, 0.02, 0.06, 0.18)
SGD = (0.3, 1.0, 3.0, 10.0)
PROXQUANT = (1.0, 4.0, 15.0, 60.0)
# This strength was chosen most often in the experiments.
PROXQUANT_REACH = 3.0
BOP_THRESHOLDS = (3e-4, 1.5e-3, 8e-3, 4e-2)
# Bop averages the gradients over about a third of a run.
BOP_STEPS = 3.0
MAX_BOP_RATE = 0.1
REAL_RATES = (0.001, 0.003, 0.01, 0.03)
USUAL_STEPS = 300
USUAL_LAYERS = 2


# A grid varies one of these. For Bop it is the threshold.
SETTINGS = ("rate", "threshold", "real_rate")
ADDED = 2  # configurations of a wider grid
# Two rounded values that differ by this factor are never equal.
MIN_FACTOR = 2.0


def grids(
    qp,
    sign,
    adam,
    sgd,
    prox,
    bop,
    steps,
    prox_reaches=(3.0, 10.0),
    real=None,
    real_rates=(None,),
    frozen_real_rates=(None,),
):
    """Returns a dict that maps keys of methods to their grids.

    Args:
        qp: learning rates of QP-SBGD, of `ridge` and of the paper's rule.
        sign: learning rates of signSGD and Signum.
        adam: learning rates of BinaryConnect with Adam.
        sgd: learning rates of BinaryConnect with SGD.
        prox: learning rates of ProxQuant. Pass half as many if there are two
            strengths.
        bop: pairs of averaging rate and threshold.
        steps: number of steps of a run. ProxQuant's pull grows with the steps,
            so its strength is set by how far it moves a weight in a whole run.
        prox_reaches: strengths of ProxQuant, as rate * strength * steps^2.
        real: learning rates of the real-valued network. `None` uses `adam`.
        real_rates: learning rates of all other variables. Each is combined with
            each of the rates above.
        frozen_real_rates: the same, for frozen kernels.
    """
    return {
        "native": grid(qp, real_rates),
        "ridge": grid(qp, real_rates),
        "paper": grid(qp, real_rates),
        "signsgd": grid(sign, real_rates),
        "signum": grid(sign, real_rates),
        "adam": grid(adam, real_rates),
        "sgd": grid(sgd, real_rates),
        "proxquant": _proxquant(prox, prox_reaches, steps, real_rates),
        "bop": [
            configuration
            for rate, threshold in bop
            for configuration in grid([rate], real_rates, threshold=threshold)
        ],
        "frozen": grid([None], frozen_real_rates),
        "real": grid(real or adam, real_rates),
    }


def _proxquant(rates, reaches, steps, real_rates):
    """Returns ProxQuant's grid, with strengths that fit the rate and the steps.

    Step t moves a weight by rate * regularization * t. Over a whole run this
    sums to half of rate * regularization * steps^2, or to 0.149 of it if the
    rate decays along a cosine.
    """
    found = []
    for rate, reach in itertools.product(rates, reaches):
        regularization = float(f"{reach / (rate * steps**2):.2g}")
        found += grid([rate], real_rates, regularization=regularization)
    return found


def default_grids(scale, layers, steps, has_other_variables):
    """Returns the default grids of all methods.

    Args:
        scale: size of the latent weights, see `network.latent_scale`.
        layers: number of binary layers.
        steps: number of steps of a run.
        has_other_variables: whether there are trainable variables other than
            the binary kernels. If not, there is nothing to tune for frozen
            kernels.

    Returns:
        A dict that maps keys of methods to lists of configurations.
    """
    short = (USUAL_STEPS / steps) ** (1 / 3)
    rate = scale * short * min(1.0, USUAL_LAYERS / layers)
    bop_rate = _rounded(min(BOP_STEPS / steps, MAX_BOP_RATE))
    thresholds = _times((scale * short) ** 2, BOP_THRESHOLDS)
    return grids(
        qp=_times(rate, BINARY),
        sign=_times(rate, BINARY),
        adam=_times(rate, BINARY),
        real=_times(rate, REAL),
        sgd=SGD,
        prox=_times(short, PROXQUANT),
        prox_reaches=(PROXQUANT_REACH,),
        bop=[(bop_rate, threshold) for threshold in thresholds],
        steps=steps,
        frozen_real_rates=REAL_RATES if has_other_variables else (None,),
    )


def _times(factor, values):
    return [_rounded(factor * value) for value in values]


def _rounded(value):
    return float(f"{value:.2g}")


# The edges of a grid


def warn_about_edges(runs, grids, measure):
    """Warns if the best setting of a method is at the edge of its grid.

    The warning proposes wider grids for all methods, because all grids must
    have the same size. They contain the old configurations, so runs that are
    already in a folder are reused.

    Args:
        runs: dict that maps the key of a method to its records.
        grids: dict that maps the key of a method to its configurations.
        measure: the `Measure` by which the best configuration was chosen.
    """
    tuned = {
        key: _best(runs[key], measure)
        for key in grids
        if any(run["stage"] == "tuning" for run in runs[key])
    }
    edges = {key: _edge(best, grids[key]) for key, best in tuned.items()}
    if not any(edges.values()):
        return
    found = [
        f'- "{key}": `{edge[0]}` {tuned[key][0][edge[0]]:g} is the {edge[1]} '
        "in its grid"
        for key, edge in edges.items()
        if edge
    ]
    wider = [
        f"    {key!r}: "
        f"{widen(best[0], grids[key], *(edges[key] or (None, None)))},"
        for key, best in tuned.items()
    ]
    lines = [
        "The best configuration is at the edge of the grid, so a better one "
        "may lie beyond it:",
        *found,
        "Call `compare` again with wider grids. If you pass the same `out`, "
        "its runs are reused.",
        "grids = {",
        *wider,
        "}",
    ]
    warnings.warn("\n".join(lines), stacklevel=3)


def _best(runs, measure):
    """Returns all configurations with the best score on tuning runs."""
    tuning = [run for run in runs if run["stage"] == "tuning"]
    groups = statistics.by_configuration(tuning)
    scores = [statistics.score(group, measure) for _, group in groups]
    return [
        configuration
        for (configuration, _), score in zip(groups, scores)
        if score == max(scores)
    ]


def _edge(best, grid):
    """Returns the setting and the end of the grid where the best one is.

    Args:
        best: the configurations with the best score. If one of them is not at
            the edge, there is no reason to look beyond it.
        grid: all configurations.

    Returns:
        A pair such as `("rate", "highest")`, or `None`.
    """
    for name in SETTINGS:
        # Multiples of zero or of a negative value do not widen the grid.
        if any(one.get(name, 0.0) <= 0.0 for one in best):
            continue
        ends = {statistics.edge(one, grid, name) for one in best}
        if len(ends) == 1 and None not in ends:
            return name, ends.pop()
    return None


def widen(best, grid, name=None, end=None):
    """Adds two configurations to a grid.

    Args:
        best: the best configuration. The new ones differ from it in one
            setting.
        grid: list of configurations.
        name: the setting to vary. `None` uses the one that the grid varies.
        end: `"lowest"` or `"highest"` adds both values at that end. `None` adds
            one at each end.
    """
    name = name or _varied(grid)
    values = sorted({one[name] for one in grid if one.get(name, 0.0) > 0.0})
    if not values:
        return grid
    counts = {"lowest": (ADDED, 0), "highest": (0, ADDED), None: (1, 1)}[end]
    low, high = _factor(values[:2]), _factor(values[-2:])
    below = [values[0] / low**k for k in range(counts[0], 0, -1)]
    above = [values[-1] * high**k for k in range(1, counts[1] + 1)]
    found = [
        *(_with(best, name, value) for value in below),
        *grid,
        *(_with(best, name, value) for value in above),
    ]
    return [{key: _plain(one[key]) for key in one} for one in found]


def _varied(grid):
    """Returns the first setting that has several values in a grid."""
    counts = {name: len({one.get(name) for one in grid}) for name in SETTINGS}
    return max(SETTINGS, key=lambda name: counts[name] > 1)


def _factor(values):
    return max(values[-1] / values[0], MIN_FACTOR)


def _with(configuration, name, value):
    found = {**configuration, name: _rounded(value)}
    if name == "rate" and "regularization" in found:
        # Keeps the total pull of ProxQuant over all steps, see `grids`.
        pull = configuration["regularization"] * configuration["rate"]
        found["regularization"] = _rounded(pull / value)
    return found


def _plain(value):
    """Converts a NumPy scalar to a Python number, which prints shorter."""
    return value.item() if hasattr(value, "item") else value
