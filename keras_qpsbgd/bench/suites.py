"""The suites by name."""

from keras_qpsbgd.bench import accuracy
from keras_qpsbgd.bench import quality
from keras_qpsbgd.bench import scaling
from keras_qpsbgd.bench import solver
from keras_qpsbgd.bench import step

SUITES = {
    "step": step,
    "solver": solver,
    "scaling": scaling,
    "accuracy-per-second": accuracy,
    "quality": quality,
}
