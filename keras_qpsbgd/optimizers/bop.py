"""Bop, the binary optimizer without latent weights."""

import numbers
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.binary_optimizer import LearningRate
from keras_qpsbgd.optimizers.binary_optimizer import OptimizerLike


@_keras.register
class Bop(BinaryOptimizer):
    r"""Bop: a weight is flipped when its mean gradient asks for it.

    With \(g\) the straight-through gradient of a binary kernel and \(w\) an
    entry of it,

    $$m \leftarrow (1 - \gamma) m + \gamma g , \qquad
      w \leftarrow -w \;\text{ where }\; |m| > \tau \;\text{ and }\;
      \mathrm{sign}(m) = \mathrm{sign}(w) .$$

    There are no latent weights: the magnitudes in the kernel, from its
    initializer, mean nothing and stay as they are. (So the initializer must not
    give zeros, which have no other sign.) Every other variable is updated by
    `real_optimizer`.

    Args:
        learning_rate: float or schedule, the adaptivity rate \(\gamma\). It has
            Keras's name so that schedules and callbacks act on it; it weighs
            the gradient in the mean and is no size of a step.
        threshold: float >= 0, \(\tau\). Compare it with the gradients: the
            smaller it is, the more weights flip. At 0 a weight without a
            gradient stays, since the mean must be above it.
        real_optimizer: a Keras optimizer, its name or configuration, for all
            variables that are not binary kernels. Saved with the model.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`. `weight_decay` and
            gradient clipping reach real variables only.

    Example:

    >>> model = keras.Sequential([keras_qpsbgd.layers.BinaryDense(1)])
    >>> model.compile(keras_qpsbgd.optimizers.Bop(1e-3, 1e-6), "mse")

    Reference:
        - [Helwegen et al., 2019](https://arxiv.org/abs/1906.02107)
    """

    def __init__(
        self,
        learning_rate: LearningRate = 1e-4,
        threshold: float = 1e-8,
        real_optimizer: OptimizerLike = "adam",
        name: str | None = "bop",
        **kwargs: Any,
    ) -> None:
        if not isinstance(threshold, numbers.Real) or not threshold >= 0:
            raise ValueError(
                "`threshold` must be a number >= 0. "
                f"Received: threshold={threshold!r}"
            )
        super().__init__(learning_rate, real_optimizer, name=name, **kwargs)
        self.threshold = float(threshold)
        self._means = {}

    def add_state(self, marks: Any) -> Any:
        self._means = self.add_slots(marks, "mean")

    def update_kernel(
        self, kernel: Any, gradient: Any, learning_rate: Any
    ) -> Any:
        mean = self._means[self.variable_key(kernel)]
        average = (1 - learning_rate) * mean + learning_rate * gradient
        mean.assign(average)
        weights = tf.convert_to_tensor(kernel)
        flipped = (tf.abs(average) > self.threshold) & (
            ops.sign(average) == ops.sign(weights)
        )
        kernel.assign(tf.where(flipped, -weights, weights))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}
