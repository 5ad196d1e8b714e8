"""Figures that are files: no window, no state of pyplot."""


def figure(width, height):
    """An empty figure, sizes in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(found)
    return found


def save(figure, path):
    """Writes a PNG, the same from all versions of matplotlib."""
    figure.savefig(path, dpi=150, metadata={"Software": None})
