"""Draws the calls of a training step on a chip."""

from keras_qpsbgd.backends.dwave.cliques import lattices

MAX_PICTURES = 4
# Distinguishable with any color vision (Okabe and Ito).
COLORS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7"),
    *("#d55e00", "#56b4e9", "#f0e442", "#000000"),
)


def draw(graph, names, calls, path):
    """Draws each kind of call, with one color per layer.

    Args:
        graph: Graph. The working graph of the chip.
        names: List of strings. The names of all layers.
        calls: Sequence of `CallCost`. At most `MAX_PICTURES` are drawn, those
            that are made most often.
        path: String. Path of the image file.
    """
    from matplotlib.figure import Figure

    drawn = sorted(calls, key=lambda call: -call.repeats)[:MAX_PICTURES]
    layout = getattr(lattices(), f"{graph.graph['family']}_layout")(graph)
    down = -(-len(drawn) // 2)
    size = (6.4 * min(len(drawn), 2), 6.9 * down)
    figure = Figure(figsize=size, layout="constrained")
    for number, call in enumerate(drawn, start=1):
        axis = figure.add_subplot(down, min(len(drawn), 2), number)
        _draw_call(axis, graph, layout, call, names)
    if len(drawn) < len(calls):
        figure.supxlabel(f"{len(drawn)} of {len(calls)} kinds of calls")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _draw_call(axis, graph, layout, call, names):
    from matplotlib.collections import LineCollection

    axis.set_aspect("equal")
    axis.axis("off")
    axis.scatter(*zip(*layout.values()), s=1.5, color="0.72", linewidths=0)
    slots = call.example.slots
    for layer in call.layers:
        color = COLORS[layer % len(COLORS)]
        qubits, couplers, count = [], [], 0
        for slot in slots:
            if slot.layer == layer:
                own = [qubit for chain in slot.chains for qubit in chain]
                couplers += graph.subgraph(own).edges
                qubits += own
                count += 1
        lines = [(layout[a], layout[b]) for a, b in couplers]
        axis.add_collection(
            LineCollection(lines, colors=color, linewidths=0.35, alpha=0.55)
        )
        axis.scatter(
            *zip(*(layout[qubit] for qubit in qubits)),
            s=5,
            color=color,
            linewidths=0,
            zorder=3,
            label=f"{names[layer]} ({count})",
        )
    repeats = "One call"
    if call.repeats > 1:
        repeats = f"{call.repeats:,} calls per step"
    axis.set_title(
        f"{repeats}: {len(slots)} columns, {call.example.num_qubits:,} of "
        f"{len(graph):,} qubits, {1000 * call.seconds:.1f} ms",
        fontsize=11,
    )
    axis.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0.03),
        ncols=4,
        frameon=False,
        fontsize=9,
        title="layers (columns)",
        markerscale=2,
    )
