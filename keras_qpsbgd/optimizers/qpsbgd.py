"""QP-SBGD as a Keras optimizer."""

import numbers
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import rules
from keras_qpsbgd.optimizers.binary_optimizer import LearningRate
from keras_qpsbgd.optimizers.binary_optimizer import OptimizerLike
from keras_qpsbgd.optimizers.qubo_optimizer import QuboOptimizer
from keras_qpsbgd.qubo import ops

RULES = ("averaged", "paper")
# Layers with more inputs than this have several blocks of couplings.
WIDEST = {"averaged": 144, "paper": 8192}
# Arguments of earlier versions, and what to use instead.
REMOVED = {
    "gradient_scale": '`kappa`, or `rule="paper"` in place of "raw"',
    "update": "`keras_qpsbgd.fit_columns` for few solver calls",
    "latent": "`keras_qpsbgd.fit_columns`",
    "damping": "the argument `dampings` of `keras_qpsbgd.fit_columns`",
    "curvature": "`keras_qpsbgd.fit_columns`",
    "mean_curvature": "`keras_qpsbgd.fit_columns`",
    "reads": "`momentum`",
    "read_temperature": "`momentum`",
    "hold": "a lower `learning_rate`",
    "real_layers": "`max_variables`",
}


@_keras.register
class QPSBGD(QuboOptimizer):
    r"""Quantum projected stochastic binary-gradient descent.

    In each step, this optimizer maps the gradient of every binary kernel onto
    binary variables. It solves one QUBO per column \(j\) of the kernel,

    $$g_j = \mathrm{argmin}_{g \in \{-1,+1\}^n} \; g^T C g
      - 2 \kappa f \, U_j^T g , \qquad U = M / \sqrt{V} ,$$

    and moves the latent weights against the solution:

    $$\Omega \leftarrow \Omega - \alpha \rho \, g , \qquad
      \rho = \mathrm{rms}(U) .$$

    \(M\) is the moving average of the gradient (`momentum`), which looks one
    step ahead as in Nesterov's method. \(V\) is the moving average of the mean
    of its square over about a thousand steps. So \(\rho\) is 1 if all gradients
    agree, and small if they are noise or have become small. \(C\) is the moving
    average of the second moments of the layer's inputs (`covariance_decay`),
    and \(f\) is the root mean square of the force that \(C\) exerts on a
    variable in a random state. Without \(C\), the solution is the sign of
    \(M\), as in Signum.

    A step leaves a weight unchanged if its column has no gradient or its input
    was never active. A solution that points uphill is negated. `real_optimizer`
    updates every other variable, such as biases, batch normalization and an
    encoder. If a gradient is not finite, the whole update is skipped.

    The gradient is the ordinary straight-through gradient, so you can clip,
    add, scale, store or accumulate gradients as with any Keras optimizer. The
    layers compute \(C\) in training passes (all calls in which `training` is
    not `False`).

    Args:
        learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule` instance, or a
            callable that takes no arguments and returns the value to use. The
            distance that the latent weights move in a step if all gradients
            agree. Use a schedule that decays to zero. The best rate does not
            depend on the width of the layers. Deep networks without
            normalization prefer about `0.005`. Set the rate of the other
            variables with `optimizer.real_optimizer.learning_rate`; with batch
            normalization, about `0.01`. Defaults to `0.01`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. The solver of the QUBOs. A string is the name of a
            backend (see `keras_qpsbgd.backends.available()`). A dictionary is a
            configuration, such as `{"name": "gurobi", "work_limit": 1.0}`.
            Defaults to `"native"`.
        kappa: Float. The ratio of the force of the gradient on a variable to
            the force of the couplings, if all gradients agree. With noisy
            gradients, the ratio is smaller. It does not depend on the scale of
            the loss or the inputs. Values from 10 to 30 work everywhere. Try
            `30` with few labels, as on graphs. Defaults to `10.0`.
        momentum: Float in [0, 1). The decay of the moving average of the
            gradient. Defaults to `0.9`.
        covariance_decay: Float in [0, 1). The decay of the moving average of
            the second moments. Defaults to `0.9`.
        real_optimizer: String, dictionary or `keras.optimizers.Optimizer`. The
            name, the configuration or an instance of the Keras optimizer for
            all variables that are not binary kernels. An instance is copied,
            and the copy is saved with the model. Defaults to `"adam"`.
        max_variables: Integer (optional). Layers with more inputs than this are
            trained by `real_optimizer`, with their straight-through gradients.
            Defaults to `None`, which trains all binary layers with QUBOs.
        seed: Integer (optional). Makes a run reproducible bit for bit. `None`
            draws a random seed, which is saved with the state of the optimizer.
            Defaults to `None`.
        on_failure: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. What to do if a solve fails. The attribute
            `last_error` holds the latest exception. Defaults to `"raise"`.

            - `"raise"`: ends training with an error whose message contains
              `SolverError`. All variables stay unchanged, except for moving
              statistics of the forward pass, such as \(C\). With
              `rule="paper"`, gradient accumulation starts again.
            - `"hold"`: continues training without updating the layer. The
              moving average of its gradient is updated.
            - A backend: solves the QUBO with this backend instead. If it also
              fails, training ends as with `"raise"`.
        rule: String. `"averaged"` is the rule above. `"paper"` is the rule as
            printed in the paper, for reproducing its results: the QUBO of
            Definition 1, built from the rows and gradients of a single update,
            with each row divided by its squared norm. With a mean loss it
            barely learns, and it is not suited to convolutions. It ignores
            `kappa`, `momentum` and `covariance_decay`, and needs
            `optimizer.build(model.trainable_variables)` before training.
            Defaults to `"averaged"`.
        name: String (optional). The name of the optimizer. Defaults to
            `"qpsbgd"`.
        **kwargs: Arguments of `keras.optimizers.Optimizer`, such as `use_ema`.
            `weight_decay` and the arguments for gradient clipping are passed on
            to `real_optimizer`, so they apply to real variables only.

    Raises:
        ValueError: If an argument is invalid.
        TypeError: If an argument was removed. The message names its
            replacement.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential([kq.layers.BinaryDense(1)])
        model.compile(optimizer=kq.QPSBGD(learning_rate=0.02), loss="mse")
        model.fit(x, y, epochs=50, verbose=0)
        print(model.layers[-1].binary_kernel)  # the signs 1, -1, 1, 1
        ```

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128)
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        backend: BackendLike = "native",
        kappa: float = 10.0,
        momentum: float = 0.9,
        covariance_decay: float = 0.9,
        real_optimizer: OptimizerLike = "adam",
        max_variables: int | None = None,
        seed: int | None = None,
        on_failure: BackendLike = "raise",
        rule: str = "averaged",
        name: str | None = "qpsbgd",
        **kwargs: Any,
    ) -> None:
        for removed in REMOVED.keys() & kwargs.keys():
            raise TypeError(
                f"`{removed}` was removed. Use {REMOVED[removed]}. "
                f"Received: {removed}={kwargs[removed]!r}"
            )
        super().__init__(
            learning_rate,
            backend,
            real_optimizer,
            max_variables,
            seed,
            on_failure,
            name=name,
            **kwargs,
        )
        check_number("kappa", kappa, above=0)
        _check_decay("momentum", momentum)
        _check_decay("covariance_decay", covariance_decay)
        if rule not in RULES:
            raise ValueError(
                f"`rule` must be one of {RULES}. Received: rule={rule!r}"
            )
        # NumPy numbers cannot be saved.
        self.kappa = float(kappa)
        self.momentum = float(momentum)
        self.covariance_decay = float(covariance_decay)
        self.rule = rule
        # By `BinaryKernel`: the variables of M, C and `Averages.scalars`, and
        # the observers that update C.
        self._momenta = _keras.Untracked()
        self._scalars = _keras.Untracked()
        self._couplings = _keras.Untracked()
        self._observers = _keras.Untracked()
        # By `variable_key`: the states of the last update.
        self._last_states: dict = {}

    def add_rule_state(self, marks: Any) -> None:
        """Creates the averages."""
        for index, mark in enumerate(marks):
            if self.rule == "averaged":
                self._momenta[mark] = self.add_array(
                    (mark.num_variables, mark.num_columns),
                    "float32",
                    f"momentum_{index}",
                    aggregation="none",
                )
                self._scalars[mark] = self.add_array(
                    (rules.SCALARS,),
                    "float32",
                    f"second_moment_{index}",
                    aggregation="none",
                )
            if self._uses_couplings():
                self._add_couplings(mark, index)
        if self.rule == "averaged" and self.backend.warm_start:
            self._last_states = self.add_slots(marks, "states")

    def connect(self) -> None:
        """Asks the layers for the second moments of their inputs."""
        for mark, observer in self._observers.items():
            mark.observer = observer

    def _uses_couplings(self):
        # A solver on the host always receives couplings.
        return (
            self.rule == "paper"
            or self.backend.uses_couplings
            or self._solver.on_host
        )

    def problem_sizes(self, mark: Any) -> list[tuple[int, int]]:
        if not self._uses_couplings():
            return super().problem_sizes(mark)
        return block_sizes(mark.num_variables, mark.num_columns, self.rule)

    def _add_couplings(self, mark, index):
        is_paper = self.rule == "paper"
        variable = self.add_array(
            self.couplings_shape(mark),
            "float32",
            f"couplings_{index}",
            aggregation="sum" if is_paper else "mean",
        )
        observer = (
            statistics.BatchCouplings(variable)
            if is_paper
            else statistics.MovingCovariance(variable, self.covariance_decay)
        )
        self._couplings[mark] = variable
        self._observers[mark] = observer

    def couplings_shape(self, mark: Any) -> tuple[int, int, int]:
        """Returns the shape of the couplings, `(blocks, width, width)`."""
        count, width = statistics.block_shape(
            mark.num_variables, WIDEST[self.rule]
        )
        return count, width, width

    def begin_update(self, marks: Any, is_connected: bool) -> None:
        """Checks that the layers computed what the rule needs."""
        missed = {m.name: m.missed for m in marks if m in self._observers}
        if self.rule == "paper" and any(missed.values()):
            raise ValueError(
                '`rule="paper"` changes the gradients that binary layers '
                "compute, so the optimizer must be built before the first "
                "training step. Call "
                "`optimizer.build(model.trainable_variables)`. Received: "
                "gradients from before the optimizer was built"
            )
        late = [name for name, mode in missed.items() if mode == "graph"]
        # TensorFlow traces a function again if it creates variables.
        if late and is_connected:
            self._warn_once(
                "late",
                f"The QUBOs of the layers {late} have no couplings, and these "
                "layers train as with Signum, because they were traced in "
                "another `tf.function` before the optimizer was built. Call "
                "`optimizer.build(model.trainable_variables)` before the first "
                "training step.",
            )

    def averages(self, grad: Any, mark: Any) -> Any:
        """Returns `rules.Averages`. With `rule="paper"`, the gradient."""
        if self.rule == "paper":
            return grad
        return rules.averages(
            grad,
            tf.convert_to_tensor(self._momenta[mark]),
            tf.convert_to_tensor(self._scalars[mark]),
            self.momentum,
        )

    def layer_problems(self, averages: Any, mark: Any) -> ops.LayerProblems:
        """Returns the QUBOs of one kernel. See `rules`."""
        shape = (mark.num_variables, mark.num_columns)
        couplings = self._couplings.get(mark)
        if couplings is not None:
            couplings = tf.convert_to_tensor(couplings)
        if self.rule == "paper":
            return ops.LayerProblems(rules.paper, (averages, couplings), shape)
        if couplings is None:
            tensors = averages.gradient, averages.ahead
            return ops.LayerProblems(rules.signum, tensors, shape)
        start = self._last_states.get(self.variable_key(mark.kernel))
        if start is not None:
            start = tf.cast(tf.convert_to_tensor(start), tf.float32)
            start = tf.reshape(start, shape)
        scales = rules.scales(averages, couplings, self.kappa)
        return ops.LayerProblems(
            rules.scaled,
            (couplings, averages.gradient, averages.ahead, *scales, start),
            shape,
            is_warm=start is not None,
        )

    def end_update(self, averages: Any, marks: Any) -> None:
        """Stores the averages. With `rule="paper"`, clears the couplings."""
        for found, mark in zip(averages, marks):
            if self.rule == "paper":
                self._observers[mark].clear()
            else:
                self._momenta[mark].assign(found.momentum)
                self._scalars[mark].assign(found.scalars)

    def skip_update(self) -> None:
        """With `rule="paper"`, drops the rows since the last update."""
        if self.rule == "paper":
            for observer in self._observers.values():
                observer.clear()
            for sums in self._accumulated.values():
                sums.assign(tf.zeros(sums.shape))

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any = None
    ) -> None:
        """Moves one kernel against its states.

        Keras calls this method with states instead of a `gradient`. The states
        are summed over replicas and may be averaged. Both scale them by a
        positive factor, which this method removes.
        """
        if not self.is_updated(gradient, variable):
            return
        states = tf.sign(tf.cast(gradient, variable.dtype))
        key = self.variable_key(variable)
        size = tf.cast(learning_rate, "float32")
        scalars = self._scalars.get(self._binary[key])
        if scalars is not None:
            size = size * tf.convert_to_tensor(scalars)[-1]
        variable.assign_sub(tf.cast(size, variable.dtype) * states)
        last = self._last_states.get(key)
        if last is not None:
            last.assign(states)

    def problems(self, gradient: Any, couplings: Any) -> list[ops.Problem]:
        """Returns the problems of a first update, without earlier averages.

        `keras_qpsbgd.analysis` uses it for the gradient of given data.

        Args:
            gradient: Tensor of shape `(n, m)`.
            couplings: Tensor of the shape `couplings_shape`, from
                `statistics.SecondMoments` or, with `rule="paper"`, from
                `statistics.BatchCouplings`.
        """
        if self.rule == "paper":
            return rules.paper(gradient, couplings)
        trace = tf.reduce_sum(tf.linalg.trace(couplings))
        couplings = tf.math.divide_no_nan(couplings, trace)
        return rules.averaged(gradient, couplings, self.kappa)

    def constant_variables(self) -> list:
        # The averaged rule does not change them, and the other one clears them.
        return super().constant_variables() + list(self._couplings.values())

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.update(
            kappa=self.kappa,
            momentum=self.momentum,
            covariance_decay=self.covariance_decay,
            rule=self.rule,
        )
        return config


def block_sizes(
    num_variables: int, num_columns: int, rule: str = "averaged"
) -> list[tuple[int, int]]:
    """Returns the numbers of inputs and outputs of the QUBOs of a layer.

    Args:
        num_variables: Integer. Number of inputs of the layer.
        num_columns: Integer. Number of outputs of the layer.
        rule: String. The `rule` of `QPSBGD`. Defaults to `"averaged"`.
    """
    count, width = statistics.block_shape(num_variables, WIDEST[rule])
    return [(width, num_columns)] * count


def _check_decay(name, value):
    if not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a number in [0, 1). Received: {name}={value!r}"
        )
