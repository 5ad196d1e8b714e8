"""Train binary neural networks in Keras with QUBO solvers and annealers.

See the README for a first example. The optimizer is `keras_qpsbgd.QPSBGD`.
"""

import importlib
from typing import TYPE_CHECKING

from keras_qpsbgd._loading import register_with_keras
from keras_qpsbgd._version import __version__ as __version__

if TYPE_CHECKING:  # for editors; names are loaded on first use
    from keras_qpsbgd import analysis
    from keras_qpsbgd import backends
    from keras_qpsbgd import callbacks
    from keras_qpsbgd import export
    from keras_qpsbgd import inference
    from keras_qpsbgd import layers
    from keras_qpsbgd import optimizers
    from keras_qpsbgd import spektral
    from keras_qpsbgd.backends.binary_map import binary_map
    from keras_qpsbgd.columns import fit_columns
    from keras_qpsbgd.layers import activations
    from keras_qpsbgd.layers import constraints
    from keras_qpsbgd.layers import metrics
    from keras_qpsbgd.model_summary import summary
    from keras_qpsbgd.optimizers import QPSBGD
    from keras_qpsbgd.quantization import quantize
    from keras_qpsbgd.qubo import Qubo

__all__ = [
    "QPSBGD",
    "Qubo",
    "activations",
    "analysis",
    "backends",
    "binary_map",
    "callbacks",
    "constraints",
    "export",
    "fit_columns",
    "inference",
    "layers",
    "metrics",
    "optimizers",
    "quantize",
    "spektral",
    "summary",
]

# The modules of the functions and classes. All other names are modules.
_MODULES = {
    "QPSBGD": "optimizers",
    "Qubo": "qubo",
    "binary_map": "backends.binary_map",
    "fit_columns": "columns",
    "quantize": "quantization",
    "summary": "model_summary",
}
_INSIDE_LAYERS = ("activations", "constraints", "metrics")


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = f"layers.{name}" if name in _INSIDE_LAYERS else name
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, path)}")
    value = getattr(module, name) if name in _MODULES else module
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))


register_with_keras()
