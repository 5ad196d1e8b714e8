r"""What all binary layers share.

A binary layer has a real kernel \(\Omega\) (the Keras variable, "latent
weights") and computes with \(W = \mathrm{sign}(\Omega)\). Its gradient is the
straight-through one, as if the sign were not there, so the layer trains with
any Keras optimizer. The kernel's gradient also carries what the layer's QUBO is
made of, the rows that the kernel is multiplied with and the gradient of the
loss with respect to the product (see `keras_qpsbgd.recording`).
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
        training_weights: what the layer multiplies by in training: `"binary"`,
            the sign of the kernel (default), or `"latent"`, the real kernel
            itself, which is what `ProxQuant` trains. `evaluate` and `predict`
            take the sign in both cases. It is also an attribute; compile the
            model again after changing it.
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
        """What the layer multiplies by in training."""
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
        """Marks `kernel` as binary, so that `QPSBGD` knows it.

        Args:
            kernel: a variable, trainable unless the layer is frozen. The QUBO
                has one column per entry of its last axis if the layer has
                `rows`, and one column in all if not.
        """
        # The kernel of a frozen layer is marked, too: it may be unfrozen.
        if kernel is None or (self.trainable and not kernel.trainable):
            raise ValueError(
                f"The kernel of the binary layer `{self.name}` must be a "
                "trainable variable. To freeze the layer, set `trainable = "
                f"False` on the layer. Received: kernel={kernel}"
            )
        if 0 in kernel.shape:
            raise ValueError(
                f"The binary layer `{self.name}` needs at least one input and "
                f"one output. Received: kernel.shape={tuple(kernel.shape)}"
            )
        columns = kernel.shape[-1] if self._has_rows() else 1
        # A kernel that two layers share has one mark.
        self._mark = recording.mark_of(kernel) or recording.BinaryKernel(
            kernel,
            math.prod(kernel.shape) // columns,
            columns,
            self.name,
            self.training_weights,
        )

    @property
    def binary_kernel(self) -> tf.Tensor:
        """The weights that the layer computes with: +1 and -1."""
        return ops.sign(tf.convert_to_tensor(self._marked_kernel()))

    def use_real_kernel(self) -> None:
        """Makes it an ordinary layer: the kernel itself, and no output scale.

        For a network of the same shape with real weights, to see what the bits
        cost. Call it before the layer is part of a compiled model.
        """
        self._is_real = True

    def binary_call(self, inputs: Any, binary_kernel: tf.Tensor) -> Any:
        """The product of `inputs` and `binary_kernel`."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `binary_call`."
        )

    def rows(self, inputs: Any) -> Any:
        """The rows that the flattened kernel is multiplied with, or `None`."""
        del inputs
        return None

    def row_gradients(self, upstream: tf.Tensor) -> Any:
        """The gradient of the product, reshaped to (B, m) to fit `rows`."""
        return tf.reshape(upstream, (-1, self._mark.num_columns))

    def binary_product(self, inputs: Any, training: bool | None = None) -> Any:
        """`binary_call` with the binary kernel, scaled.

        Args:
            inputs: what `binary_call` takes.
            training: the layer's `training` argument. Everything but `False` is
                training, whose gradients are recorded: it is `None` in a custom
                loop that calls `model(x)`.
        """
        kernel = tf.convert_to_tensor(self._marked_kernel())
        if self._is_real:
            # Initializers give a real kernel the scale that it needs.
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
        """The feature axis of `inputs` if their gradient may be noise alone.

        `None` if the layer has no rows in closed form, or if all weights that
        go out of one input are hardly ever equal (`ops.may_cancel`).
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
        """Rows, gradients and kept rows of the flattened kernel.

        Every entry of the product is a row of its own, with its own gradient.
        It is kept if its neighbours along the last axis have a gradient, even
        where its own is zero, as in the closed forms.
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
        # The sign is taken before the cast: a small negative weight would
        # become zero in float16, and its sign +1.
        kwargs.setdefault(_keras.AUTOCAST, False)
        return super().add_weight(*args, **kwargs)

    def _refuse_adapters(self):
        for name in ("lora_rank", "quantization_config"):
            value = getattr(self, name, None)
            if value:
                raise ValueError(
                    f"`{type(self).__name__}` does not support `{name}`: its "
                    f"weights have one bit already. Received: {name}={value}"
                )

    def enable_lora(self, rank: int, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"`{type(self).__name__}` does not support LoRA: its kernel is "
            f"binary, a low-rank real part is not. Received: rank={rank}"
        )

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"`{type(self).__name__}` cannot be quantized: its weights have "
            f"one bit already, see `binary_kernel`. Received: mode={mode}"
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["output_scale"] = self.output_scale
        config["training_weights"] = self.training_weights
        if getattr(self, "activation", None) is ops.hard_tanh:
            # Ours, under legacy Keras, which reads a function from an HDF5 file
            # by its name alone.
            config["activation"] = "hard_tanh"
        return config
