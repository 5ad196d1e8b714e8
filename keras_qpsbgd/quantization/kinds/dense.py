"""Kinds of `Dense`, `EinsumDense` and graph convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import adjacency
from keras_qpsbgd.layers import equations
from keras_qpsbgd.layers.binary_dense import BinaryDense
from keras_qpsbgd.layers.binary_einsum_dense import BinaryEinsumDense
from keras_qpsbgd.layers.binary_graph_conv import BinaryGraphConv
from keras_qpsbgd.layers.rows import to_dense


class DenseKind:
    """`Dense`, and the base class of the other kinds.

    Attributes:
        stock: Class of the Keras layer that computes the same as `binary`.
        binary: Class of the binary layer, or `None` if there is none.
    """

    stock: Any = keras.layers.Dense
    binary: Any = BinaryDense

    def problem(self, layer: Any) -> str | None:
        """Returns why a layer of this class is not supported, or `None`."""
        if getattr(layer, "lora_enabled", False):
            return "LoRA weights"
        if getattr(layer, "quantization_mode", None) is not None:
            return "quantized by Keras"
        return None

    def variable(self, layer: Any) -> Any:
        """Returns the variable of the kernel."""
        return layer.kernel

    def kernel(self, layer: Any) -> np.ndarray:
        """Returns the kernel as a float64 array of shape `(n, m)`.

        A kernel with groups has the shape `(groups, n, m)`.
        """
        kernel = self.variable(layer).numpy().astype(np.float64)
        return kernel.reshape(-1, kernel.shape[-1])

    def set_kernel(self, layer: Any, kernel: np.ndarray) -> None:
        """Assigns a kernel in the shape that `kernel` returns."""
        variable = self.variable(layer)
        variable.assign(kernel.reshape(variable.shape))

    def has_bias(self, layer: Any) -> bool:
        """Returns whether the layer has a bias for each of its m outputs."""
        return bool(layer.use_bias)

    def bias(self, layer: Any) -> Any:
        """Returns the variable of the bias."""
        return layer.bias

    def change_bias(self, layer: Any, change: np.ndarray) -> None:
        """Adds an array, one entry per output, to the bias, if there is one."""
        if self.has_bias(layer):
            variable = self.bias(layer)
            bias = variable.numpy()
            new = bias.astype(np.float64) + change.reshape(bias.shape)
            variable.assign(new.astype(bias.dtype))

    def weights(self, layer: Any) -> list[Any]:
        """Returns the kernel and the weights that are counted with it."""
        return layer.weights

    def rows(
        self,
        layer: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        count: int | None = None,
        seed: int = 0,
    ) -> Iterator[np.ndarray]:
        """Yields the rows of one call of the layer, in pieces.

        Args:
            layer: The layer.
            args: Positional arguments of the call, eager tensors.
            kwargs: Keyword arguments of the call.
            count: Integer (optional). The maximum number of rows, which are
                chosen at random. Defaults to `None`, which yields all rows.
            seed: Integer or list of integers. The same seed chooses the same
                rows. Defaults to `0`.

        Returns:
            An iterator over arrays of shape `(B, n)`, or `(B, groups, n)` if
            the kernel has groups.
        """
        del layer
        inputs = first(args, kwargs)
        if isinstance(inputs, tf.SparseTensor):
            inputs = to_dense(inputs)
        yield from some(inputs.numpy(), count, seed)

    def can_quantize(self, layer: Any) -> bool:
        """Returns whether the binary layer can replace a Keras layer."""
        del layer
        return self.binary is not None

    def quantized(self, layer: Any, bits: int) -> Any:
        """Returns a binary layer with the settings of a Keras layer."""
        config = layer.get_config()
        # Absent in some versions of Keras, and `None` for supported layers.
        config.pop("quantization_config", None)
        config.pop("lora_rank", None)
        config.pop("lora_alpha", None)
        return self.binary.from_config(with_bits(config, bits))

    def stock_problem(self, layer: Any) -> str | None:
        """Returns why Keras layers cannot replace a layer, or `None`."""
        del layer
        return None

    def is_one_stock_layer(self, layer: Any) -> bool:
        """Returns whether one Keras layer can replace a binary layer."""
        del layer
        return True

    def stock_outputs(
        self, layer: Any, config: dict[str, Any], inputs: Any
    ) -> tuple[Any, Any]:
        """Computes the outputs of a binary layer with Keras layers.

        Args:
            layer: Binary layer of this kind.
            config: Dictionary. The configuration of the Keras layer.
            inputs: Symbolic inputs.

        Returns:
            A tuple `(new, outputs)` of the layer with the weights and the
            symbolic outputs.
        """
        del layer
        new = self.stock.from_config(config)
        return new, new(inputs)


class GraphConvKind(DenseKind):
    """`GCNConv` of Spektral, whose rows are those of A X.

    With Keras layers, it is the product A X followed by a `Dense` layer.
    """

    binary = BinaryGraphConv

    def rows(self, layer, args, kwargs, count=None, seed=0):
        x, a = first(args, kwargs)[:2]
        if isinstance(x, tf.SparseTensor):
            x = to_dense(x)
        rows = adjacency.propagate(tf.cast(a, x.dtype), x)
        mask = kwargs.get("mask")
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        rows = tf.reshape(rows, (-1, rows.shape[-1]))
        if mask is not None:
            # The outputs of masked nodes are zero, whatever the kernel is.
            rows = tf.boolean_mask(rows, tf.reshape(mask, (-1,)) != 0)
        yield from some(rows.numpy(), count, seed)

    def stock_problem(self, layer):
        x, a = tf.nest.flatten(_keras.input_tensors(layer))[:2]
        if _keras.has_mask(x):
            return "node mask"
        if _keras.is_sparse(x):
            return "sparse node features"
        if _keras.is_sparse(a) and len(x.shape) == 3:
            return "sparse adjacency matrix in mixed or batch mode"
        return None

    def is_one_stock_layer(self, layer):
        return False

    def stock_outputs(self, layer, config, inputs):
        dense = keras.layers.Dense(
            layer.channels,
            activation=config["activation"],
            use_bias=layer.use_bias,
            dtype=config["dtype"],
        )
        return dense, dense(_keras.symbolic_matmul(inputs[1], inputs[0]))


class EinsumDenseKind(DenseKind):
    """`EinsumDense`."""

    stock = keras.layers.EinsumDense
    binary = BinaryEinsumDense

    def problem(self, layer):
        found = super().problem(layer)
        return found or equations.problem(layer.equation)

    def kernel(self, layer):
        return equations.to_matrix(
            layer.equation, layer.kernel.numpy().astype(np.float64)
        )

    def set_kernel(self, layer, kernel):
        shape = tuple(layer.kernel.shape)
        layer.kernel.assign(
            equations.from_matrix(layer.equation, kernel, shape)
        )

    def can_quantize(self, layer):
        return equations.num_output_axes(layer.equation) is not None

    def has_bias(self, layer):
        return equations.bias_is_per_output(layer.equation, layer.bias_axes)

    def rows(self, layer, args, kwargs, count=None, seed=0):
        rows = equations.rows(layer.equation, first(args, kwargs))
        yield from some(rows.numpy(), count, seed)


def with_bits(config: dict[str, Any], bits: int) -> dict[str, Any]:
    """Returns the configuration of a binary layer for quantized weights.

    The regularizer and the constraint of a float kernel are not suited to
    latent weights, which have another scale. They would change the levels.
    """
    return {
        **config,
        "bits": bits,
        "output_scale": "channel",
        "kernel_regularizer": None,
        "kernel_constraint": None,
    }


def first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the inputs of a call."""
    return args[0] if args else next(iter(kwargs.values()))


def some(
    values: np.ndarray, count: int | None, seed: int
) -> Iterator[np.ndarray]:
    """Yields all or some of the rows on the last axis of an array."""
    rows = values.reshape(-1, values.shape[-1])
    chosen = choose(len(rows), count, seed)
    yield rows if len(chosen) == len(rows) else rows[chosen]


def choose(total: int, count: int | None, seed: int) -> np.ndarray:
    """Returns the indices of all rows, or of `count` random ones, in order."""
    if count is None or count >= total:
        return np.arange(total)
    random = np.random.default_rng(seed)
    return np.sort(random.choice(total, count, replace=False))
