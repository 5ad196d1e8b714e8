r"""Base class of the binary layers.

A binary layer has a real kernel \(\Omega\) (the Keras variable, "latent
weights") and computes with its rounded weights \(W\) (see `rounding`). It uses
the straight-through gradient, which ignores the rounding, so it trains with any
Keras optimizer. In a training pass, it also passes its rows to the observer of
the kernel (see `statistics`), if the optimizer has connected one.
"""

import math
import numbers
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.bits import MAX_BITS
from keras_qpsbgd.layers import rows
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.layers.adapted_layer import AdaptedLayer
from keras_qpsbgd.layers.rounding import binarize
from keras_qpsbgd.layers.rounding import levels

OUTPUT_SCALES = ("fan_in", "channel", None)
TRAINING_WEIGHTS = ("binary", "latent")


class BinaryLayer(AdaptedLayer):
    r"""Base class of layers with binary weights, or weights of up to four bits.

    The weights of a layer with \(b\) bits are \(W = q / L\) with
    \(L = 2^b - 1\). The levels \(q\) are the odd integers from \(-L\) to
    \(L\), rounded from the latent kernel \(\Omega\):

    $$q = \mathrm{clip}\left(2 \left\lfloor \frac{\Omega L}{2} \right\rfloor
      + 1, \; -L, \; L\right)$$

    With one bit, the weights are the signs of the kernel, where the sign of
    zero is +1. With two bits, they are -1, -1/3, 1/3 and 1.

    Subclass it to write a custom binary layer. A subclass creates its kernel in
    `build`, passes it to `mark_binary`, and calls `binary_product` instead of
    multiplying by the kernel. It defines

    - `binary_call(inputs, binary_kernel)`, the product, which must be
      differentiable with respect to both arguments;
    - optionally `rows(inputs)`, the rows of shape `(B, n)` that are multiplied
      by the kernel, flattened to `(n, m)`. Without this method, the layer
      computes the Jacobian of the product with `tf.GradientTape`, and the whole
      flattened kernel becomes one QUBO. This is only suitable for small layers.

    Args:
        bits: Integer from 1 to 4. The number of bits of a weight. Defaults to
            `1`.
        output_scale: `"fan_in"`, `"channel"` or `None`. How to scale the
            product, before bias and activation. `"fan_in"` divides the product
            by the square root of the number of inputs. `"channel"` multiplies
            every output by its entry of the trainable weight `scale`, which
            starts at the factor of `"fan_in"`. `None` does not scale the
            product, as in the paper. Unscaled products saturate hard tanh.
            Defaults to `"fan_in"`.
        training_weights: `"binary"` or `"latent"`. The weights that the layer
            multiplies by in training. `"binary"` is \(W\). `"latent"` is the
            real kernel, as `ProxQuant` requires. `evaluate` and `predict` use
            \(W\) in both cases. You can also set the attribute of the same
            name. Compile the model again after changing it. Defaults to
            `"binary"`.
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
        bits: int = 1,
        output_scale: str | None = "fan_in",
        training_weights: str = "binary",
        **kwargs: Any,
    ) -> None:
        is_integer = isinstance(bits, numbers.Integral)
        is_integer = is_integer and not isinstance(bits, bool)
        if not is_integer or not 1 <= bits <= MAX_BITS:
            raise ValueError(
                f"`bits` must be an integer from 1 to {MAX_BITS}. "
                f"Received: bits={bits!r}"
            )
        _check_one_of("output_scale", output_scale, OUTPUT_SCALES)
        super().__init__(*args, **kwargs)
        self._bits = int(bits)
        self.output_scale = output_scale
        self._mark: Any = None
        self._outputs: tuple = ()  # the shape of the outputs in the kernel
        self._is_real = False
        self.training_weights = training_weights

    @property
    def bits(self) -> int:
        """The number of bits of a weight."""
        return self._bits

    @property
    def training_weights(self) -> str:
        """The weights that the layer multiplies by in training."""
        return self._training_weights

    @training_weights.setter
    def training_weights(self, value):
        _check_one_of("training_weights", value, TRAINING_WEIGHTS)
        self._training_weights = value
        if self._mark is not None:
            self._mark.training_weights = value

    def mark_binary(self, kernel: Any, output_axes: int = 1) -> None:
        """Marks a kernel as binary, so that the optimizers recognize it.

        With `output_scale="channel"`, also adds the weight `scale`. Call this
        method after adding all other weights, so that `scale` is the last one.

        Args:
            kernel: Variable, trainable unless the layer is frozen. If the layer
                defines `rows`, the QUBO has one column per output. Otherwise it
                has a single column.
            output_axes: Integer. The number of trailing axes of the kernel that
                stand for outputs. Defaults to `1`.

        Raises:
            ValueError: If the kernel is not trainable, is empty, or belongs to
                another layer with other `bits`.
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
        self._outputs = tuple(kernel.shape[-output_axes:])
        columns = math.prod(self._outputs) if self._has_rows() else 1
        # A kernel that two layers share has only one mark.
        self._mark = statistics.mark_of(kernel) or statistics.BinaryKernel(
            kernel,
            math.prod(kernel.shape) // columns,
            columns,
            self.name,
            self.training_weights,
            self.bits,
        )
        if self._mark.bits != self.bits:
            raise ValueError(
                f"The binary layer `{self.name}` shares its kernel with "
                f"`{self._mark.name}`, so it must have the same `bits`, "
                f"{self._mark.bits}. Received: bits={self.bits}"
            )
        if self.output_scale == "channel":
            initial = 1.0 / math.sqrt(self._fan_in())
            self.scale = self.add_weight(
                name="scale",
                shape=(math.prod(self._outputs),),
                initializer=_keras.keras.initializers.Constant(initial),
            )

    @property
    def binary_kernel(self) -> tf.Tensor:
        """The levels of the weights, odd integers in the dtype of the kernel.

        With one bit, they are the weights +1 and -1. With more bits, the
        weights are the levels divided by the largest level, `2**bits - 1`.
        """
        kernel = tf.convert_to_tensor(self._marked_kernel())
        return levels(kernel, self.bits)

    def use_real_kernel(self) -> None:
        """Turns the layer into one with real weights and no output scale.

        The factor of `output_scale="channel"` remains, but starts at 1.

        Use it to measure how much accuracy binary weights cost, compared with a
        real network of the same shape. Call it before you compile the model.
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
        """Returns the rows that are multiplied by the flattened kernel.

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
                Every value except `False` means training. It is `None` in a
                custom loop that calls `model(x)`. Defaults to `None`.
        """
        kernel = tf.convert_to_tensor(self._marked_kernel())
        is_training = training is not False
        if self._is_real or (is_training and self.training_weights == "latent"):
            product = self._multiply(inputs, kernel)
        elif is_training and self.trainable:
            product = self._training_product(inputs, kernel)
        else:
            product = self._multiply(inputs, binarize(kernel, self.bits))
        return self._scaled(product)

    def _training_product(self, inputs, kernel):
        """Multiplies, and passes the rows to the observer, if there is one."""
        weights = binarize(kernel, self.bits)
        observer = self._mark.begin_pass()
        if observer is None:
            return self._multiply(inputs, weights)
        if not observer.changes_gradient:
            observer.add(self._observed_rows(inputs, weights, observer))
            return self._multiply(inputs, weights)
        weights = tf.stop_gradient(weights)
        return statistics.observed(
            observer,
            kernel,
            self._multiply(inputs, weights),
            lambda upstream: self._backward_rows(inputs, weights, upstream),
        )

    def _scaled(self, product):
        factor = self._output_factor()
        if self.output_scale == "channel":
            shape = self._outputs
            if self._is_channels_first():
                shape += (1,) * (len(product.shape) - 2)
            factor = tf.reshape(factor, shape)
        elif factor == 1.0:
            return product
        return product * tf.cast(factor, product.dtype)

    def _output_factor(self):
        """Returns the factor of the product, a scalar or one per output."""
        if self.output_scale == "channel":
            factor = tf.convert_to_tensor(self.scale)
            if self._is_real:
                factor *= math.sqrt(self._fan_in())
            return factor
        # The initializer already gives a real kernel the right scale.
        if self.output_scale is None or self._is_real:
            return 1.0
        return 1.0 / math.sqrt(self._fan_in())

    def _finished(self, outputs):
        """Adds the bias and applies the activation."""
        if self.bias is not None:
            bias = tf.cast(self.bias, outputs.dtype)
            if self._is_channels_first():
                bias = tf.reshape(bias, (-1,) + (1,) * (len(outputs.shape) - 2))
            outputs += bias
        return outputs if self.activation is None else self.activation(outputs)

    def _fan_in(self):
        return math.prod(self._mark.kernel.shape) // math.prod(self._outputs)

    def _is_channels_first(self):
        return getattr(self, "data_format", None) == "channels_first"

    def _multiply(self, inputs, weights):
        return self.binary_call(inputs, tf.cast(weights, self.compute_dtype))

    def _observed_rows(self, inputs, weights, observer):
        """Returns as many rows of a batch as the observer needs."""
        count = observer.max_rows
        if not self._has_rows():
            found = rows.jacobian_rows(self._multiply, inputs, weights)
            return found if count is None else rows.evenly_spaced(found, count)
        if count is None:
            return self.rows(inputs)
        return self.sample_rows(inputs, count)

    def sample_rows(self, inputs: Any, count: int) -> Any:
        """Returns a sample of the rows of the inputs.

        Define this method in a subclass if the rows need much more memory than
        the inputs. The default implementation computes all rows first.

        Args:
            inputs: The inputs of `binary_call`.
            count: Integer. The number of rows needed. The result may have more,
                or fewer if the inputs have fewer.

        Returns:
            A tensor of shape `(B, n)`.
        """
        return rows.evenly_spaced(self.rows(inputs), count)

    def _backward_rows(self, inputs, weights, upstream):
        if self._has_rows():
            return self.rows(inputs), self.row_gradients(upstream), None
        return (
            rows.jacobian_rows(self._multiply, inputs, weights),
            tf.reshape(upstream, (-1, 1)),
            rows.jacobian_kept(upstream),
        )

    def _has_rows(self):
        return type(self).rows is not BinaryLayer.rows

    def _marked_kernel(self):
        if self._mark is None:
            raise ValueError(
                f"The binary layer `{self.name}` has no binary kernel. "
                + (
                    "Its `build` must call `self.mark_binary(kernel)` with a "
                    "trainable variable. "
                    if self.built
                    else "It is not built. Call it, or build its model, first. "
                )
                + "Received: no kernel"
            )
        return self._mark.kernel

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["bits"] = self.bits
        config["output_scale"] = self.output_scale
        config["training_weights"] = self.training_weights
        return config


def _check_one_of(name, value, known):
    if value not in known:
        raise ValueError(
            f"`{name}` must be one of {known}. Received: {name}={value!r}"
        )
