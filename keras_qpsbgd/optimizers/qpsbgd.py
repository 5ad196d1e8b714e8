"""QP-SBGD as a Keras optimizer."""

import random
import warnings
import weakref

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import accumulator
from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd.backends.on_host import HostCall
from keras_qpsbgd.backends.progress import HostProgress
from keras_qpsbgd.backends.report import SolverReport
from keras_qpsbgd.optimizers import branches
from keras_qpsbgd.optimizers import first_step
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer
from keras_qpsbgd.optimizers.gradient_scale import GradientScale


@_keras.register
class QPSBGD(BinaryOptimizer):
    r"""Quantum projected stochastic binary-gradient descent.

    For every binary kernel, in each step, the gradient is mapped onto binary
    variables by solving one QUBO per column (the paper's Definition 1),

    $$g_j = \arg\min_{g \in \{-1,+1\}^n} \; g^T Q g + s_j^T g ,$$

    and the latent weights move against it:

    $$\Omega \leftarrow \Omega - \alpha \, g .$$

    Entries about which the step says nothing are held: columns whose fields are
    zero and inputs that were never active. A solution that would ascend is
    turned round. Every other variable (biases, batch normalisation, an encoder)
    is updated by `real_optimizer`. Non-finite gradients skip the whole update.

    Args:
        learning_rate: float or schedule, the step of the latent weights. About
            0.02 for layers of some ten inputs, 0.002 for some hundred, with
            decay to zero. `optimizer.real_optimizer.learning_rate` is apart.
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
            backend is tried instead. The exception is kept as
            `optimizer.last_error`.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`. `weight_decay` and
            gradient clipping are handed to `real_optimizer`: they reach real
            variables only.

    Example:

    >>> optimizer = keras_qpsbgd.QPSBGD(learning_rate=0.02)
    >>> model = keras.Sequential([keras_qpsbgd.layers.BinaryDense(1)])
    >>> model.compile(optimizer=optimizer, loss="mse")
    >>> _ = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)

    In a training loop of your own, build the optimizer first
    (`optimizer.build(model.trainable_variables)`): the backward pass is
    recorded for the optimizer that was built on the kernel last.

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128)
    """

    def __init__(
        self,
        learning_rate=0.01,
        backend="native",
        gradient_scale="max",
        kappa=None,
        real_optimizer="adam",
        seed=None,
        on_failure="raise",
        name="qpsbgd",
        **kwargs,
    ):
        backend = backends.get(backend)
        super().__init__(
            learning_rate,
            real_optimizer,
            accumulator.Recorder(
                on_host=not isinstance(backend, backends.GraphBackend)
            ),
            name=name,
            **kwargs,
        )
        self._recorder = self.kernel_owner
        if seed is not None and not isinstance(seed, int):
            raise ValueError(
                f"`seed` must be an int or None. Received: seed={seed!r}"
            )
        self.seed = seed
        self.gradient_scale = gradient_scale
        self.kappa = kappa
        self._scale = GradientScale(gradient_scale, kappa)
        if gradient_scale == "raw":
            warnings.warn(
                'gradient_scale="raw" is the paper\'s rule as printed. With a '
                "loss that is a mean over the batch it hardly learns; the "
                "other scales do.",
                stacklevel=2,
            )
        self.backend = backend
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
        self._checked = False
        self._announced = False

    # Set-up

    def build(self, variables):
        """Creates all state, and takes over the recording of the kernels.

        Args:
            variables: the model's trainable variables, at least one of them a
                binary kernel.
        """
        self._recorder.announces = False
        super().build(variables)

    def add_state(self, kernels):
        seed = random.randrange(2**31) if self.seed is None else self.seed
        self._seed = self.add_scalar(seed % 2**31, "int32", "seed")
        self._skipped = self.add_scalar(0, "int32", "skipped_updates")

    def _built_in_a_trace(self):
        # The backward pass was not recorded; that of the next trace will be.
        _keras.trace_again()
        for acc in self._binary.values():
            acc.prepare()

    def _check_backend(self):
        """Once, when training starts.

        Not in `build`, which Keras calls in loading a model: that must work
        without the solver's licence or token.
        """
        if self._checked:
            return
        for backend in filter(None, (self.backend, self._fallback)):
            for acc in self._binary.values():
                backend.check(acc.num_variables, acc.num_columns)
        self._checked = True

    @property
    def skipped_updates(self):
        """Number of updates skipped because a gradient was not finite."""
        # Asked by a thread, too, while the optimizer is being built.
        if self._skipped is None:
            return 0
        return int(tf.convert_to_tensor(self._skipped))

    def solver_report(self):
        """What the solver on the host was asked, cost and failed to do.

        Returns:
            A `SolverReport`: `layers` by name, their `total`; print it for a
            table. Empty for backends that solve in the graph.

        Example:

        >>> print(model.optimizer.solver_report())
        """
        return self._report.copy()

    # The pass is announced before Keras takes the gradients

    def scale_loss(self, loss):
        self._begin_pass()
        return super().scale_loss(loss)

    def compute_gradients(self, loss, var_list, tape=None):
        """Legacy Keras's way from the loss to the gradients."""
        self._begin_pass()
        return super().compute_gradients(loss, var_list, tape)

    def _begin_pass(self):
        self._announce_if_slow()
        accumulator.begin_pass(self._recorder)

    def _announce_if_slow(self):
        if not self._announced:
            self._announced = True
            taken = weakref.WeakMethod(self._steps_taken)
            first_step.announce_if_slow(taken)

    def _steps_taken(self):
        """Updates made, skipped, and begun by a solver on the host."""
        return (
            int(tf.convert_to_tensor(self._iterations)),
            self.skipped_updates,
            self.host_progress.begun,
        )

    # One update

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads, trainable_variables=None):
        """Updates the variables, given their straight-through gradients.

        The gradient of a binary kernel itself is not used, what its layer
        recorded is.
        """
        grads = list(grads)
        if not grads:
            return
        self._announce_if_slow()  # in a loop of one's own
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        variables = list(trainable_variables)
        one_pass = accumulator.end_pass(self._recorder)
        if not self.is_built() and one_pass is None:
            self.build(variables)
        elif not self.is_built():
            with tf.init_scope():
                self.build(variables)
        self._check_backend()
        if (
            self._scale.depends_on_loss_scale
            and _keras.inside_loss_scale_optimizer()
        ):
            raise ValueError(
                "With a LossScaleOptimizer (or mixed_float16) `gradient_scale` "
                'must be "max", "reach" or "rms", which do not depend on the '
                f"loss scale. Received: gradient_scale={self.gradient_scale!r}"
            )

        binary, real = self.split(grads, variables)
        if self._accumulates() and one_pass is not None:
            for _, _, acc in binary:
                acc.store(one_pass)
        gathered = [acc.read(one_pass) for _, _, acc in binary]
        for (_, _, acc), found in zip(binary, gathered):
            self._warn_if_empty(acc, found)
        found = [
            (variable, acc, problem)
            for (_, variable, acc), problem in zip(binary, gathered)
            if problem is not None
        ]
        # The gradient of a kernel is a product of what an announced pass has
        # recorded. If that is finite it need not be made, so it is not looked
        # at, and TensorFlow leaves it out.
        checked = [
            grad.values if isinstance(grad, tf.IndexedSlices) else grad
            for grad, _, _ in (real if one_pass is not None else binary + real)
        ]
        for _, _, (problem, _) in found:
            checked += ops.bounds(problem)
        finite = branches.all_replicas(ops.is_finite(checked))

        def update(real_grads, problems):
            self._update(
                real_grads,
                [variable for _, variable, _ in real],
                [(variable, acc) for variable, acc, _ in found],
                problems,
            )

        branches.in_one_branch(
            finite,
            update,
            ([grad for grad, _, _ in real], [p for _, _, p in found]),
            lambda: self._skip([acc for _, acc, _ in found]),
        )
        # Last: legacy Keras calls `build` in every update.
        self._recorder.announces = one_pass is not None

    def _update(self, real_grads, real_variables, kernels, problems):
        """The update with finite gradients, in replica context."""
        if self._accumulates():
            steps = self.gradient_accumulation_steps
            states = tf.cond(
                (self._iterations + 1) % steps == 0,
                lambda: self._solve_and_clear(kernels, problems),
                lambda: [tf.zeros(acc.kernel.shape) for _, acc in kernels],
            )
        else:
            states = self._solve_and_clear(kernels, problems)
        # A solver that failed with `on_failure="raise"` stops here, before any
        # variable has moved.
        ordered = states if self._recorder.on_host else []
        with tf.control_dependencies(ordered):
            self.apply_real(real_grads, real_variables)
            self.stock_apply(states, [variable for variable, _ in kernels])

    def _solve_and_clear(self, kernels, problems):
        """States of all kernels, shaped like them, zero where held.

        Only the first replica solves; the others return zeros, and the sum over
        replicas that follows hands all of them the same states. So copies stay
        equal even with a solver that cannot be seeded, and it is asked once.
        """
        context = tf.distribute.get_replica_context()
        shapes = [acc.kernel.shape for _, acc in kernels]

        def solve():
            return self._solve_all(kernels, problems)

        if context.num_replicas_in_sync == 1:
            states = solve()
        else:
            states = tf.cond(
                tf.equal(context.replica_id_in_sync_group, 0),
                solve,
                lambda: [tf.zeros(shape) for shape in shapes],
            )
        for _, acc in kernels:
            acc.clear()
        return states

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
        if self._recorder.on_host and kernels:
            states = self._solve_on_host(kernels, problems, factors, seeds)
        else:
            states = self.backend.step_in_graph(problems, seeds, factors)
        return [
            tf.reshape(found, acc.kernel.shape)
            for found, (_, acc) in zip(states, kernels)
        ]

    def _solve_on_host(self, kernels, problems, factors, seeds):
        scaled = [
            ops.scale_problem(problem, factor)
            for problem, factor in zip(problems, factors)
        ]
        names = [acc.name for _, acc in kernels]
        solved, messages = self._host_call()(scaled, seeds, names)
        if self.on_failure == "raise":
            solved = branches.unless_failed(messages, solved)
        return [
            tf.where(ops.informed(problem), states, 0.0)
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
        )

    def _on_error(self, error):
        self.last_error = error
        if self.on_failure != "raise":
            self._warn_once(
                "failed",
                f"A solve failed and was handled by on_failure="
                f"{self.on_failure!r}: {error}",
            )

    def update_step(self, gradient, variable, learning_rate=None):
        """Moves one kernel against its binary gradient.

        Keras has summed `gradient` over replicas, and may have clipped and
        averaged it: all of them scale the states by a positive factor, which
        the sign takes out again.
        """
        if self.variable_key(variable) not in self._binary:
            return
        rate = tf.cast(learning_rate, variable.dtype)
        step = tf.sign(tf.cast(gradient, variable.dtype))
        variable.assign_sub(rate * step)

    def _skip(self, accumulators):
        """Leaves everything as it is after a non-finite gradient."""
        self._skipped.assign_add(1)
        for acc in accumulators:
            acc.clear()
        self._drop_partial_update()
        if tf.executing_eagerly():
            self._warn_if_skipped()

    def _loss_scale(self):
        """What the recorded gradients were multiplied with."""
        scale = getattr(self, "loss_scale_factor", None) or 1.0
        return float(scale * (self._accumulates() or 1))

    # Warnings

    def _warn_if_empty(self, acc, found):
        empty = found is None
        if not empty and found is not None and tf.executing_eagerly():
            empty = bool(found[1].batch == 0)
        if empty:
            self._warn_once(
                acc.name,
                f"The kernel of layer `{acc.name}` has a gradient, but its "
                "backward pass was not recorded, so this update holds it. In a "
                "training loop of your own call "
                "`optimizer.build(model.trainable_variables)` before the first "
                "gradient, and the layer without `training=False`.",
            )

    def _warn_if_skipped(self):
        count = self.skipped_updates
        if count:
            self._warn_once(
                "skipped",
                f"{count} update(s) skipped: a gradient was not finite. No "
                "variable and no optimizer state changed in them (the moving "
                "statistics of batch normalisation, which the forward pass "
                "writes, may have). See `optimizer.skipped_updates`.",
            )

    def finalize_variable_values(self, var_list):
        """Called by Keras at the end of `fit`."""
        self._warn_if_skipped()
        super().finalize_variable_values(var_list)

    # Configuration

    def get_config(self):
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
