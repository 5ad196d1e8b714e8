"""A dense layer with weights of +1 and -1."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd.layers.binary_layer import BinaryLayer


@_keras.register
class BinaryDense(BinaryLayer, _keras.keras.layers.Dense):
    r"""`keras.layers.Dense` whose kernel is \(\mathrm{sign}(\Omega)\).

    $$y = \mathrm{activation}\left(\frac{x \, \mathrm{sign}(\Omega)}{\sqrt n}
      + b\right)$$

    Inputs of any rank are multiplied along their last axis, masks pass through,
    weights and saved file are those of `Dense`; `layer.binary_kernel` is what
    it computes with. `lora_rank` and `quantize` are not supported: the kernel
    has one bit already.

    Args:
        units: as in `Dense`, and so are all other arguments and their defaults.
        output_scale: `"fan_in"` (default) divides by the square root of the
            number of inputs n; `None` does not.
        training_weights: `"binary"` (default) or `"latent"`, for `ProxQuant`;
            see `BinaryLayer`.

    Example:

    >>> layer = keras_qpsbgd.layers.BinaryDense(2, use_bias=False)
    >>> layer(tf.ones((1, 4))).shape
    TensorShape([1, 2])
    """

    def __init__(
        self,
        units: int,
        *args: Any,
        output_scale: str | None = "fan_in",
        **kwargs: Any,
    ) -> None:
        super().__init__(units, *args, output_scale=output_scale, **kwargs)
        self._refuse_adapters()

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.mark_binary(self.kernel)

    def binary_call(self, inputs: Any, binary_kernel: tf.Tensor) -> Any:
        if len(inputs.shape) == 2:
            return tf.matmul(inputs, binary_kernel)
        return tf.tensordot(inputs, binary_kernel, axes=1)

    def rows(self, inputs: Any) -> Any:
        return tf.reshape(inputs, (-1, self._mark.num_variables))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if isinstance(inputs, tf.SparseTensor):
            inputs = ops.to_dense(inputs)
        inputs = tf.cast(inputs, self.compute_dtype)
        outputs = self.binary_product(inputs, training)
        if self.use_bias:
            outputs += tf.cast(self.bias, outputs.dtype)
        if self.activation is not None:
            outputs = self.activation(outputs)
        return outputs
