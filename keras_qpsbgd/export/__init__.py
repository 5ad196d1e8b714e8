"""Small files and standard formats for trained networks.

The functions are imported on first use, because `Predictor` reads packed files
where TensorFlow is not installed.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_qpsbgd.export.litert_file import litert
    from keras_qpsbgd.export.onnx_file import onnx
    from keras_qpsbgd.export.saving import load_packed
    from keras_qpsbgd.export.saving import packed
    from keras_qpsbgd.export.stock import inference_model
    from keras_qpsbgd.export.stock import saved_model

__all__ = [
    "inference_model",
    "litert",
    "load_packed",
    "onnx",
    "packed",
    "saved_model",
]

_MODULES = {
    "inference_model": "stock",
    "litert": "litert_file",
    "load_packed": "saving",
    "onnx": "onnx_file",
    "packed": "saving",
    "saved_model": "stock",
}


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(module, name)


def __dir__():
    return sorted([*globals(), *__all__])
