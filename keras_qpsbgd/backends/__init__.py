"""Solvers for QUBOs, available by name.

A `Backend` turns a `Qubo` (n variables, m columns, shared couplings) into a
`Solution`. Host backends work on NumPy arrays and may be slow. A
`GraphBackend` is traced into the training graph.
"""

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.calls import process_pool
from keras_qpsbgd.backends.dimod_sampler import as_sampler
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import BudgetExceeded
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import TransientError
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.backends.host.samplers import SamplerBackend
from keras_qpsbgd.backends.registry import available
from keras_qpsbgd.backends.registry import get
from keras_qpsbgd.backends.registry import register
from keras_qpsbgd.backends.registry import serialize
from keras_qpsbgd.backends.solution import Solution

__all__ = [
    "Backend",
    "BackendUnavailable",
    "BudgetExceeded",
    "GraphBackend",
    "SamplerBackend",
    "Solution",
    "SolverError",
    "TransientError",
    "as_sampler",
    "available",
    "get",
    "process_pool",
    "register",
    "serialize",
]
