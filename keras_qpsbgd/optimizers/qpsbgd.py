"""QP-SBGD as a Keras optimizer."""

import logging
import numbers
import random
import warnings
import weakref
from typing import Any

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import _memory
from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd import recording
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.host.call import HostCall
from keras_qpsbgd.backends.host.progress import HostProgress
from keras_qpsbgd.backends.host.report import SolverReport
from keras_qpsbgd.optimizers import branches
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.binary_optimizer import LearningRate
from keras_qpsbgd.optimizers.binary_optimizer import OptimizerLike
from keras_qpsbgd.optimizers.gradient_scale import GradientScale

_logger = logging.getLogger("keras_qpsbgd")


@_keras.register
class QPSBGD(BinaryOptimizer):
    r"""Quantum projected stochastic binary-gradient descent.

    For every binary kernel, in each step, the gradient is mapped onto binary
    variables by solving one QUBO per column (the paper's Definition 1),

    $$g_j = \arg\min_{g \in \{-1,+1\}^n} \; g^T Q g + s_j^T g ,$$

    and the latent weights move against it:

    $$\Omega \leftarrow \Omega - \alpha \, g .$$

    Entries without information are not changed: columns whose fields are zero
    and inputs that were never active. A solution that would ascend is negated.
    Every other variable (biases, batch normalisation, an encoder)
    is updated by `real_optimizer`. Non-finite gradients skip the whole update.

    Args:
        learning_rate: float or schedule, the step of the latent weights. About
            0.02 for layers of some ten inputs, 0.002 for some hundred, with
            decay to zero. `optimizer.real_optimizer.learning_rate` is set
            separately.
        backend: what solves the QUBOs: a name (see `backends.available()`), a
            configuration such as `{"name": "native", "preset": "fast"}`, a
            `Backend` or any `dimod.Sampler`.
        gradient_scale: `"max"`, `"reach"`, `"rms"`, `"batch"` or `"raw"`, see
            `optimizers/gradient_scale.py`. `"raw"` is the paper's rule, which
            hardly learns from a loss that is a mean over the batch.
        kappa: strength of the first three scales; `None` means 4, 1 and 1.
        real_optimizer: a Keras optimizer, its name or configuration, for all
            variables that are not binary kernels. Saved with the model.
        seed: int. Makes a run repeatable to the bit. `None` draws one, which is
            saved with the optimizer's state.
        on_failure: what a failed solve does to the step: `"raise"` ends
            training with a message that says `SolverError` and leaves all
            variables as they were, `"hold"` leaves the layer as it is, any
            backend is tried instead. If that fails as well, training ends as
            with `"raise"`. The exception is kept as `optimizer.last_error`.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`. `weight_decay` and
            gradient clipping are handed to `real_optimizer`: they reach real
            variables only.

    Example:

    >>> optimizer = keras_qpsbgd.QPSBGD(learning_rate=0.02)
    >>> model = keras.Sequential([keras_qpsbgd.layers.BinaryDense(1)])
    >>> model.compile(optimizer=optimizer, loss="mse")
    >>> _ = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)

    It works in custom loops, too. An update uses exactly the backward passes
    that its gradients came from; you may add, scale or clip gradients before
    you apply them. If their origin cannot be known, the kernel is not updated
    and a warning says why. See `keras_qpsbgd.with_rows` for gradients that are
    computed in one `tf.function` and applied in another.

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
        self.gradient_scale = gradient_scale
        self._scale = GradientScale(gradient_scale, kappa)
        self.kappa = None if kappa is None else float(kappa)
        if gradient_scale == "raw":
            warnings.warn(
                'gradient_scale="raw" is the paper\'s rule as printed. With a '
                "loss that is a mean over the batch it hardly learns; the "
                "other scales do.",
                stacklevel=2,
            )
        self.backend = backend
        self._on_host = not isinstance(backend, backends.GraphBackend)
        self.on_failure = on_failure
        self._fallback = None
        if on_failure not in ("raise", "hold"):
            try:
                self._fallback = backends.get(on_failure)
            except ValueError as error:
                raise ValueError(
                    '`on_failure` must be "raise", "hold" or a backend '
                    f"({error}). Received: on_failure={on_failure!r}"
                ) from error
        self.last_error = None
        self._report = SolverReport()
        self.host_progress = HostProgress()
        self._skipped = None  # a variable, once built
        self._sums: dict = {}
        self._checked = False

    # Set-up

    def add_state(self, marks: Any) -> Any:
        seed = random.randrange(2**31) if self.seed is None else self.seed
        self._seed = self.add_scalar(seed % 2**31, "int32", "seed")
        self._skipped = self.add_scalar(0, "int32", "skipped_updates")
        if self._accumulates():
            self._sums = {mark: recording.Sums(mark) for mark in marks}

    def _check_backend(self):
        """Once, when training starts.

        Not in `build`, which Keras calls in loading a model: that must work
        without the solver's licence or token.
        """
        if self._checked:
            return
        for backend in filter(None, (self.backend, self._fallback)):
            for mark in self._binary.values():
                backend.check(mark.num_variables, mark.num_columns)
        if not self._on_host:
            _logger.info(
                "The search of `%s` is compiled in the first training step, "
                "once for each shape of a layer; this can take some seconds.",
                self.backend.name,
            )
        self._checked = True

    def _check_xla(self):
        if self._on_host and _keras.inside_xla():
            raise ValueError(
                f"The backend `{self.backend.name}` solves on the host, which "
                "XLA cannot call. Pass `jit_compile=False` to `compile`, or to "
                "your `tf.function`; with a GPU, Keras 3 uses XLA by default. "
                "Received: jit_compile=True"
            )

    @property
    def skipped_updates(self) -> int:
        """Number of updates skipped because a number was not finite."""
        # Asked by a thread, too, while the optimizer is being built.
        if self._skipped is None:
            return 0
        return int(tf.convert_to_tensor(self._skipped))

    def solver_report(self) -> SolverReport:
        """What the solver on the host was asked, cost and failed to do.

        Returns:
            A `SolverReport`: `layers` by name, their `total`; print it for a
            table. Empty for backends that solve in the graph.

        Example:

        >>> print(model.optimizer.solver_report())
        """
        return self._report.copy()

    # One update

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates the variables, given their straight-through gradients.

        The gradient of a binary kernel itself is not used, but the backward
        passes that it came from.

        Args:
            grads: list of gradients, tensors or `RecordedGradient`s.
            trainable_variables: list of the variables that they belong to.
                Defaults to those that the optimizer was built on.
        """
        grads = list(grads)
        if not grads:
            return
        binary, real = self.split(grads, trainable_variables)
        self._check_backend()
        self._check_xla()
        kernels, problems, held = self._gather(binary)
        # The gradient of a kernel is a product of rows and row gradients. If
        # the problem is finite it need not be made, so it is not looked at, and
        # TensorFlow leaves it out.
        checked = [
            grad.values if isinstance(grad, tf.IndexedSlices) else grad
            for grad in [entry[0] for entry in real + held]
        ]
        for problem, _ in problems:
            checked += ops.bounds(problem)
        checked.append(self.learning_rate)
        finite = branches.all_replicas(ops.is_finite(checked))

        def update(real_grads, problems):
            self._update(
                real_grads,
                [variable for _, variable, _ in real],
                kernels,
                problems,
                [variable for _, variable in held],
            )

        branches.in_one_branch(
            finite,
            update,
            ([grad for grad, _, _ in real], problems),
            self._skip,
        )
        _memory.free_with(self)

    def _gather(self, binary):
        """What the update knows about the binary kernels.

        Returns:
            Three lists: `(variable, mark)` and `(Problem, Statistics)` of the
            kernels to update, and `(gradient, variable)` of those to hold.
        """
        kernels, problems, held = [], [], []
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
            if self._accumulates():
                self._sums[mark].add(calls)
                problems.append(self._sums[mark].gather())
            else:
                problems.append(recording.gather(calls, mark))
        for (reason, advice), names in reasons.items():
            names = ", ".join(names)
            self._warn_once(
                (reason, names),
                f"Binary kernels were not updated (layers: {names}). The "
                "backward passes that the gradient came from are unknown, "
                f"because it {reason}. {advice}",
            )
        return kernels, problems, held

    def _update(self, real_grads, real_variables, kernels, problems, held):
        """The update with finite gradients, in replica context."""
        if self._accumulates():
            steps = self.gradient_accumulation_steps
            states = tf.cond(
                (self._iterations + 1) % steps == 0,
                lambda: self._solve_and_clear(kernels, problems),
                lambda: [tf.zeros(mark.kernel.shape) for _, mark in kernels],
            )
        else:
            states = self._solve(kernels, problems)
        # A solver that failed with `on_failure="raise"` stops here, before any
        # variable has moved.
        ordered = states if self._on_host else []
        with tf.control_dependencies(ordered):
            self.apply_real(real_grads, real_variables)
            # With a state of zero Keras counts the update and holds the kernel.
            states = states + [tf.zeros(variable.shape) for variable in held]
            variables = [variable for variable, _ in kernels] + held
            # Keras adds them up in the precision of the kernel.
            states = [tf.cast(s, v.dtype) for s, v in zip(states, variables)]
            self.apply_binary(states, variables, real_variables)
        _memory.free_with(self)  # the branch has a graph of its own

    def _solve_and_clear(self, kernels, problems):
        states = self._solve(kernels, problems)
        for sums in self._sums.values():
            sums.clear()
        return states

    def _solve(self, kernels, problems):
        """States of all kernels, shaped like them, zero where held.

        Only the first replica solves; the others return zeros, and the sum over
        replicas that follows hands all of them the same states. So copies stay
        equal even with a solver that cannot be seeded, and it is asked once.
        """
        context = tf.distribute.get_replica_context()
        shapes = [mark.kernel.shape for _, mark in kernels]

        def solve():
            return self._solve_all(kernels, problems)

        if context.num_replicas_in_sync == 1:
            return solve()
        return tf.cond(
            tf.equal(context.replica_id_in_sync_group, 0),
            solve,
            lambda: [tf.zeros(shape) for shape in shapes],
        )

    def _solve_all(self, kernels, problems):
        loss_scale = self._loss_scale()
        factors = [
            self._scale.factor(problem, statistics, loss_scale)
            for problem, statistics in problems
        ]
        problems = [problem for problem, _ in problems]
        step = tf.cast(self.iterations, tf.int32)
        first = tf.convert_to_tensor(self._seed)
        seeds = [
            tf.stack([first + 7919 * index, step])
            for index in range(len(problems))
        ]
        if self._on_host and kernels:
            states = self._solve_on_host(kernels, problems, factors, seeds)
        else:
            states = self.backend.step_in_graph(problems, seeds, factors)
        return [
            tf.reshape(found, mark.kernel.shape)
            for found, (_, mark) in zip(states, kernels)
        ]

    def _solve_on_host(self, kernels, problems, factors, seeds):
        scaled = [
            ops.scale_problem(problem, factor)
            for problem, factor in zip(problems, factors)
        ]
        names = [mark.name for _, mark in kernels]
        solved, messages = self._host_call()(scaled, seeds, names)
        if self.on_failure != "hold":
            # Also if the backend of `on_failure` failed as well.
            solved = branches.unless_failed(messages, solved)
        return [
            tf.where(ops.has_information(problem), states, 0.0)
            for problem, states in zip(scaled, solved)
        ]

    def _host_call(self):
        # TensorFlow keeps callbacks alive; they must not keep the optimizer.
        on_error = weakref.WeakMethod(self._on_error)
        return HostCall(
            self.backend,
            self._fallback,
            self._report,
            on_error,
            self.host_progress,
            stop_at_failure=self.on_failure != "hold",
        )

    def _on_error(self, error, layer, message):
        self.last_error = error
        if self.on_failure != "raise":
            self._warn_once(
                ("failed", layer, type(error)),
                f"A solve failed, and on_failure={self.on_failure!r} is used "
                f"instead. {message}",
            )

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any = None
    ) -> Any:
        """Moves one kernel against its binary gradient.

        Keras has summed `gradient` over replicas, and may have clipped and
        averaged it: all of them scale the states by a positive factor, which
        the sign takes out again.
        """
        if not self.is_updated(gradient, variable):
            return
        rate = tf.cast(learning_rate, variable.dtype)
        step = tf.sign(tf.cast(gradient, variable.dtype))
        variable.assign_sub(rate * step)

    def _skip(self):
        """Leaves everything as it is after a non-finite gradient."""
        self._skipped.assign_add(1)
        for sums in self._sums.values():
            sums.clear()
        self._drop_partial_update()
        if tf.executing_eagerly():
            self._warn_if_skipped()

    def _loss_scale(self):
        """The loss scale factor times the number of accumulated batches."""
        scale = getattr(self, "loss_scale_factor", None) or 1.0
        return float(scale * (self._accumulates() or 1))

    # Warnings

    def _warn_if_skipped(self):
        count = self.skipped_updates
        if count:
            self._warn_once(
                "skipped",
                f"{count} update(s) skipped: a gradient, the learning rate or "
                "the norm of an input of a binary layer was not finite. No "
                "variable and no optimizer state changed in them (the moving "
                "statistics of batch normalisation, which the forward pass "
                "writes, may have). See `optimizer.skipped_updates`.",
            )

    def finalize_variable_values(self, var_list: Any) -> None:
        """Called by Keras at the end of `fit`."""
        self._warn_if_skipped()
        super().finalize_variable_values(var_list)

    # Configuration

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        on_failure = self.on_failure
        if self._fallback is not None:
            on_failure = backends.serialize(self._fallback)
        config.update(
            backend=backends.serialize(self.backend),
            gradient_scale=self.gradient_scale,
            kappa=self.kappa,
            seed=self.seed,
            on_failure=on_failure,
        )
        return config
