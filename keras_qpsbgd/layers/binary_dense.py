"""A dense layer with weights of +1 and -1."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd.layers.binary_layer import BinaryLayer


@_keras.register
class BinaryDense(BinaryLayer, _keras.keras.layers.Dense):
    r"""Dense layer with weights of +1 and -1.

    The layer is a `keras.layers.Dense` that computes with the sign of its
    kernel \(\Omega\):

    $$y = \mathrm{activation}\left(\frac{x \, \mathrm{sign}(\Omega)}{\sqrt n}
      + b\right)$$

    As in `Dense`, inputs of any rank are multiplied along their last axis, and
    masks are passed on. The weights and the saved file have the same format as
    those of `Dense`. `layer.binary_kernel` contains the weights of +1 and -1.

    The layer takes the arguments of `Dense`, in the same order and with the
    same defaults. `lora_rank` and `quantize` are not supported, because the
    kernel has only one bit per weight.

    Args:
        units: Positive integer. The number of outputs.
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
        output_scale: `"fan_in"` or `None`. `"fan_in"` divides the product by
            the square root of the number of inputs \(n\). `None` does not
            scale it. Defaults to `"fan_in"`.
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

        layer = kq.layers.BinaryDense(2, activation="tanh")
        print(layer(np.ones((1, 4))).shape)  # (1, 2)
        print(layer.binary_kernel)
        ```
    """

    def __init__(
        self,
        units: int,
        *args: Any,
        output_scale: str | None = "fan_in",
        **kwargs: Any,
    ) -> None:
        super().__init__(units, *args, output_scale=output_scale, **kwargs)
        self._reject_adapters()

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
