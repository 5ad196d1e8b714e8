"""Fast predictions of binary networks on a CPU."""

from keras_qpsbgd.inference.predictor import Predictor

__all__ = ["Predictor"]
