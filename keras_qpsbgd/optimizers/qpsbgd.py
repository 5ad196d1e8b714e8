"""QP-SBGD as a Keras optimizer."""

import numbers
import random
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import _memory
from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd import recording
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.host.report import SolverReport
from keras_qpsbgd.optimizers import replica_cond
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.binary_optimizer import LearningRate
from keras_qpsbgd.optimizers.binary_optimizer import OptimizerLike
from keras_qpsbgd.optimizers.estimate import QpuEstimate
from keras_qpsbgd.optimizers.estimate import estimate_model
from keras_qpsbgd.optimizers.estimate import log_start
from keras_qpsbgd.optimizers.estimate import sizes_of
from keras_qpsbgd.optimizers.rules import choice
from keras_qpsbgd.optimizers.rules.hold import hold_uncertain
from keras_qpsbgd.optimizers.rules.momentum import Momentum
from keras_qpsbgd.optimizers.step_solver import StepSolver

# Arguments that are saved as they are.
SAVED = (
    "update",
    *choice.OF_GRADIENT,
    *choice.OF_NEWTON,
    "reads",
    "read_temperature",
    "momentum",
    "hold",
    "max_variables",
    "real_layers",
)


@_keras.register
class QPSBGD(BinaryOptimizer):
    r"""Quantum projected stochastic binary-gradient descent.

    In each step, this optimizer maps the gradient of every binary kernel onto
    binary variables. It solves one QUBO per column \(j\) of the kernel
    (Definition 1 of the paper),

    $$g_j = \mathrm{argmin}_{g \in \{-1,+1\}^n} \; g^T Q g + s_j^T g ,$$

    and moves the latent weights against the solution:

    $$\Omega \leftarrow \Omega - \alpha \, g .$$

    Entries without information do not change. These are the columns whose
    fields are zero and the inputs that were never active. A solution that would
    ascend (\(s_j^T g > 0\)) is negated. `real_optimizer` updates every other
    variable, such as biases, batch normalization and an encoder. If a gradient
    is not finite, the whole update is skipped.

    The optimizer also works in custom training loops. An update uses exactly
    the backward passes that its gradients came from. You can add, scale or clip
    gradients before you apply them. If the optimizer cannot determine the
    backward passes, it does not update the kernel and warns with the reason.
    Use `keras_qpsbgd.with_rows` if you compute gradients in one `tf.function`
    and apply them in another.

    Args:
        learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule` instance, or a
            callable that takes no arguments and returns the value to use. The
            step size of the latent weights. Use about `0.02` for layers with
            tens of inputs and about `0.002` for layers with hundreds of inputs,
            with a schedule that decays to zero. With `update="newton"`, use
            about `0.2`. Set the rate of the other variables with
            `optimizer.real_optimizer.learning_rate`. Defaults to `0.01`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. The solver of the QUBOs. A string is the name of a
            backend (see `keras_qpsbgd.backends.available()`). A dictionary is a
            configuration, such as `{"name": "native", "preset": "fast"}`.
            Defaults to `"native"`.
        gradient_scale: String. The factor that scales \(V\), the gradient of
            the loss with respect to the product of inputs and kernel, before
            the QUBO is solved. Defaults to `"max"`.

            - `"max"`: `kappa / max|V|`.
            - `"reach"`: `kappa * r / max|V|`, where `r` is the mean l1 norm of
              the normalized rows.
            - `"rms"`: `kappa / rms(V)`.
            - `"batch"`: the number of samples in the update.
            - `"raw"`: 1, the rule of the paper. It hardly learns if the loss is
              a mean over the batch.
        kappa: Float (optional). The strength of the scales `"max"`, `"reach"`
            and `"rms"`. `None` means `4.0`, `1.0` and `1.0`, respectively.
            Defaults to `None`.
        real_optimizer: String, dictionary or `keras.optimizers.Optimizer`. The
            name, the configuration or an instance of the Keras optimizer for
            all variables that are not binary kernels. An instance is copied,
            and the copy is saved with the model. Defaults to `"adam"`.
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
        name: String (optional). The name of the optimizer. Defaults to
            `"qpsbgd"`.
        update: String. What the solution of a QUBO is. Defaults to
            `"gradient"`.

            - `"gradient"`: a binary gradient, as above. For many updates with
              small batches.
            - `"newton"`: the new weights \(w'\) of a column. They minimize
              \(g^T (w' - w) + \frac{\lambda}{2} (w' - w)^T Q (w' - w)\),
              where \(g\) is the gradient of the loss and \(Q\) its
              curvature. For few updates with large batches, when solves are
              expensive. Requires `bits=1`.
        latent: String. What `update="newton"` does with the solution. With
            `"average"`, the latent weights become
            \(\Omega \leftarrow (1 - \alpha) \Omega + \alpha w'\), where
            \(\alpha\) is the learning rate. Use it for networks with hidden
            layers, with a rate of about `0.2`. With `"none"`, the kernel
            becomes \(w'\), and the learning rate is not used. This is for
            single layers. Defaults to `"average"`.
        damping: Float. The factor \(\lambda\) of the curvature. The columns
            of a layer, and all layers, change at once, but each solution
            assumes that the others stay as they are. The damping and the
            learning rate limit the change. Start with `1.0`, and a rate of
            about `0.2` in networks with hidden layers. If the loss rises, use
            a larger damping or a lower rate. With a damping that is too large,
            the weights do not change. Defaults to `1.0`.
        curvature: String, or dictionary from names of layers to strings. How
            `update="newton"` computes the curvature from the gradients.
            `"fisher"` is the empirical Fisher matrix, which works for all
            layers and losses. `"categorical_crossentropy"` (also for sparse
            labels), `"binary_crossentropy"` and `"mean_squared_error"` are the
            second derivatives of the loss, for the layer that computes the
            outputs. The loss must have its default reduction and no sample
            weights. (Whether it is your loss is not checked.) In a network
            with several binary layers, pass the name of this layer, for example
            `{"dense_2": "categorical_crossentropy"}`. Layers that are not named
            use `"fisher"`. Defaults to `"fisher"`.
        mean_curvature: Boolean. Whether all rows of a batch have the same
            curvature, the mean of those above. Defaults to `False`.
        reads: String. Which of the reads of a solver to use. `"best"` is the
            one with the lowest energy in each column. `"mean"` is their mean,
            with entries between -1 and 1, for annealers and `native`. Defaults
            to `"best"`.
        read_temperature: Float (optional). Weights the reads of a mean by
            \(\exp(-(E - E_\mathrm{min}) / (T \bar e))\), where \(T\) is this
            number and \(\bar e\) is the mean of \(E - E_\mathrm{min}\).
            `None` weights them equally. Defaults to `None`.
        momentum: Float of at least 0 and below 1. Replaces the fields of the
            QUBO (with `update="newton"`, the gradient) by their moving average
            over the updates. Defaults to `0.0`.
        hold: Float from 0 to 1. The share of the entries of each column that
            the update leaves unchanged: those whose flip would cost the least
            energy. Defaults to `0.0`.
        max_variables: Integer (optional). Layers with more inputs than this are
            trained by `real_optimizer`, with their straight-through gradients.
            Defaults to `None`, which trains all binary layers with QUBOs.
        real_layers: List of strings. Names of further binary layers that
            `real_optimizer` trains. Defaults to no layers.
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

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        backend: BackendLike = "native",
        gradient_scale: str = "max",
        kappa: float | None = None,
        real_optimizer: OptimizerLike = "adam",
        seed: int | None = None,
        on_failure: BackendLike = "raise",
        name: str | None = "qpsbgd",
        *,
        update: str = "gradient",
        latent: str = "average",
        damping: float = 1.0,
        curvature: str | dict[str, str] = "fisher",
        mean_curvature: bool = False,
        reads: str = "best",
        read_temperature: float | None = None,
        momentum: float = 0.0,
        hold: float = 0.0,
        max_variables: int | None = None,
        real_layers: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        backend = backends.get(backend)
        super().__init__(learning_rate, real_optimizer, name=name, **kwargs)
        if seed is not None:
            if not isinstance(seed, numbers.Integral):
                raise ValueError(
                    f"`seed` must be an int or None. Received: seed={seed!r}"
                )
            seed = int(seed)  # a NumPy integer cannot be saved
        self.seed = seed
        choice.check_share("momentum", momentum, below_one=True)
        choice.check_share("hold", hold, below_one=False)
        check_number(
            "max_variables",
            max_variables,
            at_least=1,
            whole=True,
            optional=True,
        )
        if isinstance(real_layers, str):
            raise ValueError(
                "`real_layers` must be a list of names. "
                f"Received: real_layers={real_layers!r}"
            )
        self.update = update
        self.latent = latent
        self.damping = damping
        self.curvature = curvature
        self.mean_curvature = mean_curvature
        self.gradient_scale = gradient_scale
        self.kappa = kappa
        self.max_variables = max_variables
        self.real_layers = list(real_layers)
        rule_arguments = {
            name: getattr(self, name)
            for name in (*choice.OF_GRADIENT, *choice.OF_NEWTON)
        }
        self._rule: Any = choice.create(update, momentum, rule_arguments)
        # NumPy numbers cannot be saved.
        self.kappa = None if kappa is None else float(kappa)
        self.damping, self.momentum = float(damping), float(momentum)
        self.hold = float(hold)
        self._momentum = Momentum(self.momentum)
        if update == "gradient" and gradient_scale == "raw":
            warnings.warn(
                'gradient_scale="raw" is the rule as printed in the paper. It '
                "hardly learns if the loss is a mean over the batch. The other "
                "scales do.",
                stacklevel=2,
            )
        self._solver = StepSolver(
            backend, on_failure, self._warn_once, reads, read_temperature
        )
        # Records updates, see `record_step`. `callbacks.QuboRecorder` sets it
        # during `fit`. It is not saved.
        self.recorder: Any = None
        self._skipped: Any = None  # `add_state` creates this variable
        self._sums: dict = {}
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

    @property
    def reads(self) -> str:
        """How the reads of a solver are combined."""
        return self._solver.reads

    @property
    def read_temperature(self) -> float | None:
        """The temperature of the weights of the reads, or `None`."""
        return self._solver.read_temperature

    # Setup

    def is_binary(self, mark: Any) -> bool:
        """Returns whether a kernel is trained with QUBOs.

        `real_optimizer` trains the others, with their straight-through
        gradients.
        """
        is_wide = (
            self.max_variables is not None
            and mark.num_variables > self.max_variables
        )
        return not is_wide and mark.name not in self.real_layers

    def _build(self, variables):
        marks = [recording.mark_of(variable) for variable in variables]
        marks = [mark for mark in marks if mark is not None]
        names = [mark.name for mark in marks]
        missing = sorted(set(self.real_layers) - set(names))
        if missing:
            raise ValueError(
                f"`real_layers` names layers that do not exist: {missing}. The "
                f"binary layers are {names}. "
                f"Received: real_layers={self.real_layers}"
            )
        if marks and not any(map(self.is_binary, marks)):
            raise ValueError(
                "No binary layer is left for the QUBO solver. Increase "
                "`max_variables` or shorten `real_layers`, or use "
                "`real_optimizer` itself. Received: "
                f"max_variables={self.max_variables}, "
                f"real_layers={self.real_layers}, and layers with "
                f"{[mark.num_variables for mark in marks]} inputs"
            )
        super()._build(variables)

    def add_state(self, marks: Any) -> Any:
        seed = random.randrange(2**31) if self.seed is None else self.seed
        self._seed = self.add_array((), "int32", "seed", seed % 2**31)
        self._skipped = self.add_array((), "int32", "skipped_updates")
        self._rule.check(list(marks))
        self._momentum.add_state(self, marks)
        steps = self._accumulates()
        if steps:
            self._sums = {
                mark: self._rule.sum_variables(mark, steps) for mark in marks
            }

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
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates the variables with their straight-through gradients.

        For a binary kernel, the update does not use the gradient itself but the
        backward passes that it came from.

        Args:
            grads: List of gradients, which are tensors or instances of
                `RecordedGradient`.
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
        kernels, sums, held = self._gather(binary)
        # The gradient of a kernel is a product of rows and row gradients.
        # Checking the sums instead of the gradient lets TensorFlow skip this
        # product.
        checked = [
            grad.values if isinstance(grad, tf.IndexedSlices) else grad
            for grad in [entry[0] for entry in real + held]
        ]
        for layer in sums:
            checked += self._rule.bounds(layer)
        checked.append(self.learning_rate)
        finite = replica_cond.true_on_all_replicas(ops.is_finite(checked))

        def update(real_grads, sums):
            self._update(
                real_grads,
                [variable for _, variable, _ in real],
                kernels,
                sums,
                [variable for _, variable in held],
            )

        arguments = ([grad for grad, _, _ in real], sums)
        if self._has_no_branches():
            replica_cond.update_and_undo(
                finite, update, arguments, self._changed_variables()
            )
            self._skipped.assign_add(tf.cast(~finite, tf.int32))
        else:
            replica_cond.update_or_skip(finite, update, arguments, self._skip)
        _memory.free_with(self)

    def _has_no_branches(self):
        """Returns whether the step consists of one compiled program."""
        return (
            _keras.inside_xla()
            and not tf.distribute.has_strategy()
            and not self._accumulates()
        )

    def _changed_variables(self):
        """Returns the variables that an update may change."""
        constant = (self._seed, self._skipped, self._learning_rate)
        constant += (self.real_optimizer._learning_rate,)
        return [
            variable
            for variable in [*self._trainable_variables, *self.variables]
            if not any(variable is other for other in constant)
        ]

    def _gather(self, binary):
        """Collects what the update rule needs to know about each kernel.

        Returns:
            Three lists: `(variable, mark)` and the sums over rows of the
            kernels to update, and `(gradient, variable)` of the kernels to
            leave unchanged.
        """
        kernels, layers, held = [], [], []
        reasons = {}
        for grad, variable, mark in binary:
            try:
                calls = recording.calls_of(grad, mark)
            except recording.UnknownOrigin as error:
                names = reasons.setdefault((error.reason, error.advice), [])
                names.append(f"`{mark.name}`")
                held.append((grad, variable))
                if self._accumulates():
                    self._sums[mark].mark_incomplete()
                continue
            finally:
                mark.latest.clear()
            kernels.append((variable, mark))
            layers.append((calls, mark))
        for (reason, advice), names in reasons.items():
            names = ", ".join(names)
            self._warn_once(
                (reason, names),
                f"Binary kernels were not updated (layers: {names}). The "
                "backward passes of the gradient are unknown, because it "
                f"{reason}. {advice}",
            )
        if not self._accumulates():
            # Without XLA, an n x n matrix costs less than the operations that
            # do without it.
            couplings = self._solver.on_host or self.backend.uses_couplings
            couplings = couplings or not _keras.inside_xla()
            sums = self._rule.gather(layers, couplings, self._loss_scale())
            return kernels, sums, held
        sums = []
        for calls, mark in layers:
            self._sums[mark].add(calls, self._loss_scale())
            sums.append(self._sums[mark].gather())
        return kernels, sums, held

    def _update(self, real_grads, real_variables, kernels, sums, held):
        """Applies an update with finite gradients, in replica context."""
        marks = [mark for _, mark in kernels]
        sums, averages = self._momentum.average(self._rule, sums, marks)
        is_update = True
        if self._accumulates():
            steps = self.gradient_accumulation_steps
            is_update = (self._iterations + 1) % steps == 0
            states = tf.cond(
                is_update,
                lambda: self._solve_and_clear(marks, sums),
                lambda: [tf.zeros(mark.kernel.shape) for mark in marks],
            )
        else:
            states = self._solve(marks, sums)
        # With `on_failure="raise"`, a failed solve stops the step here, before
        # any variable has changed.
        ordered = states if self._solver.on_host else []
        with tf.control_dependencies(ordered):
            self.apply_real(real_grads, real_variables)
            self._momentum.store(averages, is_update)
            # With a state of zero, Keras counts the update but does not change
            # the kernel.
            states = states + [tf.zeros(variable.shape) for variable in held]
            variables = [variable for variable, _ in kernels] + held
            # Keras sums them in the precision of the kernel.
            states = [tf.cast(s, v.dtype) for s, v in zip(states, variables)]
            self.apply_binary(states, variables, real_variables)
        _memory.free_with(self)  # the branch has its own graph

    def _solve_and_clear(self, marks, sums):
        states = self._solve(marks, sums)
        for variables in self._sums.values():
            variables.clear()
        return states

    def _solve(self, marks, sums):
        """Returns the states of all kernels, zero for unchanged entries.

        Only the first replica solves. The others return zeros, and the
        subsequent sum over replicas gives all of them the same states. The
        copies therefore stay equal even if the solver has no seed, and the
        solver is called only once.
        """
        context = tf.distribute.get_replica_context()
        shapes = [mark.kernel.shape for mark in marks]

        def solve():
            return self._solve_all(marks, sums)

        if context.num_replicas_in_sync == 1:
            return solve()
        return tf.cond(
            tf.equal(context.replica_id_in_sync_group, 0),
            solve,
            lambda: [tf.zeros(shape) for shape in shapes],
        )

    def _solve_all(self, marks, sums):
        loss_scale = self._total_loss_scale()
        problems, factors = [], []
        for layer, mark in zip(sums, marks):
            problem, factor = self._rule.problem(layer, mark, loss_scale)
            problems.append(problem)
            factors.append(factor)
        step = tf.cast(self.iterations, tf.int32)
        first = tf.convert_to_tensor(self._seed)
        differences = [(7919 * index, 0) for index in range(len(problems))]
        differences = tf.reshape(tf.constant(differences, tf.int32), (-1, 2))
        seeds = tf.unstack(tf.stack([first, step]) + differences)
        names = [mark.name for mark in marks]
        states = self._solver.solve(
            names, problems, factors, seeds, step, self.recorder
        )
        found = []
        for layer, problem, factor, mark in zip(
            states, problems, factors, marks
        ):
            layer = self._rule.finish(layer, problem)
            if self.hold:
                scaled = ops.scale_problem(problem, factor)
                layer = hold_uncertain(layer, scaled, self.hold)
            if layer.shape != tuple(mark.kernel.shape):
                layer = tf.reshape(layer, mark.kernel.shape)
            found.append(layer)
        return found

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any = None
    ) -> Any:
        """Applies the update rule to one kernel.

        Keras calls this method with states in place of a `gradient`, which are
        summed over replicas and may be clipped and averaged. Each of these
        scales the states by a positive factor, which is removed.
        """
        if not self.is_updated(gradient, variable):
            return
        rate = tf.cast(learning_rate, variable.dtype)
        states = tf.cast(gradient, variable.dtype)
        if self._are_states_scaled():
            states = self._unscaled(states)
        self._rule.update(variable, states, rate)

    def _are_states_scaled(self):
        """Returns whether Keras may have scaled the states of this update."""
        strategy = tf.distribute.get_strategy()
        scale = getattr(self, "loss_scale_factor", None)
        return (
            strategy.num_replicas_in_sync > 1
            or bool(self._accumulates())
            or scale is not None
        )

    def _unscaled(self, states):
        if self.reads == "best":
            return tf.sign(states)
        return states * self._total_loss_scale()

    def _skip(self):
        """Counts a skipped update and discards partial sums."""
        self._skipped.assign_add(1)
        for sums in self._sums.values():
            sums.clear()
        self._drop_partial_update()
        if tf.executing_eagerly():
            self._warn_if_skipped()

    def _loss_scale(self):
        """Returns the factor of mixed precision that gradients contain."""
        return float(getattr(self, "loss_scale_factor", None) or 1.0)

    def _total_loss_scale(self):
        """Returns the loss scale times the number of accumulated batches."""
        return self._loss_scale() * float(self._accumulates() or 1)

    # Warnings

    def _warn_if_skipped(self):
        count = self.skipped_updates
        if count:
            self._warn_once(
                "skipped",
                f"{count} update(s) were skipped because a gradient, the "
                "learning rate or the norm of an input of a binary layer was "
                "not finite. They changed no variable and no optimizer state. "
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
            seed=self.seed,
            on_failure=on_failure,
            **{name: getattr(self, name) for name in SAVED},
        )
        return config
