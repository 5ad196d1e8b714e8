"""A convolution with weights of one to four bits."""

import math
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import rows
from keras_qpsbgd.layers.binary_layer import BinaryLayer

# Statistics of the rows use about this many positions of an image.
POSITIONS = 32


@_keras.register
class BinaryConv2D(BinaryLayer, _keras.keras.layers.Conv2D):
    r"""2D convolution layer with binary weights, or weights of up to four bits.

    The layer is a `keras.layers.Conv2D` that computes with the sign of its
    kernel \(\Omega\) or, if `bits > 1`, with the weights described in
    `BinaryLayer`. A convolution is a dense layer on patches. Each position in
    each image is a row with kernel height x kernel width x channels inputs. The
    weights and the saved file have the same format as those of `Conv2D`, except
    that `output_scale="channel"` adds a weight. `layer.binary_kernel` returns
    the levels of the weights, which are +1 and -1 if `bits=1`.

    The layer takes the arguments of `Conv2D`, in the same order and with the
    same defaults. `groups > 1` is not supported, because each group would be a
    separate QUBO. `lora_rank` and `quantize` are not supported, because the
    weights already have few bits.

    Args:
        filters: Integer. The number of output channels.
        kernel_size: Integer or tuple of 2 integers. The height and width of the
            convolution window.
        strides: Integer or tuple of 2 integers. The strides of the convolution.
            Defaults to `(1, 1)`.
        padding: `"valid"` or `"same"`. Defaults to `"valid"`, which means no
            padding.
        data_format: `"channels_last"` or `"channels_first"` (optional). The
            order of the dimensions of the inputs. Defaults to the
            `image_data_format` of the Keras configuration.
        dilation_rate: Integer or tuple of 2 integers. The dilation of the
            convolution window. Defaults to `(1, 1)`.
        groups: Integer. Must be `1`. Defaults to `1`.
        activation: Activation function (optional). Defaults to `None`, which
            applies no activation.
        use_bias: Boolean. Whether to add a bias. Defaults to `True`.
        kernel_initializer: Initializer of the latent kernel. Defaults to
            `"glorot_uniform"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer of the latent kernel (optional).
            Defaults to `None`.
        bias_regularizer: Regularizer of the bias (optional). Defaults to
            `None`.
        activity_regularizer: Regularizer of the output (optional). Defaults to
            `None`.
        kernel_constraint: Constraint of the latent kernel (optional), for
            example `keras_qpsbgd.constraints.WeightClip`. Defaults to `None`.
        bias_constraint: Constraint of the bias (optional). Defaults to `None`.
        bits: Integer from 1 to 4. The number of bits of a weight; see
            `BinaryLayer`. Defaults to `1`.
        output_scale: `"fan_in"`, `"channel"` or `None`. `"fan_in"` divides the
            product by the square root of the patch size. `"channel"` multiplies
            it by the trainable weight `scale` of shape `(filters,)`, which
            starts at the factor of `"fan_in"`. `None` does not scale it.
            Defaults to `"fan_in"`.
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

        layer = kq.layers.BinaryConv2D(8, 3, padding="same")
        print(layer(np.ones((4, 10, 10, 3))).shape)  # (4, 10, 10, 8)
        ```
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        *args: Any,
        bits: int = 1,
        output_scale: str | None = "fan_in",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            *args,
            bits=bits,
            output_scale=output_scale,
            **kwargs,
        )
        if self.groups != 1:
            raise ValueError(
                "`groups` must be 1, because each group would be a separate "
                f"QUBO. Received: groups={self.groups}"
            )
        self._reject_adapters()

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.mark_binary(self.kernel)

    def binary_call(self, inputs: Any, binary_kernel: tf.Tensor) -> Any:
        # Always use channels last. On a CPU, TensorFlow supports no other
        # layout. On a GPU, it converts the layout itself.
        outputs = tf.nn.convolution(
            self._channels_last(inputs),
            binary_kernel,
            strides=self.strides,
            padding=self.padding.upper(),
            # Without this argument, second derivatives fail in eager mode.
            data_format="NHWC",
            dilations=self.dilation_rate,
        )
        if self.data_format == "channels_first":
            outputs = tf.transpose(outputs, (0, 3, 1, 2))
        return outputs

    def rows(self, inputs: Any) -> Any:
        return self._patches(self._channels_last(inputs), 1)

    def sample_rows(self, inputs: Any, count: int) -> Any:
        images = self._channels_last(inputs)
        shape = self.compute_output_shape(inputs.shape)
        axes = (2, 3) if self.data_format == "channels_first" else (1, 2)
        positions = [shape[axis] for axis in axes]
        if None in positions:
            return self._patches(images, 1)
        # Use fewer positions first, because neighbors are similar, and then
        # fewer images.
        stride = max(1, round((math.prod(positions) / POSITIONS) ** 0.5))
        used = math.prod(-(-size // stride) for size in positions)
        images = rows.evenly_spaced(images, -(-count // used))
        return self._patches(images, stride)

    def _patches(self, images, stride):
        found = rows.patches(
            images,
            self.kernel_size,
            tuple(stride * size for size in self.strides),
            self.dilation_rate,
            self.padding.upper(),
        )
        return tf.reshape(found, (-1, self._mark.num_variables))

    def row_gradients(self, upstream: tf.Tensor) -> Any:
        return super().row_gradients(self._channels_last(upstream))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        inputs = tf.cast(inputs, self.compute_dtype)
        return self._finished(self.binary_product(inputs, training))

    def _channels_last(self, images):
        if self.data_format == "channels_first":
            return tf.transpose(images, (0, 2, 3, 1))
        return images
