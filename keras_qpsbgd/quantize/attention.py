"""An attention layer that stays frozen after it is saved and loaded."""

from typing import Any

from tensorflow import keras

from keras_qpsbgd import _keras


@_keras.register
class FrozenMultiHeadAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` that `quantize` has frozen.

    The layer computes what `keras.layers.MultiHeadAttention` computes. If it is
    saved with `trainable = False`, it is still frozen after loading. Keras 3
    would train the projections of a loaded `MultiHeadAttention`, because it
    creates them in `build` without this flag.
    """

    if _keras.KERAS_3:

        def build(
            self, query_shape: Any, value_shape: Any, key_shape: Any = None
        ) -> None:
            super().build(query_shape, value_shape, key_shape)
            for part in _keras.all_layers(self):
                part.trainable = self.trainable
