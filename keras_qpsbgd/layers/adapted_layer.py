"""Overrides of Keras layer methods that all binary layers share."""

from typing import Any

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import activations
from keras_qpsbgd.qubo.ops import hard_tanh


class AdaptedLayer(_keras.keras.layers.Layer):
    """Base class of `BinaryLayer`.

    It disables autocasting of the weights, saves the weight `scale`, and
    rejects features of Keras 3 layers that binary layers do not support.
    """

    output_scale: str | None = None

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        # Round to levels before the cast. In float16, a small negative weight
        # would become zero, with the sign +1.
        kwargs.setdefault(_keras.AUTOCAST, False)
        return super().add_weight(*args, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        # The methods of Keras 3 layers save only kernel and bias.
        if self.output_scale == "channel":
            _keras.keras.layers.Layer.save_own_variables(self, store)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        if self.output_scale == "channel":
            _keras.keras.layers.Layer.load_own_variables(self, store)
        else:
            super().load_own_variables(store)

    def _reject_adapters(self):
        for name in ("lora_rank", "quantization_config"):
            value = getattr(self, name, None)
            if value:
                raise ValueError(
                    f"`{type(self).__name__}` does not support `{name}`, "
                    "because its weights already have few bits. "
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
        """Raises a `ValueError`, because the weights are quantized already."""
        raise ValueError(
            f"`{type(self).__name__}` cannot be quantized, because its weights "
            "already have few bits. Set the argument `bits`. "
            f"Received: mode={mode}"
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        activation = getattr(self, "activation", None)
        if activation in (hard_tanh, activations.binary):
            # Under legacy Keras, `hard_tanh` comes from this package. Legacy
            # Keras identifies functions in HDF5 files by name only.
            config["activation"] = activation.__name__
        return config
