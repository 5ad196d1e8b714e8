"""Quantizes the layers of a trained network to a few bits per weight."""

from keras_qpsbgd.quantization.quantization_report import LayerQuantization
from keras_qpsbgd.quantization.quantization_report import QuantizationReport
from keras_qpsbgd.quantization.quantize import quantize

__all__ = ["LayerQuantization", "QuantizationReport", "quantize"]
