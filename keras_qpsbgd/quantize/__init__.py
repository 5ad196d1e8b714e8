"""Quantizes the layers of a trained network to a few bits per weight."""

from keras_qpsbgd.quantize.quantize import quantize
from keras_qpsbgd.quantize.report import LayerQuantization
from keras_qpsbgd.quantize.report import QuantizationReport

__all__ = ["LayerQuantization", "QuantizationReport", "quantize"]
