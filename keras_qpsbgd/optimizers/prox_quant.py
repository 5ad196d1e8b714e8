"""ProxQuant: real weights that a regulariser draws to +1 and -1."""

import numbers
from typing import Any

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.binary_optimizer import LearningRate
from keras_qpsbgd.optimizers.binary_optimizer import OptimizerLike

Schedule = keras.optimizers.schedules.LearningRateSchedule


@_keras.register
class ProxQuant(BinaryOptimizer):
    r"""ProxQuant: proximal gradient steps on the real weights.

    The loss is that of the real kernel \(\theta\), and a regulariser
    \(R(\theta) = \lVert \theta - \mathrm{sign}(\theta) \rVert_1\) of growing
    strength \(\lambda_t\) pulls it to +1 and -1. In step \(t = 1, 2, \dots\)

    $$\theta \leftarrow \mathrm{prox}_{\alpha \lambda_t R}
      \left(\theta - \alpha \, \nabla L(\theta)\right) , \qquad
      \lambda_t = \lambda t ,$$

    $$\mathrm{prox}_{l R}(\theta) = \mathrm{sign}(\theta) +
      \mathrm{sign}(\theta - \mathrm{sign}(\theta)) \,
      \max(|\theta - \mathrm{sign}(\theta)| - l, \, 0) .$$

    The layers must be made with `training_weights="latent"`: they multiply by
    the real kernel in training, which is every call whose `training` is not
    `False`, and by its sign in `evaluate` and `predict`. The loss that `fit`
    shows is that of the real weights. They are binary at the end if
    \(\lambda_t\) has become strong enough: \(\alpha \sum_t \lambda_t\) is the
    total distance that a weight is pulled.

    Every other variable is updated by `real_optimizer`.

    Args:
        learning_rate: float or schedule, \(\alpha\). Gradients of layers that
            divide by the square root of their inputs are small: rates of 1 to
            10 are usual there, with a `regularization` such that
            \(\alpha \sum_t \lambda_t\) is 0.5 to 2 (more makes more weights
            binary before the end). What `reproduce` tries is in RESULTS.md.
        regularization: float >= 0, \(\lambda\), or a Keras
            `LearningRateSchedule` that gives \(\lambda_t\) itself. As with
            learning rates it is asked with the number of updates made before,
            which is 0 in the first step.
        real_optimizer: a Keras optimizer, its name or configuration, for all
            variables that are not binary kernels. Saved with the model.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`. `weight_decay` and
            gradient clipping reach real variables only.

    Example:

    >>> layer = keras_qpsbgd.layers.BinaryDense(1, training_weights="latent")
    >>> model = keras.Sequential([layer])
    >>> optimizer = keras_qpsbgd.optimizers.ProxQuant(0.1, 1e-3)
    >>> model.compile(optimizer, "mse")

    Reference:
        - [Bai, Wang, Liberty, 2019](https://arxiv.org/abs/1810.00861)
    """

    training_weights = "latent"

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        regularization: float = 1e-4,
        real_optimizer: OptimizerLike = "adam",
        name: str | None = "prox_quant",
        **kwargs: Any,
    ) -> None:
        if isinstance(regularization, dict):
            regularization = keras.optimizers.schedules.deserialize(
                regularization
            )
        if not isinstance(regularization, Schedule):
            if (
                not isinstance(regularization, numbers.Real)
                or not regularization >= 0
            ):
                raise ValueError(
                    "`regularization` must be a number >= 0 or a "
                    "`LearningRateSchedule`. "
                    f"Received: regularization={regularization!r}"
                )
            regularization = float(regularization)
        super().__init__(
            learning_rate,
            real_optimizer,
            name=name,
            **kwargs,
        )
        self.regularization = regularization

    def update_kernel(
        self, kernel: Any, gradient: Any, learning_rate: Any
    ) -> Any:
        strength = tf.cast(self._strength(), kernel.dtype)
        moved = kernel - learning_rate * gradient
        kernel.assign(prox(moved, learning_rate * strength))

    def _strength(self):
        if isinstance(self.regularization, Schedule):
            return self.regularization(self.iterations)
        step = tf.cast(self.iterations, tf.float32) + 1.0
        return self.regularization * step

    def get_config(self) -> dict[str, Any]:
        regularization = self.regularization
        if isinstance(regularization, Schedule):
            regularization = keras.optimizers.schedules.serialize(
                regularization
            )
        return {**super().get_config(), "regularization": regularization}


def prox(theta, distance):
    """Moves `theta` by `distance` towards its sign, and not past it."""
    sign = ops.sign(theta)
    away = theta - sign
    return sign + tf.sign(away) * tf.maximum(tf.abs(away) - distance, 0.0)
