"""Base class of the backends that are traced into the training graph."""

import collections
import copy
import json
import math
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends import reads
from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.qubo import Qubo

# Layers with at most this many weights are solved together, in one call.
SMALL = 256
# Maximum number of compiled searches kept for each backend class. Beyond it,
# the least recently used one is dropped. Graphs that use a dropped search keep
# it, but eager steps compile it again, so this should exceed the number of
# different layers of a network.
COMPILED = 64
_compiled_lock = threading.Lock()
# Attributes that do not affect a search.
_IGNORED_ATTRIBUTES = ("name", "executor", "_handle", "_lock")


class GraphBackend(Backend):
    """Base class for backends that solve in TensorFlow, in the training graph.

    Subclasses define `search`. It must compile with XLA and draw its random
    numbers from `seed` with TensorFlow's stateless functions and
    `alg="philox"`, because other generators differ between compiled and plain
    graphs. It must also end if the problem is not finite. A model compiled with
    XLA discards the result in this case.

    Backends of one class share compiled functions if their attributes are
    equal. Attributes that are not plain values (numbers, strings, and lists and
    dictionaries of them) are equal only if they are the same object. Replace
    such an object instead of changing it in place.

    Attributes:
        compiled: Boolean. Whether to compile `search` separately. Keras does
            not compile with XLA on a CPU, and searches are several times slower
            without it. Defaults to `True`.
        scale_matters: Boolean. Whether the states depend on the scale of the
            gradients. If `False`, the problems are not scaled. Defaults to
            `True`.
        uses_couplings: Boolean. Whether the states depend on the couplings. If
            `False`, problems may have the rows form for layers of any size.
            Defaults to `True`.
        can_ascend: Boolean. Whether `search` may return states in an ascent
            direction, which are then negated. Defaults to `True`.

    Example:
        ```python
        class NegativeSign(kq.backends.GraphBackend):
            def search(self, problem, seed):
                return tf.where(problem.fields > 0, -1.0, 1.0)

        kq.backends.register("negative_sign", NegativeSign)
        optimizer = kq.QPSBGD(backend="negative_sign")
        ```
    """

    compiled = True
    scale_matters = True
    uses_couplings = True
    can_ascend = True
    has_reads = False
    # `search` receives tensors. A copy would double the memory of wide layers.
    modifies_problem = False

    def __init__(self) -> None:
        super().__init__()

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        """Finds states for all columns of a problem.

        Args:
            problem: An `ops.Problem`. For wide layers it has rows instead of
                couplings.
            seed: Int32 tensor of shape `(2,)`.

        Returns:
            A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0.
        """
        raise NotImplementedError

    def start(self, problem: ops.Problem) -> tf.Tensor | None:
        """Returns states to start the search from.

        `search` receives them as `problem.start`, unless the `Qubo` has its own
        `start`. They must not depend on the
        scale of the gradients, which is not applied yet. This method is not
        compiled separately, because XLA on a CPU factorizes a matrix fifty
        times slower than TensorFlow does. It is compiled if the whole model is
        (`jit_compile=True`).

        Args:
            problem: An `ops.Problem`.

        Returns:
            A float32 tensor of shape `(n, m)`, or `None`.
        """
        del problem
        return None

    def solve_in_graph(
        self, problem: ops.Problem, seed: tf.Tensor
    ) -> tf.Tensor:
        """Solves one problem, negating columns in an ascent direction.

        Args:
            problem: An `ops.Problem`.
            seed: Int32 tensor of shape `(2,)`.

        Returns:
            A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0.
        """
        (states,) = self._solve([problem], [seed], [1.0], _finished)
        return states

    def step_in_graph(
        self, problems: list[ops.Problem], seeds: list, factors: list
    ) -> list:
        """Solves the problems of all layers of a training step.

        Args:
            problems: List of `ops.Problem`, one per layer.
            seeds: List of int32 tensors of shape `(2,)`.
            factors: List of scalars, the scales of the gradients. See
                `ops.scale_problem`.

        Returns:
            A list of float32 tensors of shape `(n, m)`: the states that the
            step moves along, 0 for weights that it holds.
        """
        states = [None] * len(problems)
        for group in self._groups(problems):
            found = self._solve(
                [problems[i] for i in group],
                [seeds[i] for i in group],
                [factors[i] for i in group],
                _finished_and_held,
            )
            for i, layer in zip(group, found):
                states[i] = layer
        return states

    def mean_reads_in_graph(
        self,
        problems: list[ops.Problem],
        seeds: list,
        factors: list,
        temperature: float | None,
    ) -> list:
        """Returns the mean of several reads instead of the best one.

        Args:
            problems: List of `ops.Problem`, one per layer.
            seeds: List of int32 tensors of shape `(2,)`.
            factors: List of scalars, see `step_in_graph`.
            temperature: Float (optional), see `backends/reads.py`.

        Returns:
            A list of float32 tensors of shape `(n, m)`, 0 for weights to hold.
        """
        backend, config = self._snapshot()

        def solve(problem, seed, factor):
            problem = ops.scale_problem(problem, factor)
            samples = backend.reads_in_graph(problem, seed)
            energies = tf.stack(
                [_varying_energy(problem, one) for one in tf.unstack(samples)]
            )
            mean = reads.mean_in_graph(samples, energies, temperature)
            return _held(mean, problem)

        states = []
        for problem, seed, factor in zip(problems, seeds, factors):
            problem = _without_rows(problem)
            key = ("reads", config, temperature, _shape(problem))
            compiled = _compiled_function(type(self), key, solve)
            states.append(compiled(problem, seed, tf.convert_to_tensor(factor)))
        return states

    def reads_in_graph(
        self, problem: ops.Problem, seed: tf.Tensor
    ) -> tf.Tensor:
        """Returns several states, of shape `(reads, n, m)`.

        Backends with `has_reads` define this method.
        """
        raise NotImplementedError

    def _solve(self, problems, seeds, factors, finish):
        if not self.can_ascend:
            finish = _unchanged if finish is _finished else _held
        problems = [
            problem._replace(start=self.start(problem))
            if problem.start is None
            else problem
            for problem in problems
        ]
        if not self.compiled:
            return [
                self._solve_uncompiled(*layer, finish)
                for layer in zip(problems, seeds, factors)
            ]
        problems = [_without_rows(problem) for problem in problems]
        factors = [tf.convert_to_tensor(factor) for factor in factors]
        backend, config = self._snapshot()

        def solve(problems, seeds, factors):
            if backend.scale_matters:
                problems = list(map(ops.scale_problem, problems, factors))
            return backend._search_all(problems, seeds, finish)

        key = (config, finish, *map(_shape, problems))
        solve = _compiled_function(type(self), key, solve)
        return solve(problems, seeds, factors)

    def _groups(self, problems):
        """Groups the layers that are solved in one call, as lists of indices.

        Small layers share one call because a call costs more than solving them.
        Each of the others has its own call. Layers of the same shape then share
        a compiled function, and run in parallel if there are several cores.
        """
        sizes = [math.prod(problem.fields.shape) for problem in problems]
        small = [i for i, size in enumerate(sizes) if size <= SMALL]
        groups = [[i] for i, size in enumerate(sizes) if size > SMALL]
        return groups + [small] if small else groups

    def _search_all(self, problems, seeds, finish):
        """Searches and finishes the states of several layers."""
        return [
            finish(self._checked_search(problem, seed), problem)
            for problem, seed in zip(problems, seeds)
        ]

    def _checked_search(self, problem, seed):
        """Calls `search` and checks the type and shape of the result."""
        states = self.search(problem, seed)
        expected = problem.fields.shape
        if (
            not tf.is_tensor(states)
            or states.dtype != tf.float32
            or not states.shape.is_compatible_with(expected)
        ):
            received = (
                f"{states.dtype.name} of shape {states.shape}"
                if tf.is_tensor(states)
                else type(states).__name__
            )
            raise ValueError(
                f"`search` of the backend `{self.name}` must return a float32 "
                f"tensor of shape {tuple(expected)}. Received: {received}"
            )
        return states

    def _snapshot(self):
        """Returns a copy that later changes do not affect, and its key.

        Two backends have the same key only if their searches are the same.
        """
        backend = copy.copy(self)
        key = []
        for name, value in sorted(vars(self).items()):
            if name in _IGNORED_ATTRIBUTES:
                continue
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                # The copy keeps the object alive, so its id stays unique.
                key.append((name, id(value)))
            else:
                key.append((name, repr(value)))
                vars(backend)[name] = copy.deepcopy(value)
        return backend, tuple(key)

    def _solve_uncompiled(self, problem, seed, factor, finish):
        """Solves without compiling `search`; large layers compile the rest."""
        if self.scale_matters:
            problem = ops.scale_problem(problem, factor)
        values = self._unrounded(problem, seed)
        problem = _for_finish(problem)

        def round_and_finish(values, problem):
            return finish(ops.sign(values), problem)

        if math.prod(problem.fields.shape) > SMALL:
            key = (finish, _shape(problem))
            round_and_finish = _compiled_function(
                GraphBackend, key, round_and_finish
            )
        return round_and_finish(values, problem)

    def _unrounded(self, problem, seed):
        """Returns numbers whose signs are the states, if not compiled.

        The sign of many numbers is faster in a compiled function.
        """
        return self._checked_search(problem, seed)

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        seed = tf.constant([seed, 0], tf.int32)
        problem = self._as_problem(qubo)
        return self.solve_in_graph(problem, seed).numpy()[None], {}

    @staticmethod
    def _as_problem(qubo):
        """Converts a `Qubo` to a float32 `ops.Problem` with the same optima.

        Leaves out the offset and scales all numbers by a power of two. Neither
        a large offset nor an extreme scale can then cost precision.
        """
        couplings = np.asarray(qubo.couplings, dtype=np.float64)
        fields = np.asarray(qubo.fields, dtype=np.float64)
        largest = max(np.abs(couplings).max(), np.abs(fields).max())
        exponent = -int(np.frexp(largest)[1]) if np.isfinite(largest) else 0
        return ops.Problem(
            couplings=_float32(np.ldexp(couplings, exponent)),
            fields=_float32(np.ldexp(fields, exponent)),
            offset=tf.zeros((qubo.num_columns,)),
            start=None if qubo.start is None else _float32(qubo.start),
        )


def _shape(problem):
    return (*problem.fields.shape, problem.couplings is None)


def _compiled_function(owner, key, function):
    """Compiles `function`, or returns the one compiled for an equal key.

    Compiling takes longer than solving, so equal backends share their
    functions. Each shape has its own function. TensorFlow would count the
    shapes of different layers in one function as retracing, and warn.
    """
    with _compiled_lock:
        # Stored on the class. A module-level table would keep the class alive.
        if "_compiled" not in vars(owner):
            owner._compiled = collections.OrderedDict()
        functions = owner._compiled
        if key not in functions:
            functions[key] = tf.function(
                function,
                jit_compile=True,
                reduce_retracing=True,
                autograph=False,
            )
        functions.move_to_end(key)
        while len(functions) > COMPILED:
            functions.popitem(last=False)
        return functions[key]


def _without_rows(problem):
    """Drops the rows if there are couplings.

    Functions are compiled for each number of rows, and the last batch may be
    smaller than the others.
    """
    if problem.couplings is None:
        return problem
    return problem._replace(normalized_rows=None, row_gradients=None)


def _for_finish(problem):
    """Drops the rows of a problem that is already solved."""
    if problem.couplings is None and problem.diagonal is None:
        diagonal = ops.coupling_diagonal(problem)
        problem = problem._replace(diagonal=diagonal)
    return problem._replace(normalized_rows=None, row_gradients=None)


def _finished(states, problem):
    return ops.never_ascend(states, problem.fields)


def _varying_energy(problem, states):
    """Returns the energy of each column without its constant part."""
    if problem.couplings is None:
        product = tf.matmul(problem.normalized_rows, states)
        quadratic = tf.reduce_sum(tf.square(product), axis=0)
    else:
        product = tf.matmul(problem.couplings, states)
        quadratic = tf.reduce_sum(states * product, axis=0)
    return quadratic + tf.reduce_sum(problem.fields * states, axis=0)


def _held(states, problem):
    return tf.where(ops.has_information(problem), states, 0.0)


def _finished_and_held(states, problem):
    return _held(_finished(states, problem), problem)


def _unchanged(states, problem):
    del problem
    return states


def _float32(array):
    return tf.constant(np.asarray(array, dtype=np.float32))
