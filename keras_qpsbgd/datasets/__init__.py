"""The datasets of the paper, verified and ready for Keras and Spektral.

- `karate` does not read any files.
- `citation` reads Cora, PubMed, Citeseer and other data in the same format.
- `adult` and `mnist` return two pairs of arrays, as `keras.datasets` does.

`keras_qpsbgd.datasets.files` documents where files are stored and how they are
downloaded.
"""

from keras_qpsbgd.datasets.files import DamagedFile
from keras_qpsbgd.datasets.files import DownloadFailed
from keras_qpsbgd.datasets.files import MissingFile
from keras_qpsbgd.datasets.graph_data import GraphData
from keras_qpsbgd.datasets.karate_club import karate
from keras_qpsbgd.datasets.mnist_digits import mnist
from keras_qpsbgd.datasets.planetoid import citation
from keras_qpsbgd.datasets.uci_adult import adult

__all__ = [
    "DamagedFile",
    "DownloadFailed",
    "GraphData",
    "MissingFile",
    "adult",
    "citation",
    "karate",
    "mnist",
]
