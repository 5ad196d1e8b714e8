"""The optimizers that `QPSBGD` is compared with."""

import numbers
from typing import Any

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.bits import max_level
from keras_qpsbgd.layers.rounding import binarize
from keras_qpsbgd.layers.rounding import levels
from keras_qpsbgd.optimizers.base import BinaryOptimizer
from keras_qpsbgd.optimizers.base import LearningRate
from keras_qpsbgd.optimizers.base import OptimizerLike
from keras_qpsbgd.qubo import ops

Schedule = keras.optimizers.schedules.LearningRateSchedule


@_keras.register
class SignSGD(BinaryOptimizer):
    r"""signSGD, and Signum with momentum, for binary kernels.

    Every latent weight moves by the learning rate, in the direction given by
    the sign of its gradient. With the straight-through gradient \(g\) of a
    binary kernel \(\Omega\) and \(\mathrm{sign}(0) = 0\), the rule is

    $$\Omega \leftarrow \Omega - \alpha \, \mathrm{sign}(g) .$$

    With momentum \(\beta\) (Signum) it is

    $$m \leftarrow \beta m + (1 - \beta) g , \qquad
      \Omega \leftarrow \Omega - \alpha \, \mathrm{sign}(m) .$$

    All steps have the same size. In contrast, the step size of `QPSBGD` depends
    on the gradient, and the direction comes from a QUBO. `real_optimizer`
    updates every other variable.

    Args:
        learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule` instance, or a
            callable that takes no arguments and returns the value to use. The
            step size \(\alpha\) of the latent weights. Defaults to `0.01`.
        momentum: Float in [0, 1). The momentum \(\beta\). Defaults to `0.0`.
        real_optimizer: String, dictionary or `keras.optimizers.Optimizer`. The
            name, the configuration or an instance of the Keras optimizer for
            all variables that are not binary kernels. An instance is copied,
            and the copy is saved with the model. Defaults to `"adam"`.
        name: String (optional). The name of the optimizer. Defaults to
            `"sign_sgd"`.
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
        model.compile(kq.optimizers.SignSGD(0.02), "mse")
        model.fit(x, y, epochs=50, verbose=0)
        print(model.layers[-1].binary_kernel)  # the signs 1, -1, 1, 1
        ```

    Reference:
        - [Bernstein et al., 2018](https://arxiv.org/abs/1802.04434)
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        real_optimizer: OptimizerLike = "adam",
        name: str | None = "sign_sgd",
        **kwargs: Any,
    ) -> None:
        if not isinstance(momentum, numbers.Real) or not 0 <= momentum < 1:
            raise ValueError(
                "`momentum` must be a number in [0, 1). "
                f"Received: momentum={momentum!r}"
            )
        super().__init__(learning_rate, real_optimizer, name=name, **kwargs)
        self.momentum = float(momentum)
        self._means = {}

    def add_state(self, marks: Any) -> Any:
        if self.momentum:
            self._means = self.add_zeros(marks, "momentum")

    def update_kernel(
        self, kernel: Any, gradient: Any, learning_rate: Any
    ) -> Any:
        if self.momentum:
            mean = self._means[self.variable_key(kernel)]
            gradient = self.momentum * mean + (1 - self.momentum) * gradient
            mean.assign(gradient)
        kernel.assign_sub(learning_rate * tf.sign(gradient))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum}


@_keras.register
class ProxQuant(BinaryOptimizer):
    r"""ProxQuant, proximal gradient descent on real weights.

    ProxQuant minimizes the loss of the real kernel \(\theta\). A regularizer
    \(R(\theta) = \lVert \theta - \mathrm{sign}(\theta) \rVert_1\) of increasing
    strength \(\lambda_t\) pulls the kernel toward +1 and -1. The rule in step
    \(t = 1, 2, \dots\) is

    $$\theta \leftarrow \mathrm{prox}_{\alpha \lambda_t R}
      \left(\theta - \alpha \, \nabla L(\theta)\right) , \qquad
      \lambda_t = \lambda t ,$$

    $$\mathrm{prox}_{l R}(\theta) = \mathrm{sign}(\theta) +
      \mathrm{sign}(\theta - \mathrm{sign}(\theta)) \,
      \max(|\theta - \mathrm{sign}(\theta)| - l, \, 0) .$$

    For weights of several bits, \(\mathrm{sign}(\theta)\) becomes the nearest
    weight, `layer.binary_kernel / (2**bits - 1)`.

    Create the layers with `training_weights="latent"`. In training (every call
    in which `training` is not `False`) they then multiply by the real kernel.
    In `evaluate` and `predict` they multiply by the binary weights. The loss
    that `fit` reports is the loss of the real weights. The weights are binary
    at the end of training if \(\lambda_t\) has become large enough. The total
    distance that the regularizer pulls a weight is at most
    \(\alpha \sum_t \lambda_t\).

    `real_optimizer` updates every other variable.

    Args:
        learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule` instance, or a
            callable that takes no arguments and returns the value to use. The
            learning rate \(\alpha\). Layers that divide by the square root of
            their number of inputs have small gradients. For such layers, use a
            rate from 1 to 10 and a `regularization` for which
            \(\alpha \sum_t \lambda_t\) is between 0.5 and 2. A larger sum makes
            more weights binary before the end of training. The pages in
            `results` list the values that were tried in the experiments.
            Defaults to `0.01`.
        regularization: Float >= 0 or
            `keras.optimizers.schedules.LearningRateSchedule`. A float is the
            strength \(\lambda\). A schedule returns \(\lambda_t\) itself. Like
            a schedule of the learning rate, it is called with the number of
            previous updates, which is 0 in the first step. Defaults to `1e-4`.
        real_optimizer: String, dictionary or `keras.optimizers.Optimizer`. The
            name, the configuration or an instance of the Keras optimizer for
            all variables that are not binary kernels. An instance is copied,
            and the copy is saved with the model. Defaults to `"adam"`.
        name: String (optional). The name of the optimizer. Defaults to
            `"prox_quant"`.
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
        layer = kq.layers.BinaryDense(1, training_weights="latent")
        model = keras.Sequential([layer])
        model.compile(kq.optimizers.ProxQuant(0.1, 1e-3), "mse")
        model.fit(x, y, epochs=50, verbose=0)
        print(model.layers[-1].binary_kernel)  # the signs 1, -1, 1, 1
        ```

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
        distance = learning_rate * strength
        kernel.assign(prox(moved, distance, self.bits(kernel)))

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


def prox(theta, distance, bits=1):
    """Moves `theta` toward its binary weight, by at most `distance`."""
    weight = binarize(theta, bits)
    away = theta - weight
    return weight + tf.sign(away) * tf.maximum(tf.abs(away) - distance, 0.0)


@_keras.register
class Bop(BinaryOptimizer):
    r"""Bop, a binary optimizer without latent weights.

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
        self._means = self.add_zeros(marks, "mean")

    def update_kernel(
        self, kernel: Any, gradient: Any, learning_rate: Any
    ) -> Any:
        mean = self._means[self.variable_key(kernel)]
        average = (1 - learning_rate) * mean + learning_rate * gradient
        mean.assign(average)
        weights = tf.convert_to_tensor(kernel)
        bits = self.bits(kernel)
        limit = max_level(bits)
        direction = -ops.sign(average)
        found = levels(weights, bits)
        moved = (tf.abs(average) > self.threshold) & (
            found != direction * limit
        )
        if bits == 1:
            new = -weights
        else:
            new = (found + 2 * direction) / limit
        kernel.assign(tf.where(moved, new, weights))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}
