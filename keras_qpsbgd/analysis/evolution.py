"""Measures how the QUBO of a layer changes during training."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from keras_qpsbgd.analysis import common
from keras_qpsbgd.analysis.run import Run


@dataclasses.dataclass
class QuboEvolution:
    """The result of `qubo_evolution`.

    All arrays have one entry per recorded update. Entries that compare an
    update with the previous one are NaN for the first update, and if the
    previous norm is zero.

    Attributes:
        layer: String. Name of the layer.
        steps: Integer array. Steps of the updates.
        coupling_norms: Frobenius norms of the couplings without their diagonal,
            which is constant for spins.
        field_norms: Frobenius norms of the fields.
        coupling_changes: Norms of the change of the couplings, divided by the
            previous norm.
        field_changes: The same for the fields.
        field_cosines: Cosines of the angles between the fields and the previous
            fields.
        changed_states: Fractions of states whose sign differs from the previous
            update. Weights that were held in either update are left out.
    """

    layer: str
    steps: np.ndarray
    coupling_norms: np.ndarray
    field_norms: np.ndarray
    coupling_changes: np.ndarray
    field_changes: np.ndarray
    field_cosines: np.ndarray
    changed_states: np.ndarray


def qubo_evolution(run: Run, layer: str) -> QuboEvolution:
    """Measures how the QUBO of a layer changes from update to update.

    Couplings depend only on the inputs of the layer. Fields also depend on the
    gradient. If the fields change direction at random from update to update
    (cosines near 0), the gradient is mostly noise.

    Args:
        run: A `Run`.
        layer: String. Name of a recorded layer.

    Returns:
        A `QuboEvolution`.

    Raises:
        ValueError: If the layer was not recorded.

    Example:
        ```python
        run = kq.analysis.load_run("training.run")
        evolution = kq.analysis.qubo_evolution(run, run.layers[0])
        print(evolution.field_cosines)
        ```
    """
    updates = run.of_layer(layer)
    # A diverged run has values that are not finite.
    with np.errstate(invalid="ignore", over="ignore"):
        rows = [
            _row(update, before)
            for update, before in zip(updates, [None, *updates])
        ]
    return QuboEvolution(layer, *map(np.array, zip(*rows)))


def _row(update, before):
    """Returns the entries of an update, in the order of `QuboEvolution`."""
    couplings, fields = _arrays(update)
    norms = np.linalg.norm(couplings), np.linalg.norm(fields)
    # Two layers with the same name may have kernels of different shapes.
    if before is None or before.states.shape != update.states.shape:
        return update.step, *norms, np.nan, np.nan, np.nan, np.nan
    old_couplings, old_fields = _arrays(before)
    return (
        update.step,
        *norms,
        _change(old_couplings, couplings),
        _change(old_fields, fields),
        _cosine(old_fields, fields),
        _share_changed(before.states, update.states),
    )


def plot_qubo_evolution(evolution: QuboEvolution, ax: Any = None) -> Any:
    """Draws the changes from update to update.

    Args:
        evolution: A `QuboEvolution`.
        ax: Matplotlib axes (optional). Defaults to `None`, which creates a
            figure.

    Returns:
        The axes.
    """
    ax = common.new_axes() if ax is None else ax
    curves = {
        "couplings: relative change": evolution.coupling_changes,
        "fields: relative change": evolution.field_changes,
        "fields: cosine to the previous": evolution.field_cosines,
        "states: share that changed": evolution.changed_states,
    }
    # Use different line styles, so that the lines also differ without color.
    styles = zip(common.COLORS, ("-", "--", ":", "-."))
    for (label, values), (color, style) in zip(curves.items(), styles):
        ax.plot(evolution.steps, values, style, color=color, label=label)
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.set(xlabel="update", title=f"{evolution.layer}: from update to update")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.3 * (high - low))  # room for the legend
    ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper center")
    return ax


def _arrays(update):
    """Returns the couplings without their diagonal, and the fields."""
    couplings = np.array(update.qubo.couplings, np.float64)
    np.fill_diagonal(couplings, 0.0)
    return couplings, np.asarray(update.qubo.fields, np.float64)


def _change(old, new):
    norm = np.linalg.norm(old)
    return np.linalg.norm(new - old) / norm if norm > 0 else np.nan


def _cosine(old, new):
    norms = np.linalg.norm(old) * np.linalg.norm(new)
    return (old * new).sum() / norms if norms > 0 else np.nan


def _share_changed(old, new):
    """Returns the fraction of states with a new sign, without held ones."""
    moved = (old != 0) & (new != 0)
    return float((old != new)[moved].mean()) if moved.any() else np.nan
