"""QP-SBGD as a Keras optimizer."""

import numbers
import random
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import _memory
from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd import statistics
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.host.report import SolverReport
from keras_qpsbgd.optimizers import replica_cond
from keras_qpsbgd.optimizers import rules
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.binary_optimizer import LearningRate
from keras_qpsbgd.optimizers.binary_optimizer import OptimizerLike
from keras_qpsbgd.optimizers.estimate import QpuEstimate
from keras_qpsbgd.optimizers.estimate import estimate_model
from keras_qpsbgd.optimizers.estimate import log_start
from keras_qpsbgd.optimizers.estimate import sizes_of
from keras_qpsbgd.optimizers.step_solver import StepSolver

RULES = ("averaged", "paper")
# Layers with more inputs than this have several blocks of couplings.
WIDEST = {"averaged": 512, "paper": 8192}
# Arguments of earlier versions, and what to use instead.
REMOVED = {
    "gradient_scale": 'the scale-free `kappa`, or `rule="paper"` for "raw"',
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
class QPSBGD(BinaryOptimizer):
    r"""Quantum projected stochastic binary-gradient descent.

    In each step, this optimizer maps the gradient of every binary kernel onto
    binary variables. It solves one QUBO per column \(j\) of the kernel,

    $$g_j = \mathrm{argmin}_{g \in \{-1,+1\}^n} \; g^T C g
      - 2 \kappa f \frac{M_j^T g}{\mathrm{rms}(M)} ,$$

    and moves the latent weights against the solution:

    $$\Omega \leftarrow \Omega - \alpha \, g .$$

    \(M\) is the moving average of the gradient (`momentum`). \(C\) is the
    moving average of the second moments of the inputs of the layer
    (`covariance_decay`), and \(f\) is the root mean square of its force on a
    variable of a random state. Without \(C\), the solution is the sign of
    \(M\), which is Signum.

    Entries without information do not change. These are the columns without a
    gradient and the inputs that were never active. A solution that would ascend
    is negated. `real_optimizer` updates every other variable, such as biases,
    batch normalization and an encoder. If a gradient is not finite, the whole
    update is skipped.

    The gradient is the ordinary straight-through gradient, so you can clip,
    add, scale, store or accumulate gradients as with any Keras optimizer. The
    layers compute \(C\) in training passes, in which `training` is not
    `False`.

    Args:
        learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule` instance, or a
            callable that takes no arguments and returns the value to use. The
            step size of the latent weights. Use a schedule that decays to zero.
            Set the rate of the other variables with
            `optimizer.real_optimizer.learning_rate`. Defaults to `0.003`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. The solver of the QUBOs. A string is the name of a
            backend (see `keras_qpsbgd.backends.available()`). A dictionary is a
            configuration, such as `{"name": "native", "preset": "balanced"}`.
            Defaults to `"native"`.
        kappa: Float. The ratio of the force of the gradient on a variable to
            the force of the couplings. Defaults to `3.0`.
        momentum: Float of at least 0 and below 1. The decay of the moving
            average of the gradient. Defaults to `0.9`.
        covariance_decay: Float of at least 0 and below 1. The decay of the
            moving average of the second moments. Defaults to `0.9`.
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
              `SolverError`. All variables stay unchanged.
            - `"hold"`: continues training without updating the layer.
            - A backend: solves the QUBO with this backend instead. If it also
              fails, training ends as with `"raise"`.
        rule: String. `"averaged"` is the rule above. `"paper"` is the rule as
            printed in the paper, for reproducing its results: the QUBO of
            Definition 1, with the rows and gradients of one update alone, and
            each row divided by its squared norm. It barely learns if the loss
            is a mean over the batch, and it does not suit convolutions. It
            ignores `kappa`, `momentum` and `covariance_decay`, and needs
            `optimizer.build(model.trainable_variables)` before training.
            Defaults to `"averaged"`.
        name: String (optional). The name of the optimizer. Defaults to
            `"qpsbgd"`.
        **kwargs: Arguments of `keras.optimizers.Optimizer`, such as `use_ema`.
            `weight_decay` and the arguments for gradient clipping are passed on
            to `real_optimizer`, so they apply to real variables only.

    Raises:
        ValueError: If an argument is invalid.
        TypeError: If an argument was removed. The message names what replaces
            it.

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
        learning_rate: LearningRate = 0.003,
        backend: BackendLike = "native",
        kappa: float = 3.0,
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
        backend = backends.get(backend)
        super().__init__(learning_rate, real_optimizer, name=name, **kwargs)
        check_number("kappa", kappa, above=0)
        _check_decay("momentum", momentum)
        _check_decay("covariance_decay", covariance_decay)
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
                f"`rule` must be one of {RULES}. Received: rule={rule!r}"
            )
        # NumPy numbers cannot be saved.
        self.kappa = float(kappa)
        self.momentum = float(momentum)
        self.covariance_decay = float(covariance_decay)
        self.max_variables = max_variables
        self.seed = None if seed is None else int(seed)
        self.rule = rule
        self._solver = StepSolver(backend, on_failure, self._warn_once)
        # Records updates, see `record_step`. `callbacks.QuboRecorder` sets it
        # during `fit`. It is not saved.
        self.recorder: Any = None
        # `add_state` creates these variables.
        self._skipped: Any = None
        self._averages: dict = {}
        self._couplings: dict = {}
        self._accumulated: dict = {}
        self._last_states: dict = {}
        self._observers: dict = {}
        self._checked = False

    @property
    def backend(self) -> backends.Backend:
        """The solver of the QUBOs."""
        return self._solver.backend

    @property
    def on_failure(self) -> BackendLike:
        """What to do if a solve fails."""
        return self._solver.on_failure

    @property
    def last_error(self) -> Exception | None:
        """The latest exception of the solver, or `None`."""
        return self._solver.last_error

    @property
    def host_progress(self) -> Any:
        """The progress of the current solve on the host."""
        return self._solver.progress

    # Setup

    def is_binary(self, mark: Any) -> bool:
        """Returns whether a kernel is trained with QUBOs.

        `real_optimizer` trains the others, with their straight-through
        gradients.
        """
        most = self.max_variables
        return most is None or mark.num_variables <= most

    def _build(self, variables):
        marks = [statistics.mark_of(variable) for variable in variables]
        marks = [mark for mark in marks if mark is not None]
        if marks and not any(map(self.is_binary, marks)):
            raise ValueError(
                "No binary layer is left for the QUBO solver. Increase "
                "`max_variables`, or use `real_optimizer` itself. Received: "
                f"max_variables={self.max_variables} and layers with "
                f"{[mark.num_variables for mark in marks]} inputs"
            )
        super()._build(variables)

    def add_state(self, marks: Any) -> None:
        """Creates the state of the rule, and asks the layers for statistics."""
        seed = random.randrange(2**31) if self.seed is None else self.seed
        self._seed = self.add_array((), "int32", "seed", seed % 2**31)
        self._skipped = self.add_array((), "int32", "skipped_updates")
        for index, mark in enumerate(marks):
            self._add_statistics(mark, index)
            size = (mark.num_variables, mark.num_columns)
            if self.rule == "averaged":
                self._averages[mark] = self.add_array(
                    size, "float32", f"momentum_{index}", aggregation="none"
                )
            if self._accumulates():
                self._accumulated[mark] = self.add_array(
                    size, "float32", f"accumulated_{index}", aggregation="none"
                )
        if self.rule == "averaged" and self.backend.warm_start:
            self._last_states = self.add_slots(marks, "states")

    def _add_statistics(self, mark, index):
        is_paper = self.rule == "paper"
        if not is_paper and not self.backend.uses_couplings:
            return
        variable = self._couplings[mark] = self.add_array(
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
        self._observers[mark] = mark.observer = observer

    def couplings_shape(self, mark: Any) -> tuple[int, int, int]:
        """Returns the number of blocks of a kernel, and twice their width."""
        count, width = statistics.block_shape(
            mark.num_variables, WIDEST[self.rule]
        )
        return count, width, width

    def problems(self, gradient: Any, couplings: Any) -> list[ops.Problem]:
        """Returns the problems of a first update, without earlier averages.

        Args:
            gradient: Tensor of shape `(n, m)`.
            couplings: Tensor of the shape `couplings_shape`. The sums of
                `statistics.SecondMoments` or, with `rule="paper"`, of
                `statistics.BatchCouplings`.
        """
        if self.rule == "paper":
            return rules.paper(gradient, couplings)
        trace = tf.reduce_sum(tf.linalg.trace(couplings))
        couplings = tf.math.divide_no_nan(couplings, trace)
        return rules.averaged(gradient, gradient, couplings, self.kappa)

    def _check_backend(self):
        """Checks the backends once, when training starts.

        `build` does not check them, because Keras calls it to load a model.
        Loading must work without the license or token of the solver.
        """
        if self._checked:
            return
        sizes = sizes_of(self._binary.values())
        for backend in self._solver.all_backends:
            backend.check_layers(sizes)
        log_start(self.backend, sizes)
        self._checked = True

    def estimate(self, model: Any, steps: int) -> QpuEstimate:
        """Estimates the QPU time of training a model.

        It connects to the solver if necessary, but sends no problem. For a
        backend without QPU time, the estimate is zero, and its `note` has the
        reason. `callbacks.SolverProgress` logs this estimate when `fit` starts,
        and warns if it exceeds the budget.

        Args:
            model: A built `keras.Model` with binary layers.
            steps: Integer. Number of training steps, which is the number of
                batches of all epochs.

        Returns:
            A `QpuEstimate`. Print it to see a table.

        Raises:
            ValueError: If the model has no trainable binary layer or is not
                built.
            BackendUnavailable: If the solver cannot be reached.

        Example:
            ```python
            print(optimizer.estimate(model, steps=1000))
            ```
        """
        return estimate_model(
            self.backend, model, steps, self._accumulates() or 1, self.is_binary
        )

    def _check_xla(self):
        if self._solver.on_host and _keras.inside_xla():
            raise ValueError(
                f"The backend `{self.backend.name}` solves on the host, and "
                "XLA cannot call the host. Pass `jit_compile=False` to "
                "`compile` or to your `tf.function`. On a GPU, Keras 3 uses "
                "XLA by default. Received: jit_compile=True"
            )

    @property
    def skipped_updates(self) -> int:
        """Number of updates that were skipped because of a non-finite value."""
        # Another thread may read this while the optimizer is being built.
        if self._skipped is None:
            return 0
        return int(tf.convert_to_tensor(self._skipped))

    def solver_report(self) -> SolverReport:
        """Reports the calls, time and failures of the host solver.

        The attribute `layers` of the report maps the name of each layer to its
        figures, and `total` sums them. Print the report to see a table. It is
        empty for backends that solve in the graph.

        Returns:
            A copy of the current `SolverReport`.

        Example:
            ```python
            print(model.optimizer.solver_report())
            ```
        """
        return self._solver.report.copy()

    # One update

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates the variables with their straight-through gradients.

        Args:
            grads: List of gradients.
            trainable_variables: List of variables (optional), one per gradient.
                Defaults to the variables that the optimizer was built with.

        Raises:
            ValueError: If the gradients and variables do not match each other
                or the optimizer, or if XLA compiles the step and the backend
                solves on the host.
        """
        grads = list(grads)
        if not grads:
            return
        binary, real = self.split(grads, trainable_variables)
        self._check_backend()
        self._check_xla()
        self._observe_early([mark for _, _, mark in binary])
        checked = [
            grad.values if isinstance(grad, tf.IndexedSlices) else grad
            for grad, _, _ in binary + real
        ]
        checked.append(self.learning_rate)
        finite = replica_cond.true_on_all_replicas(ops.is_finite(checked))

        def update(binary_grads, real_grads):
            self._update(
                binary_grads,
                [(variable, mark) for _, variable, mark in binary],
                real_grads,
                [variable for _, variable, _ in real],
            )

        arguments = [grad for grad, _, _ in binary], [g for g, _, _ in real]
        if self._has_no_branches():
            replica_cond.update_and_undo(
                finite, update, arguments, self._changed_variables()
            )
            self._skipped.assign_add(tf.cast(~finite, tf.int32))
        else:
            replica_cond.update_or_skip(finite, update, arguments, self._skip)
        _memory.free_with(self)

    def _observe_early(self, marks):
        """Uses the rows of a training pass from before `build`."""
        for mark in marks:
            early = mark.take_early()
            observer = self._observers.get(mark)
            if early is None or observer is None:
                continue
            graph, rows = early
            if self.rule == "paper":
                raise ValueError(
                    '`rule="paper"` changes the gradients that binary layers '
                    "compute, so the optimizer must be built before the first "
                    "training step. Call "
                    "`optimizer.build(model.trainable_variables)`. Received: "
                    "gradients from before the optimizer was built"
                )
            if graph in statistics.current_graphs():
                observer.add(rows(observer.max_rows))
                continue
            self._warn_once(
                "early",
                f"The inputs of the layer `{mark.name}` are not part of its "
                "QUBO, because the layer was traced in another `tf.function` "
                "before the optimizer was built. Call "
                "`optimizer.build(model.trainable_variables)` before the first "
                "training step.",
            )

    def _has_no_branches(self):
        """Returns whether the step consists of one compiled program."""
        return (
            _keras.inside_xla()
            and not tf.distribute.has_strategy()
            and not self._accumulates()
        )

    def _changed_variables(self):
        """Returns the variables that an update may change."""
        constant = [self._seed, self._skipped, self._learning_rate]
        constant.append(self.real_optimizer._learning_rate)
        if self.rule == "averaged":
            constant += self._couplings.values()
        return [
            variable
            for variable in [*self._trainable_variables, *self.variables]
            if not any(variable is other for other in constant)
        ]

    def _update(self, grads, kernels, real_grads, real_variables):
        """Applies an update with finite gradients, in replica context."""
        marks = [mark for _, mark in kernels]
        grads = self._total(grads, marks)
        if self._accumulates():
            steps = self.gradient_accumulation_steps
            states = tf.cond(
                (self._iterations + 1) % steps == 0,
                lambda: self._solve(grads, marks),
                lambda: [tf.zeros(mark.kernel.shape) for mark in marks],
            )
        else:
            states = self._solve(grads, marks)
        # With `on_failure="raise"`, a failed solve stops the step here, before
        # any variable has changed.
        ordered = states if self._solver.on_host else []
        with tf.control_dependencies(ordered):
            self._store(grads, marks)
            self.apply_real(real_grads, real_variables)
            # Keras sums them in the precision of the kernel.
            states = [tf.cast(s, v.dtype) for s, (v, _) in zip(states, kernels)]
            self.apply_binary(states, [v for v, _ in kernels], real_variables)
        _memory.free_with(self)  # the branch has its own graph

    def _total(self, grads, marks):
        """Returns the gradients of the whole batch as matrices (n, m).

        Sums over replicas, and with gradient accumulation over the batches so
        far.
        """
        scale = self._loss_scale() * float(self._accumulates() or 1)
        grads = [
            tf.reshape(
                tf.cast(tf.convert_to_tensor(grad), tf.float32) / scale,
                (mark.num_variables, mark.num_columns),
            )
            for grad, mark in zip(grads, marks)
        ]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1 and self._aggregate:
            grads = context.all_reduce(tf.distribute.ReduceOp.SUM, grads)
        if self._accumulates():
            grads = [
                grad + tf.convert_to_tensor(self._accumulated[mark])
                for grad, mark in zip(grads, marks)
            ]
        return grads

    def _average(self, grad, mark):
        average = tf.convert_to_tensor(self._averages[mark])
        return rules.momentum(average, grad, self.momentum)

    def _store(self, grads, marks):
        """Stores the momentum, or the sums of an accumulation."""

        def store():
            for grad, mark in zip(grads, marks):
                if self.rule == "averaged":
                    self._averages[mark].assign(self._average(grad, mark))
                else:
                    self._observers[mark].clear()
                if self._accumulates():
                    self._accumulated[mark].assign(tf.zeros_like(grad))

        def accumulate():
            for grad, mark in zip(grads, marks):
                self._accumulated[mark].assign(grad)

        steps = self._accumulates()
        if steps:
            tf.cond((self._iterations + 1) % steps == 0, store, accumulate)
        else:
            store()

    def _solve(self, grads, marks):
        """Returns the states of all kernels, zero for unchanged entries.

        Only the first replica solves. The others return zeros, and the
        subsequent sum over replicas gives all of them the same states. The
        copies therefore stay equal even if the solver has no seed, and the
        solver is called only once.
        """
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1:
            return self._solve_all(grads, marks)
        return tf.cond(
            tf.equal(context.replica_id_in_sync_group, 0),
            lambda: self._solve_all(grads, marks),
            lambda: [tf.zeros(mark.kernel.shape) for mark in marks],
        )

    def _solve_all(self, grads, marks):
        step = tf.cast(self.iterations, tf.int32)
        first = tf.convert_to_tensor(self._seed)
        differences = [(7919 * index, 0) for index in range(len(marks))]
        differences = tf.reshape(tf.constant(differences, tf.int32), (-1, 2))
        seeds = tf.unstack(tf.stack([first, step]) + differences)
        layers = [self._problems(g, mark) for g, mark in zip(grads, marks)]
        names = [mark.name for mark in marks]
        states = self._solver.solve(names, layers, seeds, step, self.recorder)
        return [
            tf.reshape(layer, mark.kernel.shape)
            for layer, mark in zip(states, marks)
        ]

    def _problems(self, grad, mark):
        """Returns the `ops.LayerProblems` of one kernel."""
        shape = (mark.num_variables, mark.num_columns)
        couplings = self._couplings.get(mark)
        if couplings is not None:
            couplings = tf.convert_to_tensor(couplings)
        if self.rule == "paper":
            return ops.LayerProblems(rules.paper, (grad, couplings), shape)
        average = self._average(grad, mark)
        if couplings is None:
            return ops.LayerProblems(rules.signum, (grad, average), shape)
        start = self._last_states.get(self.variable_key(mark.kernel))
        if start is not None:
            start = tf.reshape(tf.cast(start, tf.float32), shape)
        return ops.LayerProblems(
            rules.averaged,
            (grad, average, couplings, tf.constant(self.kappa), start),
            shape,
            is_warm=start is not None,
        )

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any = None
    ) -> None:
        """Moves one kernel against its states.

        Keras calls this method with states in place of a `gradient`, which are
        summed over replicas and may be averaged. Each of these scales the
        states by a positive factor, which is removed.
        """
        if not self.is_updated(gradient, variable):
            return
        states = tf.sign(tf.cast(gradient, variable.dtype))
        variable.assign_sub(tf.cast(learning_rate, variable.dtype) * states)
        last = self._last_states.get(self.variable_key(variable))
        if last is not None:
            last.assign(states)

    def _skip(self):
        """Counts a skipped update."""
        self._skipped.assign_add(1)
        if tf.executing_eagerly():
            self._warn_if_skipped()

    def _loss_scale(self):
        """Returns the factor of mixed precision that gradients contain."""
        return float(getattr(self, "loss_scale_factor", None) or 1.0)

    # Warnings

    def _warn_if_skipped(self):
        count = self.skipped_updates
        if count:
            self._warn_once(
                "skipped",
                f"{count} update(s) were skipped because a gradient or the "
                "learning rate was not finite. They changed no variable and no optimizer state. "
                "(The forward pass may have changed the moving statistics of "
                "batch normalization.) See `optimizer.skipped_updates`.",
            )

    def finalize_variable_values(self, var_list: Any) -> None:
        """Warns about skipped updates. Keras calls this at the end of `fit`."""
        self._warn_if_skipped()
        super().finalize_variable_values(var_list)

    # Configuration

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        on_failure = self.on_failure
        if self._solver.fallback is not None:
            on_failure = backends.serialize(self._solver.fallback)
        config.update(
            backend=backends.serialize(self.backend),
            kappa=self.kappa,
            momentum=self.momentum,
            covariance_decay=self.covariance_decay,
            max_variables=self.max_variables,
            seed=self.seed,
            on_failure=on_failure,
            rule=self.rule,
        )
        return config


def _check_decay(name, value):
    if not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a number of at least 0 and below 1. "
            f"Received: {name}={value!r}"
        )
