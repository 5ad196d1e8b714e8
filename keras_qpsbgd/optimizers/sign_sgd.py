"""signSGD and Signum for binary kernels."""

import numbers
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.binary_optimizer import LearningRate
from keras_qpsbgd.optimizers.binary_optimizer import OptimizerLike


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

    The steps have the same size as those of `QPSBGD`, which takes their
    directions from a QUBO instead. `real_optimizer` updates every other
    variable.

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
            self._means = self.add_slots(marks, "momentum")

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
