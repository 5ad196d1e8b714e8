"""Creates figures without a window and without the state of pyplot."""

import io
import pathlib


def figure(width, height):
    """Returns an empty figure. Sizes are in inches.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that a notebook shows even without pyplot."""

        def _repr_png_(self):
            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    found = Shown(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(found)
    return found


def save(figure, path, dpi=150):
    """Saves a figure. A PNG does not contain the version of Matplotlib."""
    metadata = None
    if pathlib.Path(path).suffix == ".png":
        metadata = {"Software": None}
    figure.savefig(path, dpi=dpi, metadata=metadata)
