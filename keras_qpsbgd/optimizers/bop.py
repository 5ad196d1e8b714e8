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
    r"""Bop, the binary optimizer.

    Bop flips a weight if the moving average of its gradient exceeds a
    threshold. With the straight-through gradient \(g\) of an entry \(w\) of a
    binary kernel, the rule is

    $$m \leftarrow (1 - \gamma) m + \gamma g , \qquad
      w \leftarrow -w \;\text{ where }\; |m| > \tau \;\text{ and }\;
      \mathrm{sign}(m) = \mathrm{sign}(w) .$$

    A weight of several bits moves by one level in the direction of
    \(-\mathrm{sign}(m)\) where \(|m| > \tau\), unless it is at the last level.

    There are no latent weights. The magnitudes in the kernel come from its
    initializer, have no meaning and do not change. The initializer must not
    create zeros, because negating a zero does not change its sign.
    `real_optimizer` updates every other variable.

    Args:
        learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule` instance, or a
            callable that takes no arguments and returns the value to use. The
            adaptivity rate \(\gamma\), which weights the gradient in the moving
            average. It is not a step size, but it has the name that Keras uses,
            so schedules and callbacks work. Defaults to `1e-4`.
        threshold: Float >= 0. The threshold \(\tau\). Choose it relative to the
            gradients. The smaller it is, the more weights flip. With `0`,
            weights whose average gradient is zero still do not flip. Defaults
            to `1e-8`.
        real_optimizer: String, dictionary or `keras.optimizers.Optimizer`. The
            name, the configuration or an instance of the Keras optimizer for
            all variables that are not binary kernels. An instance is copied,
            and the copy is saved with the model. Defaults to `"adam"`.
        name: String (optional). The name of the optimizer. Defaults to `"bop"`.
        **kwargs: Arguments of `keras.optimizers.Optimizer`, such as `use_ema`.
            `weight_decay` and the arguments for gradient clipping are passed on
            to `real_optimizer`, so they apply to real variables only.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential([kq.layers.BinaryDense(1)])
        model.compile(kq.optimizers.Bop(1e-3, 1e-6), "mse")
        model.fit(x, y, epochs=50, verbose=0)
        print(model.layers[-1].binary_kernel)  # the signs 1, -1, 1, 1
        ```

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
        bits = self.bits(kernel)
        limit = ops.max_level(bits)
        direction = -ops.sign(average)
        levels = ops.levels(weights, bits)
        moved = (tf.abs(average) > self.threshold) & (
            levels != direction * limit
        )
        if bits == 1:
            new = -weights
        else:
            new = (levels + 2 * direction) / limit
        kernel.assign(tf.where(moved, new, weights))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}
