"""Tools for inspecting QUBOs, their solutions, and training runs.

Each tool consists of a function that returns numbers and a `plot_` function
that draws them with Matplotlib.
"""

from keras_qpsbgd.analysis.chip_embedding import Embedding
from keras_qpsbgd.analysis.chip_embedding import embedding
from keras_qpsbgd.analysis.chip_embedding import plot_embedding
from keras_qpsbgd.analysis.evolution import QuboEvolution
from keras_qpsbgd.analysis.evolution import plot_qubo_evolution
from keras_qpsbgd.analysis.evolution import qubo_evolution
from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.analysis.run import load_run
from keras_qpsbgd.analysis.samples import EnergyHistogram
from keras_qpsbgd.analysis.samples import SampleSimilarity
from keras_qpsbgd.analysis.samples import energy_histogram
from keras_qpsbgd.analysis.samples import plot_energy_histogram
from keras_qpsbgd.analysis.samples import plot_sample_similarity
from keras_qpsbgd.analysis.samples import sample_similarity

__all__ = [
    "Embedding",
    "EnergyHistogram",
    "QuboEvolution",
    "Run",
    "SampleSimilarity",
    "Update",
    "embedding",
    "energy_histogram",
    "load_run",
    "plot_embedding",
    "plot_energy_histogram",
    "plot_qubo_evolution",
    "plot_sample_similarity",
    "qubo_evolution",
    "sample_similarity",
]
