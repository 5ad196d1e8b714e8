"""Utilities of the tools: imports of optional packages, and new axes."""

import importlib
from typing import Any

# The colors of all plots, distinguishable with any kind of color vision (Okabe
# and Ito). Gray is for baselines.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GRAY = "#555555"


def require(module: str, extra: str = "analysis") -> Any:
    """Imports an optional package.

    Args:
        module: String. Name of the module.
        extra: String. Extra of this package that installs it. Defaults to
            `"analysis"`.

    Returns:
        The module.

    Raises:
        ImportError: If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This tool needs {module.split('.')[0]}. Install it with "
            f'`python -m pip install "keras_qpsbgd[{extra}]"`. '
            f"Received: {error}"
        ) from error


def new_axes(number: int = 1, width: float = 6.0, height: float = 4.0) -> Any:
    """Creates a figure with axes side by side.

    Args:
        number: Integer. Number of axes. Defaults to `1`.
        width: Float. Width of each axes in inches. Defaults to `6.0`.
        height: Float. Height in inches. Defaults to `4.0`.

    Returns:
        Matplotlib axes, or an array of several.
    """
    pyplot = require("matplotlib.pyplot")
    _, axes = pyplot.subplots(
        1, number, figsize=(width * number, height), layout="constrained"
    )
    return axes
