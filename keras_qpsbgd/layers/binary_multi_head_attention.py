"""Multi-head attention layers with binary or frozen projections."""

from typing import Any

from keras_qpsbgd import _keras
from keras_qpsbgd.layers.binary_einsum_dense import BinaryEinsumDense


@_keras.register
class BinaryMultiHeadAttention(_keras.keras.layers.MultiHeadAttention):
    """Multi-head attention whose projections have binary weights.

    The layer is a `keras.layers.MultiHeadAttention` in which the projections of
    query, key, value and output are `BinaryEinsumDense` layers. Each of them
    has its own QUBO. The attention itself is unchanged.

    Args:
        *args: Positional arguments of `MultiHeadAttention`, such as `num_heads`
            and `key_dim`.
        bits: Integer from 1 to 4. The number of bits of a weight; see
            `BinaryLayer`. Defaults to `1`.
        output_scale: `"fan_in"`, `"channel"` or `None`, see
            `BinaryEinsumDense`. Defaults to `"fan_in"`.
        training_weights: `"binary"` or `"latent"`, see `BinaryLayer`. Defaults
            to `"binary"`.
        **kwargs: Keyword arguments of `MultiHeadAttention`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        import numpy as np

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(4, 10, 16))
        layer = kq.layers.BinaryMultiHeadAttention(2, 8, bits=2)
        print(layer(x, x).shape)  # (4, 10, 16)
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
        arguments: dict[str, Any] = {
            "bits": bits,
            "output_scale": output_scale,
            "training_weights": training_weights,
        }
        BinaryEinsumDense("ab,bc->ac", 1, **arguments)  # checks the arguments
        super().__init__(*args, **kwargs)
        self._binary_arguments = arguments

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras creates the projections itself, in a method that differs between
        # its versions. Replace them as soon as they are assigned, before they
        # are tracked and built. This needs no private Keras names.
        is_dense = isinstance(value, _keras.keras.layers.EinsumDense)
        if is_dense and not isinstance(value, BinaryEinsumDense):
            config = {**value.get_config(), **self._binary_arguments}
            value = BinaryEinsumDense.from_config(config)
        super().__setattr__(name, value)

    @property
    def projections(self) -> list[BinaryEinsumDense]:
        """The binary projections, in the order in which Keras creates them.

        These are the projections of query, key, value and output. The list is
        empty until the layer is built.
        """
        layers = _keras.all_layers(self)
        return [each for each in layers if isinstance(each, BinaryEinsumDense)]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._binary_arguments}


@_keras.register
class FrozenMultiHeadAttention(_keras.keras.layers.MultiHeadAttention):
    """A `keras.layers.MultiHeadAttention` frozen by `quantize`.

    The layer has the same outputs as `keras.layers.MultiHeadAttention`. If it
    is saved with `trainable = False`, it is still frozen after loading. In
    Keras 3, the projections of a loaded `MultiHeadAttention` are trainable,
    because `build` creates them without this flag.
    """

    if _keras.KERAS_3:

        def build(
            self, query_shape: Any, value_shape: Any, key_shape: Any = None
        ) -> None:
            super().build(query_shape, value_shape, key_shape)
            for part in _keras.all_layers(self):
                part.trainable = self.trainable
