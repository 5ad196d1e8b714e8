"""Features of Keras 3 layers that binary layers do not support."""

from typing import Any


class NoAdapters:
    """Mixin class of layers without LoRA and without Keras's quantization."""

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
