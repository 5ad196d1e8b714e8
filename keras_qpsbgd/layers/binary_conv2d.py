"""A convolution with weights of +1 and -1."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.layers.binary_layer import BinaryLayer


@_keras.register
class BinaryConv2D(BinaryLayer, _keras.keras.layers.Conv2D):
    r"""`keras.layers.Conv2D` whose kernel is \(\mathrm{sign}(\Omega)\).

    A convolution is a dense layer on patches: each position of each image is a
    row of kernel height x kernel width x channels inputs, and all of them enter
    the layer's QUBO. Weights and saved file are those of `Conv2D`;
    `layer.binary_kernel` is what it computes with.

    Not supported: `groups > 1` (each group would be a QUBO of its own),
    `lora_rank` and `quantize` (the kernel has one bit already).

    Args:
        filters: as in `Conv2D`, and so are all other arguments and their
            defaults.
        kernel_size: as in `Conv2D`.
        output_scale: `"fan_in"` (default) divides by the square root of the
            patch size; `None` does not.
        training_weights: `"binary"` (default) or `"latent"`, for `ProxQuant`;
            see `BinaryLayer`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        *args: Any,
        output_scale: str | None = "fan_in",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters, kernel_size, *args, output_scale=output_scale, **kwargs
        )
        if self.groups != 1:
            raise ValueError(
                "`groups` must be 1: each group would be a QUBO of its own. "
                f"Received: groups={self.groups}"
            )
        self._refuse_adapters()

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.mark_binary(self.kernel)

    def binary_call(self, inputs: Any, binary_kernel: tf.Tensor) -> Any:
        # Channels last throughout: TensorFlow has no other convolution on a
        # CPU, and converts on a GPU by itself.
        outputs = tf.nn.convolution(
            self._channels_last(inputs),
            binary_kernel,
            strides=self.strides,
            padding=self.padding.upper(),
            dilations=self.dilation_rate,
        )
        if self.data_format == "channels_first":
            outputs = tf.transpose(outputs, (0, 3, 1, 2))
        return outputs

    def rows(self, inputs: Any) -> Any:
        patches = tf.image.extract_patches(
            self._channels_last(inputs),
            sizes=(1, *self.kernel_size, 1),
            strides=(1, *self.strides, 1),
            rates=(1, *self.dilation_rate, 1),
            padding=self.padding.upper(),
        )
        return tf.reshape(patches, (-1, self._mark.num_variables))

    def row_gradients(self, upstream: tf.Tensor) -> Any:
        return super().row_gradients(self._channels_last(upstream))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        inputs = tf.cast(inputs, self.compute_dtype)
        outputs = self.binary_product(inputs, training)
        if self.use_bias:
            bias = tf.cast(self.bias, outputs.dtype)
            if self.data_format == "channels_first":
                bias = bias[:, None, None]
            outputs += bias
        if self.activation is not None:
            outputs = self.activation(outputs)
        return outputs

    def _channels_last(self, images):
        if self.data_format == "channels_first":
            return tf.transpose(images, (0, 2, 3, 1))
        return images
