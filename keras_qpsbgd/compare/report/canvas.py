"""Figures that are files: no window, no state of pyplot."""

import io
import pathlib


def figure(width, height):
    """An empty figure, sizes in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A notebook shows it, with pyplot or without."""

        def _repr_png_(self):
            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    found = Shown(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(found)
    return found


def save(figure, path):
    """Writes the figure; a PNG is the same from all versions of matplotlib."""
    metadata = None
    if pathlib.Path(path).suffix == ".png":
        metadata = {"Software": None}
    figure.savefig(path, dpi=150, metadata=metadata)
