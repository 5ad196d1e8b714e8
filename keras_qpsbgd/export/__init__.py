"""Small files and standard formats for trained networks."""

from keras_qpsbgd.export.saving import load_packed
from keras_qpsbgd.export.saving import packed

__all__ = ["load_packed", "packed"]
