"""Small files and standard formats for trained networks."""

from keras_qpsbgd.export.folder import saved_model
from keras_qpsbgd.export.litert_file import litert
from keras_qpsbgd.export.onnx_file import onnx
from keras_qpsbgd.export.saving import load_packed
from keras_qpsbgd.export.saving import packed
from keras_qpsbgd.export.stock import inference_model

__all__ = [
    "inference_model",
    "litert",
    "load_packed",
    "onnx",
    "packed",
    "saved_model",
]
