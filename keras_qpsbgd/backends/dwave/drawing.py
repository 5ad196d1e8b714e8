"""Draws the calls of a training step on a chip."""

from keras_qpsbgd.backends.dwave.cliques import lattices

MAX_PICTURES = 4
# Distinguishable with any color vision (Okabe and Ito).
COLORS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#d55e00",
    "#56b4e9",
    "#7a5195",
    "#b8a800",
    "#444444",
    "#8c564b",
)
# Neighboring columns of a layer have different shades of its color.
SHADES = (0.0, 0.22, 0.42)


def draw(graph, names, calls, path):
    """Draws each kind of call, one color per layer.

    Args:
        graph: Graph. The working graph of the chip.
        names: List of strings. The names of all layers.
        calls: Sequence of `CallCost`. At most `MAX_PICTURES` are drawn, those
            that are made most often.
        path: String. Path of the image file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = sorted(calls, key=lambda call: -call.repeats)[:MAX_PICTURES]
    drawn = [call for call in calls if call in drawn]
    position = _layout(graph)
    across = min(len(drawn), 2)
    down = -(-len(drawn) // across)
    figure = Figure(figsize=(6.4 * across, 6.9 * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis in axes:
        axis.set_aspect("equal")
        axis.axis("off")
    for axis, call in zip(axes, drawn):
        _draw_call(axis, graph, position, call, names)
    if len(drawn) < len(calls):
        figure.supxlabel(
            f"{len(drawn)} of {len(calls)} kinds of calls, the most frequent "
            "ones",
            fontsize=9,
            color="0.35",
        )
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _draw_call(axis, graph, position, call, names):
    from matplotlib.lines import Line2D

    axis.scatter(
        *zip(*position.values()), s=1.5, color="0.72", linewidths=0, zorder=1
    )
    slots = call.example.slots
    count = {layer: 0 for layer in call.layers}
    for slot in slots:
        shade = SHADES[count[slot.layer] % len(SHADES)]
        _draw_slot(axis, graph, position, slot, shade)
        count[slot.layer] += 1
    times = (
        f"{call.repeats:,} calls per step" if call.repeats > 1 else "One call"
    )
    axis.set_title(
        f"{times}: {len(slots)} columns, {call.example.num_qubits:,} of "
        f"{len(graph):,} qubits, {1000 * call.seconds:.1f} ms",
        fontsize=11,
    )
    handles = [
        Line2D(
            [],
            [],
            color=_color(layer, 0.0),
            marker="o",
            linestyle="",
            label=f"{names[layer]} ({count[layer]})",
        )
        for layer in call.layers
    ]
    axis.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.03),
        ncols=min(len(handles), 4),
        frameon=False,
        fontsize=9,
        title="layers (columns)",
        title_fontsize=9,
        handletextpad=0.1,
    )


def _draw_slot(axis, graph, position, slot, shade):
    from matplotlib.collections import LineCollection

    color = _color(slot.layer, shade)
    qubits = [qubit for chain in slot.chains for qubit in chain]
    couplers = [
        (position[a], position[b]) for a, b in graph.subgraph(qubits).edges
    ]
    axis.add_collection(
        LineCollection(
            couplers, colors=[color], linewidths=0.35, alpha=0.55, zorder=2
        )
    )
    axis.scatter(
        *zip(*(position[qubit] for qubit in qubits)),
        s=5,
        color=[color],
        linewidths=0,
        zorder=3,
    )


def _color(layer, shade):
    """Returns the color of a layer, mixed with white."""
    from matplotlib.colors import to_rgb

    base = to_rgb(COLORS[layer % len(COLORS)])
    return tuple(c + shade * (1 - c) for c in base)


def _layout(graph):
    family = graph.graph["family"]
    return getattr(lattices(), f"{family}_layout")(graph)
