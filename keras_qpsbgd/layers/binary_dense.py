"""A dense layer with weights of one to four bits."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import rows
from keras_qpsbgd.layers.binary_layer import BinaryLayer

# Statistics of the rows use at least this many samples of a batch, and fewer
# than twice as many.
SAMPLES = 64


@_keras.register
class BinaryDense(BinaryLayer, _keras.keras.layers.Dense):
    r"""Dense layer with binary weights, or weights of up to four bits.

    The layer is a `keras.layers.Dense` that computes with the sign of its
    kernel \(\Omega\):

    $$y = \mathrm{activation}\left(\frac{x \, \mathrm{sign}(\Omega)}{\sqrt n}
      + b\right)$$

    With `bits > 1`, it computes with \(q / L\) instead of the sign:

    $$q = \mathrm{clip}\left(2 \left\lfloor \frac{\Omega L}{2} \right\rfloor
      + 1, \; -L, \; L\right) , \qquad L = 2^\mathrm{bits} - 1$$

    As in `Dense`, inputs of any rank are multiplied along their last axis, and
    masks are passed on. The weights and the saved file have the same format as
    those of `Dense`, except that `output_scale="channel"` adds a weight.
    `layer.binary_kernel` returns \(q\). If `bits=1`, these are the weights +1
    and -1.

    The layer takes the arguments of `Dense`, in the same order and with the
    same defaults. `lora_rank` and `quantize` are not supported, because the
    weights already have few bits.

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
        bits: Integer from 1 to 4. The number of bits of a weight; see
            `BinaryLayer`. Defaults to `1`.
        output_scale: `"fan_in"`, `"channel"` or `None`. `"fan_in"` divides the
            product by the square root of the number of inputs \(n\).
            `"channel"` multiplies it by the trainable weight `scale` of shape
            `(units,)`, which starts at \(1 / \sqrt n\). `None` does not scale
            it. Defaults to `"fan_in"`.
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
        bits: int = 1,
        output_scale: str | None = "fan_in",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units, *args, bits=bits, output_scale=output_scale, **kwargs
        )
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

    def sample_rows(self, inputs: Any, count: int) -> Any:
        # Samples differ more than positions of a sequence or an image do, so
        # fewer of them are enough.
        count = SAMPLES if len(inputs.shape) == 2 else count
        return super().sample_rows(inputs, count)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if isinstance(inputs, tf.SparseTensor):
            inputs = rows.to_dense(inputs)
        inputs = tf.cast(inputs, self.compute_dtype)
        return self._finished(self.binary_product(inputs, training))

    def outputs_of(
        self, product: tf.Tensor, column: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the outputs of the layer for a given product.

        Args:
            product: Tensor of shape `(..., units)`. The product of the inputs
                and the weights, without `output_scale`.
            column: Scalar integer tensor (optional). If it is given, `product`
                contains only this column and has the shape `(...)`. The
                activation must then be elementwise. Defaults to `None`.
        """
        if column is None:
            return self._finished(self._scaled(product))
        factors = tf.broadcast_to(self._output_factor(), self._outputs)
        outputs = product * tf.cast(factors[column], product.dtype)
        if self.use_bias:
            bias = tf.convert_to_tensor(self.bias)[column]
            outputs += tf.cast(bias, outputs.dtype)
        return outputs if self.activation is None else self.activation(outputs)
