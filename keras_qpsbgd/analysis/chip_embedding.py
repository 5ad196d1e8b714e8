"""Shows a layer as a graph, and as chains of qubits on a chip."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from keras_qpsbgd.analysis import common
from keras_qpsbgd.backends.dwave.cliques import Cliques
from keras_qpsbgd.backends.dwave.cliques import lattices
from keras_qpsbgd.qubo import Qubo

# The chips of current D-Wave systems, without dead qubits.
SHAPES = {"pegasus": (16,), "zephyr": (12, 4)}


@dataclasses.dataclass
class Embedding:
    """The result of `embedding`.

    Attributes:
        logical: NetworkX graph of the variables of one column. If a `Qubo` was
            passed, its edges are the non-zero couplings, with their values in
            the edge attribute `coupling`.
        chip: NetworkX graph of the chip.
        chains: List of dictionaries, one per column, that map variables to
            tuples of qubits.
        chain_lengths: Integer array (columns, n).
        num_qubits: Integer. Number of qubits of all columns.
        num_couplers: Integer. Number of couplers between qubits of the same
            column, within and between chains.
    """

    logical: Any
    chip: Any
    chains: list[dict[int, tuple]]
    chain_lengths: np.ndarray
    num_qubits: int
    num_couplers: int


def embedding(
    qubo: Qubo | int, topology: Any = "pegasus", columns: int = 1
) -> Embedding:
    """Embeds columns of a layer on a chip, as the backend `dwave` does.

    The couplings of a layer are a complete graph, so the chains do not depend
    on the values of a QUBO.

    Args:
        qubo: A `Qubo`, or the number of variables of a column.
        topology: `"pegasus"`, `"zephyr"`, or the graph of a chip, as returned
            by `DWaveSampler.to_networkx_graph`. The two names stand for chips
            of the current size without dead qubits. Defaults to `"pegasus"`.
        columns: Integer. Number of columns to place side by side. Defaults to
            `1`.

    Returns:
        An `Embedding`.

    Raises:
        ValueError: If an argument is invalid, or if the chip cannot hold this
            many columns.
        ImportError: If the packages of the extra `dwave` are not installed.

    Example:
        ```python
        found = kq.analysis.embedding(16, topology="zephyr", columns=4)
        print(found.num_qubits, found.chain_lengths.max())
        ```
    """
    networkx = common.require("networkx", "dwave")
    if not isinstance(qubo, (Qubo, int, np.integer)):
        raise ValueError(
            "`qubo` must be a `Qubo`, such as the `qubo` of an update, or the "
            f"number of variables. Received: {type(qubo).__name__}"
        )
    n = qubo.num_variables if isinstance(qubo, Qubo) else qubo
    for name, value in {"qubo": n, "columns": columns}.items():
        if value < 1:
            raise ValueError(
                f"`{name}` must be at least 1. Received: {name}={value}"
            )
    chip = _chip(topology)
    copies = Cliques(chip).copies(n, columns)
    if len(copies) < columns:
        raise ValueError(
            f"`columns` must be at most {len(copies)}, the number of columns "
            f"of {n} variables that fit on the chip. Received: "
            f"columns={columns}"
        )
    logical = networkx.complete_graph(n)
    if isinstance(qubo, Qubo):
        values = np.asarray(qubo.couplings, float)
        logical = networkx.empty_graph(n)
        for i, j in np.argwhere(np.triu(values, 1)).tolist():
            logical.add_edge(i, j, coupling=float(values[i, j]))
    lengths = [[len(copy[i]) for i in range(n)] for copy in copies]
    parts = [chip.subgraph(_qubits(copy)) for copy in copies]
    return Embedding(
        logical=logical,
        chip=chip,
        chains=copies,
        chain_lengths=np.array(lengths),
        num_qubits=sum(map(len, parts)),
        num_couplers=sum(part.number_of_edges() for part in parts),
    )


def plot_embedding(found: Embedding, ax: Any = None) -> Any:
    """Draws the logical graph next to its chains on the chip.

    A variable has the same color and number on both sides.

    Args:
        found: An `Embedding`.
        ax: Pair of Matplotlib axes (optional). Defaults to `None`, which
            creates a figure.

    Returns:
        The pair of axes.
    """
    pair = common.new_axes(2, 5.5, 5.5) if ax is None else ax
    left, right = pair
    # Steps of the golden ratio give neighbors different colors. The colors are
    # light, so that black text is readable on them.
    turns = 0.381966 * np.arange(len(found.logical)) % 1
    shades = common.require("matplotlib").colormaps["hsv"](turns)
    colors = [tuple(color) for color in 0.6 * shades + 0.4]
    _draw_logical(left, found.logical, colors)
    _draw_chains(right, found, colors)
    for axis in pair:
        axis.set_aspect("equal")
        axis.axis("off")
    number = len(found.chains)
    left.set_title(
        f"{len(found.logical)} variables,\n"
        f"{found.logical.number_of_edges()} couplings"
    )
    right.set_title(
        f"{number} column{'s' * (number > 1)}: {found.num_qubits} qubits, "
        f"{found.num_couplers} couplers,\nchains of up to "
        f"{found.chain_lengths.max()} qubits"
    )
    return pair


def _chip(topology):
    if not isinstance(topology, str):
        return topology
    if topology not in SHAPES:
        raise ValueError(
            f"`topology` must be one of {sorted(SHAPES)}, or a graph. "
            f"Received: topology={topology!r}"
        )
    common.require("minorminer", "dwave")
    make = getattr(lattices(), f"{topology}_graph")
    return make(*SHAPES[topology])


def _qubits(copy):
    return [qubit for chain in copy.values() for qubit in chain]


def _draw_logical(axis, graph, colors):
    networkx = common.require("networkx", "dwave")
    values = [abs(edge.get("coupling", 1.0)) for *_, edge in graph.edges.data()]
    largest = max(values, default=1.0)
    few = len(graph) <= 40
    networkx.draw_networkx(
        graph,
        networkx.circular_layout(graph),
        ax=axis,
        with_labels=few,
        font_size=8,
        node_color=colors,
        node_size=200 if few else 40,
        width=[0.2 + 0.8 * value / largest for value in values],
        edge_color="0.6",
    )


def _draw_chains(axis, found, colors):
    networkx = common.require("networkx", "dwave")
    layout = getattr(lattices(), f"{found.chip.graph['family']}_layout")
    position = layout(found.chip)
    few = found.num_qubits <= 60
    size = 20 if few else 4
    axis.scatter(*zip(*position.values()), size, "0.85", linewidths=0, zorder=0)
    for copy in found.chains:
        owner = {qubit: i for i, chain in copy.items() for qubit in chain}
        part = found.chip.subgraph(owner)
        chained = [(a, b) for a, b in part.edges if owner[a] == owner[b]]
        draw_edges = networkx.draw_networkx_edges
        draw_edges(part, position, ax=axis, edge_color="0.7", width=0.5)
        shades = [colors[owner[qubit]] for qubit, _ in chained]
        draw_edges(part, position, chained, 3, shades, ax=axis)
        networkx.draw_networkx_nodes(
            part,
            position,
            ax=axis,
            node_color=[colors[owner[qubit]] for qubit in part],
            node_size=80 if few else 12,
            edgecolors="black",
            linewidths=0.3,
        )
        if few:
            networkx.draw_networkx_labels(
                part, position, owner, ax=axis, font_size=6
            )
    # Show only the used part of the chip, with a small margin.
    used = np.array(
        [position[q] for copy in found.chains for q in _qubits(copy)]
    )
    low, high = used.min(axis=0), used.max(axis=0)
    margin = 0.1 * (high - low).max() + 0.01
    axis.set_xlim(low[0] - margin, high[0] + margin)
    axis.set_ylim(low[1] - margin, high[1] + margin)
