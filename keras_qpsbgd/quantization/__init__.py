"""Quantizes the layers of a trained network to a few bits per weight."""

from keras_qpsbgd.quantization.function import quantize
from keras_qpsbgd.quantization.quantization_report import LayerQuantization
from keras_qpsbgd.quantization.quantization_report import QuantizationReport

__all__ = ["LayerQuantization", "QuantizationReport", "quantize"]
