"""Constraints on latent weights."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras

__all__ = ["WeightClip"]


@_keras.register
class WeightClip(_keras.keras.constraints.Constraint):
    """Clips latent weights to the range from `-clip_value` to `clip_value`.

    A binary layer rounds its latent weights to +1 and -1, or to levels between
    them. If a latent weight is far outside this range, it takes many steps to
    change the rounded weight. For BinaryConnect, use this constraint with
    `clip_value=1.0` in binary layers, and train with any Keras optimizer.

    Args:
        clip_value: Float > 0. The largest absolute value of a latent weight.
            Defaults to `1.0`.

    Raises:
        ValueError: If `clip_value` is not positive.

    Example:
        ```python
        from tensorflow import keras

        import keras_qpsbgd as kq

        clip = kq.constraints.WeightClip(1.0)
        layer = kq.layers.BinaryDense(2, kernel_constraint=clip)
        model = keras.Sequential([layer])
        model.compile("adam", "mse")  # BinaryConnect
        ```

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
