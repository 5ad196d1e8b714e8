"""Base class of the backends that are traced into the training graph."""

import collections
import copy
import json
import math
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import ops

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
    graphs. It must also terminate if the problem is not finite. A model
    compiled with XLA discards the result in this case.

    Backends of one class share compiled functions if their attributes are
    equal. Attributes that are not plain values (numbers, strings, and lists and
    dictionaries of them) are equal only if they are the same object. Replace
    such an object instead of changing it in place.

    Attributes:
        compiled: Boolean. Whether to compile `search` separately. Keras does
            not compile with XLA on a CPU, and searches are several times slower
            without it. Defaults to `True`.
        uses_couplings: Boolean. Whether the states depend on the couplings. If
            `False`, the layers do not compute them, and problems have no
            couplings. Defaults to `True`.
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
    can_ascend = True
    is_local = True
    _without_executor = "runs in the training graph"

    def __init__(self) -> None:
        # The arguments of `Backend` are for solvers on the host.
        super().__init__()

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        """Finds states for all columns of a problem.

        Args:
            problem: An `ops.Problem`.
            seed: Int32 tensor of shape `(2,)`.

        Returns:
            A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0.
        """
        raise NotImplementedError

    def follow(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        """Finds states close to those of the last update, `problem.start`.

        `QPSBGD` calls this method instead of `search` if the backend has
        `warm_start` and the problems of consecutive updates are similar. The
        default implementation calls `search`.

        Args:
            problem: An `ops.Problem` with `start`.
            seed: Int32 tensor of shape `(2,)`.

        Returns:
            A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0.
        """
        return self.search(problem, seed)

    def start(self, problem: ops.Problem) -> tf.Tensor | None:
        """Returns states to start the search from.

        `search` receives them as `problem.start`, unless the problem already
        has a start. This method is not compiled separately, because XLA on a
        CPU factorizes a matrix much more slowly than TensorFlow does. It is
        compiled if the whole model is (`jit_compile=True`).

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
        """Solves one problem and negates columns in an ascent direction.

        Args:
            problem: An `ops.Problem`.
            seed: Int32 tensor of shape `(2,)`.

        Returns:
            A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0.
        """
        layer = ops.LayerProblems.of([problem])
        (states,) = self._solve([layer], [seed])
        return states[0]

    def step_in_graph(
        self, layers: list[ops.LayerProblems], seeds: list
    ) -> list[list[tf.Tensor]]:
        """Solves the problems of all layers of a training step.

        Args:
            layers: List of `ops.LayerProblems`.
            seeds: List of int32 tensors of shape `(2,)`, one for each layer.

        Returns:
            For each layer, a list with the states of each of its problems:
            float32 tensors of shape `(n, m)`, 0 for weights that must not
            change.
        """
        states: list = [None] * len(layers)
        for group in self._groups([layer.shape for layer in layers]):
            found = self._solve(
                [layers[i] for i in group], [seeds[i] for i in group]
            )
            for i, layer in zip(group, found):
                states[i] = layer
        return states

    def _solve(self, layers, seeds):
        layers = [self._with_start(layer) for layer in layers]
        is_warm = [layer.is_warm for layer in layers]
        if not self.compiled:
            problems = [layer.problems() for layer in layers]
            return self._search_all(problems, seeds, is_warm)
        backend, config = self._snapshot()
        builds = [layer.build for layer in layers]

        def solve(tensors, seeds):
            problems = [build(*t) for build, t in zip(builds, tensors)]
            return backend._search_all(problems, seeds, is_warm)

        tensors = [layer.tensors for layer in layers]
        shapes = [_signature(part) for part in tf.nest.flatten(tensors)]
        solve = _compiled_function(
            type(self), (config, *builds, *is_warm, *shapes), solve
        )
        return solve(tensors, seeds)

    def _with_start(self, layer):
        """Adds the result of `start`, which is not compiled."""
        if layer.is_warm or type(self).start is GraphBackend.start:
            return layer
        problems = [
            problem._replace(start=self.start(problem))
            if problem.start is None
            else problem
            for problem in layer.problems()
        ]
        return ops.LayerProblems.of(problems)

    def _groups(self, shapes):
        """Groups the layers that are solved in one call, as lists of indices.

        Small layers share one call because a call costs more than solving them.
        Each larger layer has its own call, so that layers of the same shape
        share a compiled function, and run in parallel if there are several
        cores. On a GPU, all layers share one call.
        """
        if products.on_gpu():
            return [list(range(len(shapes)))]
        sizes = [math.prod(shape) for shape in shapes]
        small = [i for i, size in enumerate(sizes) if size <= SMALL]
        groups = [[i] for i, size in enumerate(sizes) if size > SMALL]
        return groups + [small] if small else groups

    def _search_all(self, layers, seeds, is_warm):
        """Searches and finishes the states of several layers.

        Args:
            layers: List of lists of `ops.Problem`.
            seeds: List of int32 tensors of shape `(2,)`, one for each layer.
            is_warm: List of Booleans, see `ops.LayerProblems`.
        """
        found = []
        for problems, seed, warm in zip(layers, seeds, is_warm):
            search = self.follow if warm else self.search
            found.append(
                [
                    self._finished(self._checked(search(p, seed), p), p)
                    for p in problems
                ]
            )
        return found

    def _finished(self, states, problem):
        """Negates columns that ascend, and sets uninformative entries to 0.

        Also accepts a stack of problems, whose tensors have one more leading
        axis.
        """
        if self.can_ascend:
            states = ops.never_ascend(states, problem.fields)
        if problem.informative is None:
            return states
        return tf.where(problem.informative, states, 0.0)

    def _checked(self, states, problem):
        """Checks the type and shape of the result of `search`."""
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
                # The copy keeps the object alive, so its id remains unique.
                key.append((name, id(value)))
            else:
                key.append((name, repr(value)))
                vars(backend)[name] = copy.deepcopy(value)
        return backend, tuple(key)

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        seed = tf.constant([seed, 0], tf.int32)
        problem = self._as_problem(qubo)
        return self.solve_in_graph(problem, seed).numpy()[None], {}

    @staticmethod
    def _as_problem(qubo):
        """Converts a `Qubo` to a float32 `ops.Problem` with the same optima.

        Leaves out the offset and scales all numbers by a power of two, so that
        a large offset or an extreme scale does not reduce the precision.
        """
        couplings = np.asarray(qubo.couplings, dtype=np.float64)
        fields = np.asarray(qubo.fields, dtype=np.float64)
        largest = max(np.abs(couplings).max(), np.abs(fields).max())
        exponent = -int(np.frexp(largest)[1]) if np.isfinite(largest) else 0
        return ops.Problem(
            couplings=_float32(np.ldexp(couplings, exponent)),
            fields=_float32(np.ldexp(fields, exponent)),
            start=None if qubo.start is None else _float32(qubo.start),
        )


def _signature(tensor):
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype)


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


def _float32(array):
    return tf.constant(np.asarray(array, dtype=np.float32))
