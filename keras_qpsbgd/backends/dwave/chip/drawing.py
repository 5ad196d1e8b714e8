"""Draws the columns of a network's layers on a chip."""

from keras_qpsbgd.backends.dwave.chip import search
from keras_qpsbgd.backends.host import blocks


def draw(backend, layers, path):
    """Draws the first call of each layer, one color per column.

    Args:
        backend: A `DWaveBackend`.
        layers: List of tuples `(name, num_variables, num_columns)`.
        path: String. Path of the image file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    graph = backend.open().sampler.to_networkx_graph()
    position = _layout(graph)
    figure = Figure(
        figsize=(6 * min(len(layers), 3), 6.3 * -(-len(layers) // 3))
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(-(-len(layers) // 3), min(len(layers), 3))
    axes = list(getattr(axes, "flat", [axes]))
    for axis in axes:
        axis.set_aspect("equal")
        axis.axis("off")
    for axis, (name, num_variables, num_columns) in zip(axes, layers):
        block_size = backend.block_size_for(num_variables)
        width = max(blocks.sizes(num_variables, block_size))
        copies = backend.copies(width, num_columns)
        axis.scatter(*zip(*position.values()), s=1, color="0.8", linewidths=0)
        for index, copy in enumerate(copies):
            _draw_copy(axis, graph, position, copy, index)
        axis.set_title(
            f"{name}: {len(copies)} columns of {width} inputs in one call"
        )
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _draw_copy(axis, graph, position, copy, index):
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    # Steps of the golden ratio give neighbors different colors.
    color = colormaps["hsv"]((0.381966 * index) % 1)
    qubits = [qubit for chain in copy.values() for qubit in chain]
    couplers = [
        (position[a], position[b]) for a, b in graph.subgraph(qubits).edges
    ]
    lines = LineCollection(couplers, colors=[color], linewidths=0.3, alpha=0.6)
    axis.add_collection(lines)
    points = zip(*(position[qubit] for qubit in qubits))
    axis.scatter(*points, s=2.5, color=[color], linewidths=0, zorder=2)


def _layout(graph):
    family = graph.graph["family"]
    return getattr(search.lattices(), f"{family}_layout")(graph)
