r"""What all binary layers share.

A binary layer has a real kernel \(\Omega\) (the Keras variable, "latent
weights") and computes with \(W = \mathrm{sign}(\Omega)\). Its gradient is the
straight-through one, as if the sign were not there, so the layer trains with
any Keras optimizer. With `QPSBGD` the backward pass also records what the
layer's QUBO is made of: the rows that the kernel is multiplied with and the
gradient of the loss with respect to the product. With `ProxQuant` training
multiplies by \(\Omega\) itself; `evaluate` and `predict` take the sign.
"""

import math

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import accumulator
from keras_qpsbgd import ops

OUTPUT_SCALES = ("fan_in", None)


class BinaryLayer(_keras.keras.layers.Layer):
    """Base class of layers with a kernel of +1 and -1.

    A subclass makes its kernel in `build`, hands it to `mark_binary`, and calls
    `binary_product` where it would multiply with the kernel. It defines

    - `binary_call(inputs, binary_kernel)`, the product, differentiable in both;
    - optionally `rows(inputs)`, the (B, n) rows that the kernel, flattened to
      (n, m), is multiplied with. Without it the Jacobian of the product is
      taken with `tf.GradientTape` and the QUBO is that of the whole flattened
      kernel, which is for small layers.

    Args:
        output_scale: `"fan_in"` divides the product by the square root of the
            number of inputs, before bias and activation; `None` leaves it as it
            is, as in the paper, and saturates hard tanh.
        **kwargs: arguments of the Keras layer.

    Example:

    ```python
    class BinaryScale(kq.layers.BinaryLayer):
        def build(self, input_shape):
            self.kernel = self.add_weight(
                name="kernel", shape=(input_shape[-1],)
            )
            self.mark_binary(self.kernel)

        def binary_call(self, inputs, binary_kernel):
            return inputs * binary_kernel

        def call(self, inputs, training=None):
            return self.binary_product(inputs, training)
    ```
    """

    def __init__(self, *args, output_scale="fan_in", **kwargs):
        if output_scale not in OUTPUT_SCALES:
            raise ValueError(
                f"`output_scale` must be one of {OUTPUT_SCALES}. "
                f"Received: output_scale={output_scale!r}"
            )
        super().__init__(*args, **kwargs)
        self.output_scale = output_scale
        self._accumulator = None

    def mark_binary(self, kernel):
        """Marks `kernel` as binary, so that `QPSBGD` knows it.

        Args:
            kernel: a trainable variable. The QUBO has one column per entry of
                its last axis if the layer has `rows`, and one column in all if
                not.
        """
        if kernel is None or not kernel.trainable:
            raise ValueError(
                f"The kernel of the binary layer `{self.name}` must be a "
                "trainable variable when the layer is built; freeze the layer "
                "afterwards with `trainable = False`. "
                f"Received: kernel={kernel}"
            )
        columns = kernel.shape[-1] if self._has_rows() else 1
        self._accumulator = accumulator.QuboAccumulator(
            kernel, math.prod(kernel.shape) // columns, columns, self.name
        )
        kernel.qubo_accumulator = self._accumulator

    @property
    def binary_kernel(self):
        """The weights that the layer computes with: +1 and -1."""
        return ops.sign(tf.convert_to_tensor(self._marked_kernel()))

    def binary_call(self, inputs, binary_kernel):
        """The product of `inputs` and `binary_kernel`."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `binary_call`."
        )

    def rows(self, inputs):
        """The rows that the flattened kernel is multiplied with, or `None`."""
        del inputs
        return None

    def row_gradients(self, upstream):
        """The gradient of the product, reshaped to (B, m) to fit `rows`."""
        return tf.reshape(upstream, (-1, self._accumulator.num_columns))

    def binary_product(self, inputs, training=None):
        """`binary_call` with the binary kernel, scaled, recorded if asked for.

        Args:
            inputs: what `binary_call` takes.
            training: the layer's `training` argument. Everything but `False` is
                training, and recorded: it is `None` in a loop that calls
                `model(x)`.
        """
        in_training = training is not False
        kernel = tf.convert_to_tensor(self._marked_kernel())
        weights = kernel
        if not in_training or self._accumulator.forward == "sign":
            weights = ops.binarize(kernel)
        weights = tf.cast(weights, self.compute_dtype)
        product = self.binary_call(inputs, weights)
        if in_training:
            product = self._recorded(product, inputs, weights)
        if self.output_scale == "fan_in":
            fan_in = math.prod(kernel.shape) // kernel.shape[-1]
            product *= tf.cast(1.0 / math.sqrt(fan_in), product.dtype)
        return product

    def _recorded(self, product, inputs, weights):
        """The product, whose backward pass tells the accumulator."""

        @tf.custom_gradient
        def identity(product):
            def backward(upstream):
                self._accumulator.record(
                    lambda: self._layer_call(inputs, weights, upstream)
                )
                return upstream

            return product, backward

        return identity(product)

    def _layer_call(self, inputs, weights, upstream):
        batch = tf.shape(tf.nest.flatten(inputs)[0])[0]
        if self._has_rows():
            rows, gradients = self.rows(inputs), self.row_gradients(upstream)
            return ops.LayerCall(rows, gradients, None, batch)
        rows, gradients, kept = self._jacobian_rows(inputs, weights, upstream)
        return ops.LayerCall(rows, gradients, kept, batch)

    def _jacobian_rows(self, inputs, weights, upstream):
        """Rows, gradients and kept rows of the flattened kernel.

        Every entry of the product is a row of its own, with its own gradient.
        It is kept if its neighbours along the last axis have a gradient, even
        where its own is zero, as in the closed forms.
        """
        with tf.GradientTape() as tape:
            tape.watch(weights)
            product = self.binary_call(inputs, weights)
        jacobian = tape.jacobian(product, weights)
        kept = tf.reduce_any(upstream != 0, axis=-1, keepdims=True)
        kept = tf.broadcast_to(kept, tf.shape(upstream))
        return (
            tf.reshape(jacobian, (-1, math.prod(weights.shape))),
            tf.reshape(upstream, (-1, 1)),
            tf.reshape(kept, (-1, 1)),
        )

    def _has_rows(self):
        return type(self).rows is not BinaryLayer.rows

    def _marked_kernel(self):
        if self._accumulator is None:
            raise ValueError(
                f"The binary layer `{self.name}` has no binary kernel. Its "
                "`build` must call `self.mark_binary(kernel)` with a trainable "
                "variable. Received: no kernel"
            )
        return self._accumulator.kernel

    def add_weight(self, *args, **kwargs):
        # The sign is taken before the cast: a small negative weight would
        # become zero in float16, and its sign +1.
        kwargs.setdefault(_keras.AUTOCAST, False)
        return super().add_weight(*args, **kwargs)

    @property
    def supports_jit(self):
        # Keras asks before the optimizer has seen a variable, and a solver on
        # the host cannot live under XLA.
        return not accumulator.host_solver_alive()

    @supports_jit.setter
    def supports_jit(self, value):
        del value  # Keras sets it in the constructor of every layer

    def _refuse_adapters(self):
        for name in ("lora_rank", "quantization_config"):
            value = getattr(self, name, None)
            if value:
                raise ValueError(
                    f"`{type(self).__name__}` does not support `{name}`: its "
                    f"weights have one bit already. Received: {name}={value}"
                )

    def enable_lora(self, rank, *args, **kwargs):
        raise ValueError(
            f"`{type(self).__name__}` does not support LoRA: its kernel is "
            f"binary, a low-rank real part is not. Received: rank={rank}"
        )

    def quantize(self, mode=None, *args, **kwargs):
        raise ValueError(
            f"`{type(self).__name__}` cannot be quantized: its weights have "
            f"one bit already, see `binary_kernel`. Received: mode={mode}"
        )

    def get_config(self):
        config = super().get_config()
        config["output_scale"] = self.output_scale
        return config
