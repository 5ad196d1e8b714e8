"""Tools to look into QUBOs, their answers, and training runs.

Each tool is a function that returns numbers and a `plot_` function that draws
them on a matplotlib axis.
"""

from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.analysis.run import load_run

__all__ = [
    "Run",
    "Update",
    "load_run",
]
