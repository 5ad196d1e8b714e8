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
    r"""signSGD: every latent weight moves by the learning rate.

    With \(g\) the straight-through gradient of a binary kernel \(\Omega\) and
    \(\mathrm{sign}(0) = 0\),

    $$\Omega \leftarrow \Omega - \alpha \, \mathrm{sign}(g) ,$$

    and with momentum \(\beta\) (Signum)

    $$m \leftarrow \beta m + (1 - \beta) g , \qquad
      \Omega \leftarrow \Omega - \alpha \, \mathrm{sign}(m) .$$

    Its steps have the size of those of `QPSBGD`, whose directions come from a
    QUBO instead. Every other variable is updated by `real_optimizer`.

    Args:
        learning_rate: float or schedule, \(\alpha\).
        momentum: float in [0, 1), \(\beta\).
        real_optimizer: a Keras optimizer, its name or configuration, for all
            variables that are not binary kernels. Saved with the model.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`. `weight_decay` and
            gradient clipping reach real variables only.

    Example:

    >>> model = keras.Sequential([keras_qpsbgd.layers.BinaryDense(1)])
    >>> model.compile(keras_qpsbgd.optimizers.SignSGD(0.001), "mse")

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
