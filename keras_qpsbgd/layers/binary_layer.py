r"""Base class of the binary layers.

A binary layer has a real kernel \(\Omega\) (the Keras variable, "latent
weights") and computes with \(W = \mathrm{sign}(\Omega)\). It has the
straight-through gradient, which ignores the sign function, so the layer trains
with any Keras optimizer. The gradient of the kernel also carries the data for
the QUBO of the layer: the rows that the kernel is multiplied with and the
gradient of the loss with respect to the product (see `keras_qpsbgd.recording`).
"""

import math
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd import recording

OUTPUT_SCALES = ("fan_in", None)
TRAINING_WEIGHTS = ("binary", "latent")


class BinaryLayer(_keras.keras.layers.Layer):
    """Base class of layers with weights of +1 and -1.

    Subclass it to write a custom binary layer. A subclass creates its kernel in
    `build`, passes it to `mark_binary`, and calls `binary_product` instead of
    multiplying with the kernel. It defines

    - `binary_call(inputs, binary_kernel)`, the product, which must be
      differentiable with respect to both arguments;
    - optionally `rows(inputs)`, the rows of shape `(B, n)` that the kernel,
      flattened to `(n, m)`, is multiplied with. Without this method, the layer
      computes the Jacobian of the product with `tf.GradientTape`, and the whole
      flattened kernel becomes one QUBO. This is only suitable for small layers.

    Args:
        output_scale: `"fan_in"` or `None`. `"fan_in"` divides the product by
            the square root of the number of inputs, before bias and activation.
            `None` does not scale the product, as in the paper. Unscaled
            products saturate hard tanh. Defaults to `"fan_in"`.
        training_weights: `"binary"` or `"latent"`. The weights that the layer
            multiplies by in training. `"binary"` is the sign of the kernel.
            `"latent"` is the real kernel, as `ProxQuant` requires. `evaluate`
            and `predict` use the sign in both cases. You can also set the
            attribute of this name. Compile the model again after changing it.
            Defaults to `"binary"`.
        *args: Positional arguments of the Keras layer.
        **kwargs: Keyword arguments of the Keras layer.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

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

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x * [1.0, -1.0, -1.0, 1.0]
        model = keras.Sequential([BinaryScale(output_scale=None)])
        model.compile(kq.QPSBGD(0.3, "exact"), "mse")
        model.fit(x, y, epochs=5, verbose=0)
        print(model.layers[-1].binary_kernel)  # the signs 1, -1, -1, 1
        ```
    """

    def __init__(
        self,
        *args: Any,
        output_scale: str | None = "fan_in",
        training_weights: str = "binary",
        **kwargs: Any,
    ) -> None:
        if output_scale not in OUTPUT_SCALES:
            raise ValueError(
                f"`output_scale` must be one of {OUTPUT_SCALES}. "
                f"Received: output_scale={output_scale!r}"
            )
        super().__init__(*args, **kwargs)
        self.output_scale = output_scale
        self._mark: Any = None
        self._is_real = False
        self.training_weights = training_weights

    @property
    def training_weights(self) -> str:
        """The weights that the layer multiplies by in training."""
        return self._training_weights

    @training_weights.setter
    def training_weights(self, value):
        if value not in TRAINING_WEIGHTS:
            raise ValueError(
                f"`training_weights` must be one of {TRAINING_WEIGHTS}. "
                f"Received: training_weights={value!r}"
            )
        self._training_weights = value
        if self._mark is not None:
            self._mark.training_weights = value

    def mark_binary(self, kernel: Any) -> None:
        """Marks a kernel as binary, so that the optimizers recognize it.

        Args:
            kernel: Variable, trainable unless the layer is frozen. If the layer
                defines `rows`, the QUBO has one column per entry of the last
                axis of the kernel. Otherwise it has a single column.

        Raises:
            ValueError: If the kernel is not trainable or is empty.
        """
        # Also mark the kernel of a frozen layer, which may be unfrozen later.
        if kernel is None or (self.trainable and not kernel.trainable):
            raise ValueError(
                f"The kernel of the binary layer `{self.name}` must be a "
                "trainable variable. To freeze the layer, set `trainable = "
                f"False` on the layer. Received: kernel={kernel}"
            )
        if 0 in kernel.shape:
            raise ValueError(
                f"The binary layer `{self.name}` must have at least one input "
                "and one output. "
                f"Received: kernel.shape={tuple(kernel.shape)}"
            )
        columns = kernel.shape[-1] if self._has_rows() else 1
        # A kernel that two layers share has only one mark.
        self._mark = recording.mark_of(kernel) or recording.BinaryKernel(
            kernel,
            math.prod(kernel.shape) // columns,
            columns,
            self.name,
            self.training_weights,
        )

    @property
    def binary_kernel(self) -> tf.Tensor:
        """The weights of +1 and -1 that the layer computes with."""
        return ops.sign(tf.convert_to_tensor(self._marked_kernel()))

    def use_real_kernel(self) -> None:
        """Turns the layer into one with real weights and no output scale.

        Use it to measure how much accuracy the binary weights cost, with a
        network of the same shape. Call it before you compile the model.
        """
        self._is_real = True

    @property
    def has_real_kernel(self) -> bool:
        """Whether `use_real_kernel` was called."""
        return self._is_real

    def binary_call(self, inputs: Any, binary_kernel: tf.Tensor) -> Any:
        """Returns the product of `inputs` and `binary_kernel`.

        Every subclass must define this method.

        Args:
            inputs: The inputs that the layer passes to `binary_product`.
            binary_kernel: Tensor with the weights, in the compute dtype.
        """
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `binary_call`."
        )

    def rows(self, inputs: Any) -> Any:
        """Returns the rows that the flattened kernel is multiplied with.

        Define this method in a subclass to avoid the Jacobian of the product.

        Args:
            inputs: The inputs of `binary_call`.

        Returns:
            A tensor of shape `(B, n)`.
        """
        del inputs
        return None

    def row_gradients(self, upstream: tf.Tensor) -> Any:
        """Returns the gradient of the product as a tensor of shape `(B, m)`.

        Args:
            upstream: Tensor with the gradient of the loss with respect to the
                output of `binary_call`.
        """
        return tf.reshape(upstream, (-1, self._mark.num_columns))

    def binary_product(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns the scaled product of `inputs` and the binary kernel.

        Args:
            inputs: The inputs of `binary_call`.
            training: Boolean (optional). The `training` argument of the layer.
                Every value except `False` means training, in which gradients
                are recorded. It is `None` in a custom loop that calls
                `model(x)`. Defaults to `None`.
        """
        kernel = tf.convert_to_tensor(self._marked_kernel())
        if self._is_real:
            # The initializer already gives a real kernel the right scale.
            return self._multiply(inputs, kernel)
        if training is False:
            product = self._multiply(inputs, ops.binarize(kernel))
        elif self.training_weights == "latent":
            product = self._multiply(inputs, kernel)
        else:
            product = recording.recorded_product(
                self._mark,
                kernel,
                inputs,
                self._multiply,
                self._layer_call,
                self._noisy_axis(inputs),
            )
        if self.output_scale == "fan_in":
            fan_in = math.prod(kernel.shape) // kernel.shape[-1]
            product *= tf.cast(1.0 / math.sqrt(fan_in), product.dtype)
        return product

    def _multiply(self, inputs, weights):
        return self.binary_call(inputs, tf.cast(weights, self.compute_dtype))

    def _noisy_axis(self, inputs):
        """Returns the feature axis of `inputs` if their gradient may be noise.

        Returns `None` if the layer does not define `rows`, or if the outgoing
        weights of an input are practically never all equal (`ops.may_cancel`).
        """
        if not self._has_rows() or not tf.is_tensor(inputs):
            return None
        if not inputs.dtype.is_floating or not inputs.shape.rank:
            return None
        first = getattr(self, "data_format", None) == "channels_first"
        axis = 1 if first else inputs.shape.rank - 1
        shape = self._mark.kernel.shape
        if len(shape) < 2 or shape[-2] != inputs.shape[axis]:
            return None
        outgoing = math.prod(shape) // shape[-2]
        return axis if ops.may_cancel(outgoing) else None

    def _layer_call(self, inputs, weights, upstream):
        batch = tf.shape(tf.nest.flatten(inputs)[0])[0]
        if self._has_rows():
            rows, gradients = self.rows(inputs), self.row_gradients(upstream)
            return ops.LayerCall(rows, gradients, None, batch)
        rows, gradients, kept = self._jacobian_rows(inputs, weights, upstream)
        return ops.LayerCall(rows, gradients, kept, batch)

    def _jacobian_rows(self, inputs, weights, upstream):
        """Returns rows, gradients and kept rows of the flattened kernel.

        Every entry of the product is a separate row with its own gradient. As
        in layers that define `rows`, a row is kept if any entry along the last
        axis has a gradient, even if its own gradient is zero.
        """
        with tf.GradientTape() as tape:
            tape.watch(weights)
            product = self._multiply(inputs, weights)
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
        if self._mark is None:
            raise ValueError(
                f"The binary layer `{self.name}` has no binary kernel. Its "
                "`build` must call `self.mark_binary(kernel)` with a trainable "
                "variable. Received: no kernel"
            )
        return self._mark.kernel

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        # Take the sign before the cast. In float16, a small negative weight
        # would become zero, with the sign +1.
        kwargs.setdefault(_keras.AUTOCAST, False)
        return super().add_weight(*args, **kwargs)

    def _reject_adapters(self):
        for name in ("lora_rank", "quantization_config"):
            value = getattr(self, name, None)
            if value:
                raise ValueError(
                    f"`{type(self).__name__}` does not support `{name}`, "
                    "because its weights have only one bit. "
                    f"Received: {name}={value}"
                )

    def enable_lora(self, rank: int, *args: Any, **kwargs: Any) -> None:
        """Raises a `ValueError`, because LoRA is not supported."""
        raise ValueError(
            f"`{type(self).__name__}` does not support LoRA, because its "
            "kernel is binary and a low-rank update is not. "
            f"Received: rank={rank}"
        )

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> None:
        """Raises a `ValueError`, because the weights are already binary."""
        raise ValueError(
            f"`{type(self).__name__}` cannot be quantized, because its weights "
            "have only one bit. See `binary_kernel`. "
            f"Received: mode={mode}"
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["output_scale"] = self.output_scale
        config["training_weights"] = self.training_weights
        if getattr(self, "activation", None) is ops.hard_tanh:
            # Under legacy Keras, this function comes from this package. Legacy
            # Keras identifies functions in HDF5 files by name only.
            config["activation"] = "hard_tanh"
        return config
