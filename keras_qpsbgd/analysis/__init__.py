"""Tools for inspecting QUBOs, their solutions, and training runs.

Each tool consists of a function that returns numbers and a `plot_` function
that draws them with Matplotlib.
"""

from keras_qpsbgd.analysis.chip_embedding import Embedding
from keras_qpsbgd.analysis.chip_embedding import embedding
from keras_qpsbgd.analysis.chip_embedding import plot_embedding
from keras_qpsbgd.analysis.convergence import DirectionTest
from keras_qpsbgd.analysis.convergence import FixedPoints
from keras_qpsbgd.analysis.convergence import direction_test
from keras_qpsbgd.analysis.convergence import fixed_points
from keras_qpsbgd.analysis.convergence import plot_direction_test
from keras_qpsbgd.analysis.convergence import plot_fixed_points
from keras_qpsbgd.analysis.evolution import QuboEvolution
from keras_qpsbgd.analysis.evolution import plot_qubo_evolution
from keras_qpsbgd.analysis.evolution import qubo_evolution
from keras_qpsbgd.analysis.full_gradient import layer_qubos
from keras_qpsbgd.analysis.optimality import OptimalityGap
from keras_qpsbgd.analysis.optimality import optimality_gap
from keras_qpsbgd.analysis.optimality import plot_optimality_gap
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
    "DirectionTest",
    "Embedding",
    "EnergyHistogram",
    "FixedPoints",
    "OptimalityGap",
    "QuboEvolution",
    "Run",
    "SampleSimilarity",
    "Update",
    "direction_test",
    "embedding",
    "energy_histogram",
    "fixed_points",
    "layer_qubos",
    "load_run",
    "optimality_gap",
    "plot_direction_test",
    "plot_embedding",
    "plot_energy_histogram",
    "plot_fixed_points",
    "plot_optimality_gap",
    "plot_qubo_evolution",
    "plot_sample_similarity",
    "qubo_evolution",
    "sample_similarity",
]

_MOVED = ("SpectralGap", "plot_spectral_gap", "spectral_gap")


def __getattr__(name):
    if name in _MOVED:
        # An `AttributeError` would lose its message in `from ... import`.
        raise ImportError(
            f"`analysis.{name}` was removed from the installed package. In a "
            "clone of the repository, use `research.analysis.spectrum`. "
            f"Received: analysis.{name}"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
