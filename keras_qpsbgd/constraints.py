"""Constraints on latent weights."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras

__all__ = ["WeightClip"]


@_keras.register
class WeightClip(_keras.keras.constraints.Constraint):
    """Clips latent weights to [-`clip_value`, `clip_value`].

    Only the sign of a latent weight is seen, so one that has moved far from
    zero would need many steps to change it. BinaryConnect is any Keras
    optimizer on binary layers with this constraint, and clips to [-1, 1].

    Args:
        clip_value: float > 0, the bound.

    Example:

    >>> clip = keras_qpsbgd.constraints.WeightClip(1.0)
    >>> layer = keras_qpsbgd.layers.BinaryDense(2, kernel_constraint=clip)

    Reference:
        - [Courbariaux et al., 2015](https://arxiv.org/abs/1511.00363)
    """

    def __init__(self, clip_value: float = 1.0) -> None:
        if not clip_value > 0:
            raise ValueError(
                "`clip_value` must be a positive number. "
                f"Received: clip_value={clip_value!r}"
            )
        self.clip_value = float(clip_value)

    def __call__(self, w: Any) -> Any:
        w = tf.convert_to_tensor(w)
        return tf.clip_by_value(w, -self.clip_value, self.clip_value)

    def get_config(self) -> dict[str, Any]:
        return {"clip_value": self.clip_value}
