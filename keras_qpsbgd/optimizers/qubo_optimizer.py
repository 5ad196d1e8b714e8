"""Base class of optimizers that solve QUBOs."""

import numbers
import random
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.host.solver_report import SolverReport
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import memory
from keras_qpsbgd.optimizers import replica_cond
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.estimate import QpuEstimate
from keras_qpsbgd.optimizers.estimate import estimate_model
from keras_qpsbgd.optimizers.estimate import log_start
from keras_qpsbgd.optimizers.step_solver import StepSolver
from keras_qpsbgd.qubo import ops


class QuboOptimizer(BinaryOptimizer):
    """Base class of optimizers that move kernels along solutions of QUBOs.

    It checks the gradients, sums them over replicas and accumulated batches,
    solves the problems of all layers together, and reports what the solver did.
    A subclass defines the rule:

    - `add_rule_state(marks)` creates its variables,
    - `connect(marks)` asks the layers for statistics,
    - `begin_update(marks, is_connected)` runs at the start of every step,
    - `averages(grad, mark)` returns what the next two methods need,
    - `layer_problems(averages, mark)` returns the QUBOs of one kernel,
    - `end_update(averages, marks)` stores the new state after a solve,
    - `skip_update()` runs instead if a solve fails or gradients are not finite,
    - `update_step` moves one kernel.

    Args:
        learning_rate: See `QPSBGD`.
        backend: See `QPSBGD`.
        real_optimizer: See `QPSBGD`.
        max_variables: See `QPSBGD`.
        seed: See `QPSBGD`.
        on_failure: See `QPSBGD`.
        **kwargs: Arguments of `BinaryOptimizer`.
    """

    def __init__(
        self,
        learning_rate,
        backend,
        real_optimizer,
        max_variables,
        seed,
        on_failure,
        **kwargs,
    ):
        backend = backends.get(backend)
        super().__init__(learning_rate, real_optimizer, **kwargs)
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
        self.max_variables = max_variables
        # A NumPy integer cannot be saved.
        self.seed = None if seed is None else int(seed)
        self._solver = StepSolver(
            backend, on_failure, self._warn_once, self.skip_update
        )
        # Records updates (see `step_solver`). `callbacks.QuboRecorder` sets it
        # during `fit`. It is not saved.
        self.recorder: Any = None
        # `add_state` creates these variables.
        self._skipped: Any = None
        self._accumulated = _keras.Untracked()
        self._is_connected = False
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

    # The rule

    def add_rule_state(self, marks: Any) -> None:
        """Creates the variables of the rule.

        Args:
            marks: List of `statistics.BinaryKernel`.
        """

    def connect(self) -> None:
        """Asks the layers for their statistics, after `add_rule_state`."""

    def begin_update(self, marks: Any, is_connected: bool) -> None:
        """Runs at the start of every step, in replica context.

        Args:
            marks: List of `statistics.BinaryKernel`.
            is_connected: Boolean. Whether `connect` was called before the step.
        """

    def averages(self, grad: Any, mark: Any) -> Any:
        """Returns the gradient of one kernel and its new averages.

        Args:
            grad: Tensor of shape `(n, m)`. The gradient of the whole batch.
            mark: `statistics.BinaryKernel`.
        """
        raise NotImplementedError

    def layer_problems(self, averages: Any, mark: Any) -> ops.LayerProblems:
        """Returns the problems of one kernel.

        Args:
            averages: The result of `averages`.
            mark: `statistics.BinaryKernel`.
        """
        raise NotImplementedError

    def problem_sizes(self, mark: Any) -> list[tuple[int, int]]:
        """Returns the numbers of inputs and outputs of `layer_problems`."""
        return [(mark.num_variables, mark.num_columns)]

    def end_update(self, averages: Any, marks: Any) -> None:
        """Stores the state of the rule, after the problems were solved."""

    def skip_update(self) -> None:
        """Runs instead of an update that fails or has non-finite gradients."""

    def constant_variables(self) -> list:
        """Returns the variables that an update does not change.

        Includes those that a skipped update changes in the same way.
        """
        return [
            self._seed,
            self._skipped,
            self._learning_rate,
            self.real_optimizer._learning_rate,
        ]

    # Setup

    def is_binary(self, mark: Any) -> bool:
        """Returns whether a kernel is trained with QUBOs.

        `real_optimizer` trains the others, with their straight-through
        gradients.
        """
        most = self.max_variables
        return most is None or mark.num_variables <= most

    def build(self, variables):
        super().build(variables)
        # Replicas run one after the other and must all do the same, so if the
        # first one builds the optimizer, `apply` connects it afterwards.
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            self._connect()

    def _connect(self):
        if self.is_built() and not self._is_connected:
            self._is_connected = True
            self.connect()

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
        seed = random.randrange(2**31) if self.seed is None else self.seed
        self._seed = self.add_array((), "int32", "seed", seed % 2**31)
        self._skipped = self.add_array((), "int32", "skipped_updates")
        if self._accumulates():
            for index, mark in enumerate(marks):
                self._accumulated[mark] = self.add_array(
                    (mark.num_variables, mark.num_columns),
                    "float32",
                    f"accumulated_{index}",
                    aggregation="none",
                )
        self.add_rule_state(marks)

    def _check_backend(self):
        """Checks the backends once, when training starts.

        `build` does not check them, because Keras calls it to load a model.
        Loading must work without the license or token of the solver.
        """
        if self._checked:
            return
        sizes = self._sizes_of(self._binary.values())
        for backend in self._solver.all_backends:
            backend.check_layers(sizes)
        log_start(self.backend, sizes)
        self._checked = True

    def estimate(self, model: Any, steps: int) -> QpuEstimate:
        """Estimates the QPU time of training a model.

        It connects to the solver if necessary, but sends no problem. If the
        backend uses no QPU time, the estimate is zero, and its `note` says why.
        `callbacks.SolverProgress` logs this estimate when `fit` starts, and
        warns if it exceeds the budget.

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
            self.backend, model, steps, self._accumulates() or 1, self._sizes_of
        )

    def _sizes_of(self, marks):
        return [
            size
            for mark in marks
            if self.is_binary(mark)
            for size in self.problem_sizes(mark)
        ]

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
        is_connected = self._is_connected
        binary, real = self.split(grads, trainable_variables)
        self._check_backend()
        self._check_xla()
        self.begin_update([mark for _, _, mark in binary], is_connected)
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
        self._connect()
        memory.free_with(self)

    def _has_no_branches(self):
        """Returns whether the step consists of one compiled program."""
        return (
            _keras.inside_xla()
            and not tf.distribute.has_strategy()
            and not self._accumulates()
        )

    def _changed_variables(self):
        """Returns the variables that an update may change."""
        constant = self.constant_variables()
        return [
            variable
            for variable in [*self._trainable_variables, *self.variables]
            if not any(variable is other for other in constant)
        ]

    def _update(self, grads, kernels, real_grads, real_variables):
        """Applies an update with finite gradients, in replica context."""
        marks = [mark for _, mark in kernels]
        grads = self._total(grads, marks)
        averages = [self.averages(g, mark) for g, mark in zip(grads, marks)]
        steps = self._accumulates()
        if steps:
            is_update = (self._iterations + 1) % steps == 0
            states = tf.cond(
                is_update,
                lambda: self._solve(averages, marks),
                lambda: [tf.zeros(mark.kernel.shape) for mark in marks],
            )
        else:
            states = self._solve(averages, marks)
        # With `on_failure="raise"`, a failed solve stops the step here, before
        # any variable has changed.
        ordered = states if self._solver.on_host else []
        with tf.control_dependencies(ordered):
            if steps:
                self._accumulate(grads, averages, marks, is_update)
            else:
                self.end_update(averages, marks)
            self.apply_real(real_grads, real_variables)
            # Keras sums them in the precision of the kernel.
            states = [tf.cast(s, v.dtype) for s, (v, _) in zip(states, kernels)]
            self.apply_binary(states, [v for v, _ in kernels], real_variables)
        memory.free_with(self)  # the branch has its own graph

    def _total(self, grads, marks):
        """Returns the gradients of the whole batch as matrices (n, m).

        Sums over replicas and, with gradient accumulation, over the batches so
        far.
        """
        scale = float(getattr(self, "loss_scale_factor", None) or 1.0)
        scale *= float(self._accumulates() or 1)
        grads = [
            tf.reshape(
                tf.cast(tf.convert_to_tensor(grad), tf.float32),
                (mark.num_variables, mark.num_columns),
            )
            for grad, mark in zip(grads, marks)
        ]
        if scale != 1.0:
            grads = [grad / scale for grad in grads]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1 and self._aggregate:
            grads = context.all_reduce(tf.distribute.ReduceOp.SUM, grads)
        if self._accumulates():
            grads = [
                grad + tf.convert_to_tensor(self._accumulated[mark])
                for grad, mark in zip(grads, marks)
            ]
        return grads

    def _accumulate(self, grads, averages, marks, is_update):
        """Stores the sums of a gradient accumulation."""
        for grad, mark in zip(grads, marks):
            kept = tf.where(is_update, tf.zeros_like(grad), grad)
            self._accumulated[mark].assign(kept)
        tf.cond(
            is_update,
            lambda: self.end_update(averages, marks),
            lambda: None,
        )

    def _solve(self, averages, marks):
        """Returns the states of all kernels, zero for unchanged entries.

        Only the first replica solves. The others return zeros, and the
        subsequent sum over replicas gives all of them the same states. The
        copies therefore stay equal even if the solver has no seed, and the
        solver is called only once.
        """
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1:
            return self._solve_all(averages, marks)
        return tf.cond(
            tf.equal(context.replica_id_in_sync_group, 0),
            lambda: self._solve_all(averages, marks),
            lambda: [tf.zeros(mark.kernel.shape) for mark in marks],
        )

    def _solve_all(self, averages, marks):
        step = tf.cast(self.iterations, tf.int32)
        first = tf.convert_to_tensor(self._seed)
        differences = [(7919 * index, 0) for index in range(len(marks))]
        differences = tf.reshape(tf.constant(differences, tf.int32), (-1, 2))
        seeds = tf.unstack(tf.stack([first, step]) + differences)
        layers = [self.layer_problems(*pair) for pair in zip(averages, marks)]
        names = [mark.name for mark in marks]
        states = self._solver.solve(names, layers, seeds, step, self.recorder)
        return [
            tf.reshape(layer, mark.kernel.shape)
            for layer, mark in zip(states, marks)
        ]

    def _skip(self):
        """Counts a skipped update."""
        self._skipped.assign_add(1)
        self.skip_update()
        if tf.executing_eagerly():
            self._warn_if_skipped()

    # Warnings

    def _warn_if_skipped(self):
        count = self.skipped_updates
        if count:
            self._warn_once(
                "skipped",
                f"{count} update(s) were skipped because a gradient or the "
                "learning rate was not finite. They changed no variable and no "
                "optimizer state. (The forward pass may have changed moving "
                "statistics, such as those of batch normalization.) See "
                "`optimizer.skipped_updates`.",
            )

    def finalize_variable_values(self, var_list: Any) -> None:
        """Warns about skipped updates. Keras calls this at the end of `fit`."""
        self._warn_if_skipped()
        super().finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        on_failure = self.on_failure
        if self._solver.fallback is not None:
            on_failure = backends.serialize(self._solver.fallback)
        config.update(
            backend=backends.serialize(self.backend),
            max_variables=self.max_variables,
            seed=self.seed,
            on_failure=on_failure,
        )
        return config
