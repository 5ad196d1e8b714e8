"""QP-SBGD as a Keras optimizer."""

import numbers
import random
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.optimizers import memory
from keras_qpsbgd.optimizers.averaged_rule import Averaged
from keras_qpsbgd.optimizers.base import BinaryOptimizer
from keras_qpsbgd.optimizers.base import LearningRate
from keras_qpsbgd.optimizers.base import OptimizerLike
from keras_qpsbgd.optimizers.batch import Accumulation
from keras_qpsbgd.optimizers.batch import if_true
from keras_qpsbgd.optimizers.batch import on_first_replica
from keras_qpsbgd.optimizers.estimate import SolverInfo
from keras_qpsbgd.optimizers.inner import delegated
from keras_qpsbgd.optimizers.paper_rule import Paper
from keras_qpsbgd.optimizers.skipping import Skipping
from keras_qpsbgd.optimizers.step_solver import StepSolver
from keras_qpsbgd.optimizers.step_solver import update_seeds

RULES: dict[str, Any] = {"averaged": Averaged, "paper": Paper}


@_keras.register_optimizer("qpsbgd")
@_keras.register
class QPSBGD(SolverInfo, BinaryOptimizer):
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

    With Keras 3, `model.compile("qpsbgd")` also selects this optimizer, with
    default arguments. Legacy Keras needs an instance.

    Args:
        learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule` instance, or a
            callable that takes no arguments and returns the value to use. The
            distance that the latent weights move in a step if all gradients
            agree. Use a schedule that decays to zero. The best rate does not
            depend on the width of the layers. Deep networks without
            normalization prefer about `0.005`. Set the rate of the other
            variables with `optimizer.real_optimizer.learning_rate`. With batch
            normalization, use about `0.01`. Defaults to `0.01`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. The solver of the QUBOs. A string is the name of a
            backend (see `keras_qpsbgd.backends.available()`). A dictionary is a
            configuration, such as `{"name": "gurobi", "work_limit": 1.0}`.
            Defaults to `"native"`.
        kappa: Float > 0. The ratio of the force of the gradient on a variable
            to the force of the couplings, if all gradients agree. With noisy
            gradients, the ratio is smaller. It does not depend on the scale of
            the loss or the inputs. Values from 10 to 30 work for all models.
            Try `30` with few labels, as on graphs. Defaults to `10.0`.
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
              `rule="paper"`, gradient accumulation restarts.
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

    kappa = delegated("update_rule", "kappa")
    momentum = delegated("update_rule", "momentum")
    covariance_decay = delegated("update_rule", "covariance_decay")

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
        backend = backends.get(backend)
        super().__init__(learning_rate, real_optimizer, name=name, **kwargs)
        check_number(
            "max_variables",
            max_variables,
            at_least=1,
            whole=True,
            optional=True,
        )
        if seed is not None and not isinstance(seed, numbers.Integral):
            raise ValueError(
                f"`seed` must be an int or None. Received: seed={seed!r}"
            )
        if rule not in RULES:
            raise ValueError(
                f"`rule` must be one of {tuple(RULES)}. Received: rule={rule!r}"
            )
        self.max_variables = max_variables
        # A NumPy integer cannot be saved.
        self.seed = None if seed is None else int(seed)
        self._solver = StepSolver(
            backend, on_failure, self._warn_once, self._drop
        )
        self.rule = rule
        self.update_rule = RULES[rule](
            kappa,
            momentum,
            covariance_decay,
            # A solver on the host always receives couplings.
            uses_couplings=backend.uses_couplings or self._solver.on_host,
            is_warm=backend.warm_start,
        )
        # Records updates (see `step_solver`). `callbacks.QuboRecorder` sets it
        # during `fit`. It is not saved.
        self.recorder: Any = None
        self._skipping = Skipping()
        self._accumulation = Accumulation(self._accumulates())
        self._is_connected = False

    # Setup

    def build(self, variables: Any) -> None:
        super().build(variables)
        # Replicas run one after the other and must all run the same operations.
        # If the first one builds the optimizer, `apply` connects it afterwards.
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            self._connect()

    def _connect(self):
        if self.is_built() and not self._is_connected:
            self._is_connected = True
            self.update_rule.connect()

    def add_state(self, marks: Any) -> None:
        seed = random.randrange(2**31) if self.seed is None else self.seed
        self._seed = self.add_array((), "int32", "seed", seed % 2**31)
        self._skipping.build(self.add_array)
        self._accumulation.build(marks, self.add_array)
        self.update_rule.build(
            marks, self.add_array, self.add_variable_from_reference
        )

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates the variables with their straight-through gradients.

        Args:
            grads: List of gradients.
            trainable_variables: List of variables (optional), one per gradient.
                Defaults to the variables that the optimizer was built with.

        Raises:
            ValueError: If the gradients and variables do not match each other
                or the optimizer, if XLA compiles the step and the backend
                solves on the host, or if `rule="paper"` and the optimizer was
                not built before the step.
            BackendUnavailable: If the backend cannot run or cannot solve a
                layer.
        """
        grads = list(grads)
        if not grads:
            return
        is_connected = self._is_connected
        binary, real = self.split(grads, trainable_variables)
        sizes = self.update_rule.sizes(self._binary.values())
        self._solver.check(
            sizes, lambda: self.update_rule.blocks_note(self._names)
        )
        marks = [mark for _, _, mark in binary]
        self.update_rule.check(marks, is_connected, self._warn_once)
        checked = [
            grad.values if isinstance(grad, tf.IndexedSlices) else grad
            for grad, _, _ in binary + real
        ]
        checked.append(self.learning_rate)

        def update(binary_grads, real_grads):
            self._update(
                binary_grads,
                [(variable, mark) for _, variable, mark in binary],
                real_grads,
                [variable for _, variable, _ in real],
            )

        self._skipping.apply(
            checked,
            update,
            ([grad for grad, _, _ in binary], [grad for grad, _, _ in real]),
            self._drop,
            self._changed_variables(),
        )
        self._connect()
        if tf.executing_eagerly():
            self._warn()
        memory.free_with(self)

    def _changed_variables(self):
        """Returns the variables that an update may change, for `Skipping`.

        Returns `None` unless the step is one compiled program. Only training
        passes change couplings. The rule of the paper also clears them, after
        every update.
        """
        if (
            not _keras.inside_xla()
            or tf.distribute.has_strategy()
            or self._accumulates()
        ):
            return None
        couplings = {id(c) for c in self.update_rule.couplings.values()}
        variables = [*self._trainable_variables, *self.variables]
        return [v for v in variables if id(v) not in couplings]

    def _update(self, grads, kernels, real_grads, real_variables):
        """Applies an update with finite gradients, in replica context."""
        marks = [mark for _, mark in kernels]
        # The gradients of the whole batch, and their averages.
        scale = float(getattr(self, "loss_scale_factor", None) or 1.0)
        batch = self._accumulation
        grads = batch.total(grads, marks, scale, self._aggregate)
        rule = self.update_rule
        averages = [rule.averages(g, mark) for g, mark in zip(grads, marks)]
        # The solutions of the problems.
        shapes = [mark.kernel.shape for mark in marks]
        is_complete = batch.is_complete(self._iterations)
        states = if_true(
            is_complete,
            lambda: on_first_replica(
                lambda: self._solve(averages, marks), shapes
            ),
            lambda: [tf.zeros(shape) for shape in shapes],
        )
        # With `on_failure="raise"`, a failed solve stops the step here, before
        # any variable has changed.
        ordered = states if self._solver.on_host else []
        with tf.control_dependencies(ordered):
            # The new state, and the moves of all variables.
            batch.store(grads, marks, is_complete)
            if_true(
                is_complete,
                lambda: self._store(averages, marks),
                lambda: None,
            )
            self.apply_real(real_grads, real_variables)
            # Keras sums them in the precision of the kernel.
            states = [tf.cast(s, v.dtype) for s, (v, _) in zip(states, kernels)]
            self.apply_binary(states, [v for v, _ in kernels], real_variables)
        memory.free_with(self)  # the branch has its own graph

    def _store(self, averages, marks):
        for found, mark in zip(averages, marks):
            self.update_rule.store(found, mark)

    def _solve(self, averages, marks):
        """Returns the states of all kernels, zero for unchanged entries."""
        layers = [
            self.update_rule.layer_problems(found, mark)
            for found, mark in zip(averages, marks)
        ]
        names = [self._names[mark] for mark in marks]
        step = tf.cast(self.iterations, tf.int32)
        seeds = update_seeds(tf.convert_to_tensor(self._seed), step, len(marks))
        states = self._solver.solve(names, layers, seeds, step, self.recorder)
        return [
            tf.reshape(layer, mark.kernel.shape)
            for layer, mark in zip(states, marks)
        ]

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any = None
    ) -> None:
        """Moves one kernel against its states.

        Keras passes the states as the `gradient`. It sums them over replicas
        and may average them. Both operations scale the states by a positive
        factor, which this method removes.
        """
        if not self.is_updated(gradient, variable):
            return
        mark = self._binary[self.variable_key(variable)]
        states = tf.sign(tf.cast(gradient, variable.dtype))
        size = tf.cast(learning_rate, "float32")
        size = size * self.update_rule.step_size(mark)
        variable.assign_sub(tf.cast(size, variable.dtype) * states)
        self.update_rule.store_states(mark, states)

    def _drop(self):
        self.update_rule.drop(self._accumulation.sums.values())

    def finalize_variable_values(self, var_list: Any) -> None:
        """Warns about problems in training. Keras calls this after `fit`."""
        self._warn()
        super().finalize_variable_values(var_list)

    def _warn(self):
        self._skipping.warn(self._warn_once)
        self.update_rule.warn(self._names, self._warn_once)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **self._solver.get_config(),
            **self.update_rule.get_config(),
            "max_variables": self.max_variables,
            "seed": self.seed,
            "rule": self.rule,
        }
