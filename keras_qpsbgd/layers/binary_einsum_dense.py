"""A dense layer for an einsum equation, with weights of one to four bits."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import equations
from keras_qpsbgd.layers.binary_layer import BinaryLayer


@_keras.register
class BinaryEinsumDense(BinaryLayer, _keras.keras.layers.EinsumDense):
    r"""Einsum dense layer with binary weights, or weights of up to four bits.

    The layer is a `keras.layers.EinsumDense` that computes with the sign of its
    kernel \(\Omega\) or, if `bits > 1`, with the weights described in
    `BinaryLayer`. It is a dense layer on the last axes of the inputs. The
    equation must have the form `"bi,io->bo"`, where each of `b`, `i` and `o`
    stands for one or more axes: `i` for the axes that are summed over, `o` for
    the axes of the outputs, and `b` for all others (`...` is allowed). Examples
    are `"abc,cd->abd"`, and `"abc,cde->abde"` and `"abcd,cde->abe"`, the
    projections of `keras.layers.MultiHeadAttention`.

    The layer takes the arguments of `EinsumDense`, in the same order and with
    the same defaults. `lora_rank` and `quantize` are not supported, because the
    weights already have few bits.

    Args:
        equation: String. The equation, as described above.
        output_shape: Integer or tuple of integers. The shape of the output,
            without the batch axis. An entry may be `None`.
        activation: Activation function (optional). Defaults to `None`, which
            applies no activation.
        bias_axes: String (optional). The axes of the output that have a bias.
            Defaults to `None`, which means no bias.
        kernel_initializer: Initializer of the latent kernel. Defaults to
            `"glorot_uniform"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the latent kernel (optional).
            Defaults to `None`.
        bias_regularizer: Regularizer of the bias (optional). Defaults to
            `None`.
        kernel_constraint: Constraint of the latent kernel (optional). Defaults
            to `None`.
        bias_constraint: Constraint of the bias (optional). Defaults to `None`.
        bits: Integer from 1 to 4. The number of bits of a weight; see
            `BinaryLayer`. Defaults to `1`.
        output_scale: `"fan_in"`, `"channel"` or `None`. `"fan_in"` divides the
            product by the square root of the number of inputs \(n\), the size
            of the axes that are summed over. `"channel"` multiplies it by the
            trainable weight `scale`, a vector with one entry per output, which
            starts at \(1 / \sqrt n\). `None` does not scale it. Defaults to
            `"fan_in"`.
        training_weights: `"binary"` or `"latent"`. The weights that the layer
            multiplies by in training. `ProxQuant` requires `"latent"`; see
            `BinaryLayer`. Defaults to `"binary"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        import numpy as np

        import keras_qpsbgd as kq

        layer = kq.layers.BinaryEinsumDense(
            "abc,cde->abde", output_shape=(None, 2, 8), bias_axes="de", bits=2
        )
        print(layer(np.ones((4, 10, 16))).shape)  # (4, 10, 2, 8)
        ```
    """

    def __init__(
        self,
        equation: str,
        output_shape: Any,
        *args: Any,
        bits: int = 1,
        output_scale: str | None = "fan_in",
        **kwargs: Any,
    ) -> None:
        output_axes = equations.num_output_axes(equation)
        if output_axes is None:
            raise ValueError(
                "`equation` must have the form 'bi,io->bo', where each letter "
                "stands for one or more axes. The axes that are summed over "
                "must be the last axes of the inputs and the first of the "
                "kernel, and the other axes of the kernel the last of the "
                f"outputs. Received: equation={equation!r}"
            )
        self._output_axes = output_axes
        super().__init__(
            equation,
            output_shape,
            *args,
            bits=bits,
            output_scale=output_scale,
            **kwargs,
        )
        self._reject_adapters()

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.mark_binary(self.kernel, self._output_axes)

    def binary_call(self, inputs: Any, binary_kernel: tf.Tensor) -> Any:
        return tf.einsum(self.equation, inputs, binary_kernel)

    def rows(self, inputs: Any) -> Any:
        return tf.reshape(inputs, (-1, self._mark.num_variables))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        inputs = tf.cast(inputs, self.compute_dtype)
        return self._finished(self.binary_product(inputs, training))
