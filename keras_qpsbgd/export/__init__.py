"""Small files and standard formats for trained networks."""

from keras_qpsbgd.export.saving import load_packed
from keras_qpsbgd.export.saving import packed
from keras_qpsbgd.export.stock import inference_model

__all__ = ["inference_model", "load_packed", "packed"]
