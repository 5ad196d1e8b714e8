"""A backend that is traced into the training graph."""

import collections
import copy
import json
import math
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.qubo import Qubo

# Layers of at most so many weights are solved in one call.
SMALL = 256
# So many compiled searches are kept for each class of backends; beyond that,
# the one that was not used for longest is dropped. A graph that uses it keeps
# it; a step without a graph compiles it again, so this should be more than the
# different layers of a network.
COMPILED = 64
_compiled_lock = threading.Lock()
# Attributes that a search does not depend on.
_NOT_SEARCHED = ("name", "executor", "_handle", "_lock")


class GraphBackend(Backend):
    """Solves in TensorFlow, as part of the training graph.

    A subclass defines `search`, which must compile with XLA and draw its random
    numbers from `seed` with the stateless functions and `alg="philox"`: other
    generators differ between compiled and plain graphs. Backends of one class
    share what was compiled if their attributes are equal. Of attributes that
    are no plain values (numbers, text, lists and dictionaries of them) only the
    same object is equal: replace such an object, do not change it in place.

    Attributes:
        compiled: whether `search` is compiled by itself. Keras does not compile
            with XLA on a CPU, and searches are several times slower without.
        scale_matters: whether the states depend on the scale of the gradients.
            If not, the problems are not scaled.
    """

    compiled = True
    scale_matters = True

    def __init__(self) -> None:
        super().__init__()

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        """States (n, m) of +1.0 and -1.0 for an `ops.Problem`.

        Args:
            problem: an `ops.Problem` in either form.
            seed: int32 tensor of shape (2,).
        """
        raise NotImplementedError

    def start(self, problem: ops.Problem) -> tf.Tensor | None:
        """States (n, m) to start from, or `None`; found as `problem.start`.

        It is independent of the scale of the gradients, which is not applied
        yet. This part is not compiled by itself, since XLA on a CPU factorises
        a matrix fifty times slower than TensorFlow does; in a model that is
        compiled whole (`jit_compile=True`) it is.
        """
        del problem
        return None

    def solve_in_graph(
        self, problem: ops.Problem, seed: tf.Tensor
    ) -> tf.Tensor:
        """`search`, with the check against ascent."""
        (states,) = self._solve([problem], [seed], [1.0], _finished)
        return states

    def step_in_graph(
        self, problems: list[ops.Problem], seeds: list, factors: list
    ) -> list:
        """The states that a training step moves along, 0 where it holds.

        Args:
            problems: list of `ops.Problem`, one per layer.
            seeds: list of int32 tensors of shape (2,).
            factors: list of scalars, the scales of the gradients, see
                `ops.scale_problem`.
        """
        states = [None] * len(problems)
        for group in _groups(problems):
            found = self._solve(
                [problems[i] for i in group],
                [seeds[i] for i in group],
                [factors[i] for i in group],
                _finished_and_held,
            )
            for i, layer in zip(group, found):
                states[i] = layer
        return states

    def _solve(self, problems, seeds, factors, finish):
        problems = [
            problem._replace(start=self.start(problem)) for problem in problems
        ]
        if not self.compiled:
            return [
                self._solve_plainly(*layer, finish)
                for layer in zip(problems, seeds, factors)
            ]
        problems = [_without_rows(problem) for problem in problems]
        factors = [tf.convert_to_tensor(factor) for factor in factors]
        backend, config = self._frozen()

        def solve(problems, seeds, factors):
            if backend.scale_matters:
                problems = map(ops.scale_problem, problems, factors)
            return [
                finish(backend._searched(problem, seed), problem)
                for problem, seed in zip(problems, seeds)
            ]

        key = (config, finish, *map(_shape, problems))
        return _shared(type(self), key, solve)(problems, seeds, factors)

    def _searched(self, problem, seed):
        """What `search` returns, if it can be states."""
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

    def _frozen(self):
        """A copy that does not change with this backend, and a key of it.

        Two backends have the same key only if their searches are the same.
        """
        backend = copy.copy(self)
        key = []
        for name, value in sorted(vars(self).items()):
            if name in _NOT_SEARCHED:
                continue
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                # The copy keeps the object, so no other gets its number.
                key.append((name, id(value)))
            else:
                key.append((name, repr(value)))
                vars(backend)[name] = copy.deepcopy(value)
        return backend, tuple(key)

    def _solve_plainly(self, problem, seed, factor, finish):
        """Without compiling the search; what follows it is, if it is large."""
        if self.scale_matters:
            problem = ops.scale_problem(problem, factor)
        states = self._searched(problem, seed)
        problem = _without_rows(problem)
        if math.prod(problem.fields.shape) > SMALL:
            finish = _shared(GraphBackend, (finish, _shape(problem)), finish)
        return finish(states, problem)

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        seed = tf.constant([seed, 0], tf.int32)
        problem = self._as_problem(qubo)
        return self.solve_in_graph(problem, seed).numpy()[None], {}

    @staticmethod
    def _as_problem(qubo):
        """The `ops.Problem` of a `Qubo`, with the same optima, in float32.

        The offset is left out, and all numbers are scaled by a power of two, so
        that neither can cost the others their digits.
        """
        couplings = np.asarray(qubo.couplings, dtype=np.float64)
        fields = np.asarray(qubo.fields, dtype=np.float64)
        largest = max(np.abs(couplings).max(), np.abs(fields).max())
        exponent = -int(np.frexp(largest)[1]) if np.isfinite(largest) else 0
        return ops.Problem(
            couplings=_float32(np.ldexp(couplings, exponent)),
            fields=_float32(np.ldexp(fields, exponent)),
            offset=tf.zeros((qubo.num_columns,)),
        )


def _shape(problem):
    return (*problem.fields.shape, problem.couplings is None)


def _shared(owner, key, function):
    """`function`, compiled, or what was compiled for an equal key.

    Compiling takes longer than solving, so equal backends share their
    functions; one per shape, since a shared one would count every layer's shape
    as a retracing, and warn.
    """
    with _compiled_lock:
        # The class keeps them: in a table of ours they would keep the class.
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


def _groups(problems):
    """Which layers are solved in one call, as lists of indices.

    The small ones together: a call costs more than they do. Others by
    themselves: layers of one shape then share what was compiled, and run at the
    same time where there are several cores.
    """
    sizes = [math.prod(problem.fields.shape) for problem in problems]
    small = [i for i, size in enumerate(sizes) if size <= SMALL]
    groups = [[i] for i, size in enumerate(sizes) if size > SMALL]
    return groups + [small] if small else groups


def _without_rows(problem):
    """Without the rows, if there are couplings.

    Their number would be a shape to compile for, and ragged last batches exist.
    """
    if problem.couplings is None:
        return problem
    return problem._replace(normalized_rows=None, row_gradients=None)


def _finished(states, problem):
    return ops.never_ascend(states, problem.fields)


def _finished_and_held(states, problem):
    states = ops.never_ascend(states, problem.fields)
    return tf.where(ops.informed(problem), states, 0.0)


def _float32(array):
    return tf.constant(np.asarray(array, dtype=np.float32))
