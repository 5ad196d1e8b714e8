"""Keras metrics of binary layers."""

import warnings
import weakref
from typing import Any

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers.binary_layer import BinaryLayer

__all__ = ["FlipRatio"]


@_keras.register
class FlipRatio(keras.metrics.Metric):
    """Computes the fraction of binary weights that a training step changes.

    After each step, the metric compares the binary weights with those before
    the step. The result is the fraction of weights that changed their sign (or,
    with several bits per weight, their level), averaged over the steps of the
    epoch. It does not depend on the targets or the predictions. The metric
    works with every optimizer, `steps_per_execution`, XLA, mixed precision and
    `MirroredStrategy`.

    - `evaluate` changes no weights, so the metric is zero there and in the
      `val_...` logs.
    - With gradient accumulation, a step that only accumulates changes no weight
      and counts as zero.
    - The comparison restarts when Keras resets its metrics, at the start of
      every epoch. In a loop of `train_on_batch`, call `model.reset_metrics()`
      after you change weights yourself. In a custom loop, call `reset_state()`
      before the first step and `update_state()` after each step.
    - With `run_eagerly=True`, Keras creates metrics after the first step, so
      this step is not counted. Call `reset_state()` before `fit` to count it.
    - A saved model does not store which layer the metric belongs to. After
      loading, the metric returns `nan` and warns. To continue with a new
      metric, compile the model again:
      `model.compile(model.optimizer, model.loss, metrics=[...])` keeps the
      state of the optimizer.

    Args:
        layer: A binary layer of the model. `None` means that the layer is
            unknown, as after loading.
        name: String (optional). Defaults to the name of the layer followed by
            `"_flip_ratio"`, or to `"flip_ratio"` if `layer` is `None`.
        dtype: The dtype of the result (optional). Defaults to `None`, which
            means `keras.backend.floatx()`.

    Raises:
        ValueError: If `layer` is not a binary layer.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        layer = kq.layers.BinaryDense(1, name="binary")
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(
            kq.QPSBGD(0.02), "mse", metrics=[kq.metrics.FlipRatio(layer)]
        )
        history = model.fit(x, y, epochs=5, verbose=0)
        print(history.history["binary_flip_ratio"])
        ```
    """

    def __init__(
        self,
        layer: BinaryLayer | None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        if layer is not None and not isinstance(layer, BinaryLayer):
            raise ValueError(
                "`layer` must be a layer of `keras_qpsbgd.layers`. "
                f"Received: layer={layer!r}"
            )
        if name is None:
            name = "flip_ratio" if layer is None else f"{layer.name}_flip_ratio"
        super().__init__(name=name, dtype=dtype)
        # Use a weak reference. Otherwise, Keras would track the layer as part
        # of the metric and save its weights with it.
        self._layer = (lambda: None) if layer is None else weakref.ref(layer)
        self._total = self.add_weight(name="total", initializer="zeros")
        self._steps = self.add_weight(name="steps", initializer="zeros")
        self._levels: Any = None  # `binary_kernel` after the last step

    def update_state(
        self, y_true: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> None:
        """Counts the weights that changed since the last call or reset.

        Args:
            y_true: Ignored.
            y_pred: Ignored.
            sample_weight: Ignored.
        """
        levels = self._current()
        if levels is None:
            warnings.warn(
                f"The metric `{self.name}` is nan, because its layer is "
                "unknown or not built. If you loaded the model, compile it "
                "again with a new metric.",
                stacklevel=2,
            )
            return
        if self._levels is None:
            self._remember_levels()
            if tf.executing_eagerly():
                return  # the weights before this step are unknown
            # During tracing, the weights still have their values from before
            # the step.
        changed = tf.convert_to_tensor(self._levels) != levels
        share = tf.reduce_mean(tf.cast(changed, self._total.dtype))
        self._total.assign(self._total + share)
        self._steps.assign(self._steps + 1)
        self._levels.assign(levels)

    def result(self) -> Any:
        """Returns the mean fraction of changed weights, or `nan`."""
        total = tf.convert_to_tensor(self._total)
        return total / tf.convert_to_tensor(self._steps)

    def reset_state(self) -> None:
        """Starts a new average from the current weights."""
        self._total.assign(tf.zeros_like(self._total))
        self._steps.assign(tf.zeros_like(self._steps))
        self._remember_levels()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layer": None}

    def _current(self):
        """Returns the levels of the weights, or `None` if they do not exist."""
        layer = self._layer()
        if layer is None or not layer.built:
            return None
        return tf.cast(layer.binary_kernel, tf.int8)

    def _remember_levels(self):
        with tf.init_scope():
            levels = self._current()
            if levels is None:
                return
            if self._levels is None:
                self._levels = _keras.add_metric_state(
                    self,
                    "levels",
                    lambda shape, dtype=None: self._current(),
                    tuple(levels.shape),
                    "int8",
                )
            else:
                self._levels.assign(levels)
