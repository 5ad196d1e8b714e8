"""The contract between QUBOs and whatever solves them."""

import collections
import copy
import dataclasses
import json
import math
import pickle
import threading
from typing import Optional

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends import blocks
from keras_qpsbgd.backends import calls
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import check_number

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
# Arguments of every host backend that are saved, if they are not the default.
_OPTIONS = (
    "executor_tasks",
    "block_size",
    "block_sweeps",
    "retries",
    "timeout_seconds",
)


@dataclasses.dataclass
class Solution:
    """What a backend found for the columns of one `Qubo`.

    Attributes:
        states: (n, m), int8, +1 or -1.
        energies: (m,), `Qubo.energy(states)`.
        info: what the backend tells: `calls` made to the solver, `retries`,
            `reads`, the `energies` of all reads (reads, m), and figures of its
            own, such as `qpu_access_time` (microseconds, as in Ocean),
            `chain_break_fraction` and `proven_optimal` (per column).
        samples: (reads, n, m), all reads, where the backend returns several.
        sample_energies: (reads, m), their energies.
    """

    states: np.ndarray
    energies: np.ndarray
    info: dict = dataclasses.field(default_factory=dict)
    samples: Optional[np.ndarray] = None
    sample_energies: Optional[np.ndarray] = None


class Backend:
    """Solves the QUBOs of a layer on the host.

    A subclass defines `sample` and, if it has arguments, `get_config`.

    Args:
        executor: a `concurrent.futures.Executor`; the columns of all layers are
            then solved in parallel through it. Its workers get a copy of the
            backend and open solver handles of their own. Never part of a
            configuration; `backends.get(name, executor=...)` gives one to any
            backend.
        executor_tasks: number of parts into which the columns of a layer are
            cut for it; should not be less than its workers. 16 by default.
        block_size: layers with more inputs are solved by blocks of so many,
            see `backends/blocks.py`. `None`: as a whole.
        block_sweeps: most sweeps over the blocks; 4 by default.
        retries: how often a call is repeated that failed in a way that can pass
            (time-out, too many requests, server error), after 1, 2, 4, ...
            seconds. 3 by default.
        timeout_seconds: how long to wait for the answer of a remote call, or
            of an executor's worker. 600 by default.

    Example:

    ```python
    class AlwaysUp(kq.backends.Backend):
        def sample(self, qubo, seed):
            return np.ones((1, qubo.num_variables, qubo.num_columns)), {}

    kq.backends.register("always_up", AlwaysUp)
    optimizer = kq.QPSBGD(backend="always_up")
    ```
    """

    name = None
    max_variables = None
    executor = None
    executor_tasks = 16
    block_size = None
    block_sweeps = 4
    retries = 3
    timeout_seconds = 600.0
    # What is opened when first needed and not copied to workers.
    _handle = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Until it is registered: what messages call it. A name that was
        # inherited would be that of another class.
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(
        self,
        executor=None,
        executor_tasks=None,
        block_size=None,
        block_sweeps=None,
        retries=None,
        timeout_seconds=None,
    ):
        calls.check_executor(executor)
        self.executor = executor
        # `None` leaves the value of the class.
        whole = {"at_least": 1, "optional": True, "whole": True}
        self._set("executor_tasks", executor_tasks, **whole)
        self._set("block_size", block_size, **whole)
        self._set("block_sweeps", block_sweeps, **whole)
        self._set("retries", retries, **{**whole, "at_least": 0})
        self._set("timeout_seconds", timeout_seconds, above=0, optional=True)
        self._lock = threading.RLock()

    def _set(self, name, value, **bounds):
        check_number(name, value, **bounds)
        if value is not None:
            setattr(self, name, value)

    # What subclasses define

    def sample(self, qubo, seed):
        """Candidate states for all columns.

        Args:
            qubo: a `Qubo`.
            seed: int, the only source of randomness.

        Returns:
            `(samples, info)`: samples of shape (reads, n, m), and a dictionary.
            Arrays in it have one entry per column.
        """
        raise NotImplementedError

    def prepare(self, qubo):
        """What is computed once for all columns: further arguments of `sample`.

        The columns may then be sampled in several calls, in several places.
        """
        del qubo
        return {}

    def columns_per_call(self, num_variables, num_columns):
        """How many columns one call of `sample` should get."""
        del num_variables
        if self.executor is None:
            return num_columns
        return -(-num_columns // self.executor_tasks)

    def reserve(self, num_variables, num_columns):
        """Called before each call of `sample`; may raise. See `settle`."""

    def settle(self, reserved, info):
        """Called after it, with what `reserve` gave and the call's `info`.

        After a failure `info` is what the error knows, or `None`.
        """

    @classmethod
    def configuration_missing(cls):
        """What the user has yet to configure, as text; empty if nothing."""
        return ""

    def block_size_for(self, num_variables):
        """How many variables are solved together."""
        return min(num_variables, self.block_size or num_variables)

    # What they inherit

    def check(self, num_variables, num_columns):
        """Raises `BackendUnavailable` if such a layer cannot be solved."""
        width = self.block_size_for(num_variables)
        if self.max_variables and width > self.max_variables:
            raise BackendUnavailable(
                f"The backend `{self.name}` solves layers of at most "
                f"{self.max_variables} inputs. Use `native`, or a narrower "
                f"layer. Received: a layer of {num_variables} inputs and "
                f"{num_columns} outputs"
            )
        if self.executor is not None:
            try:
                pickle.dumps(self)
            except Exception as error:
                raise BackendUnavailable(
                    f"The backend `{self.name}` cannot be sent to the workers "
                    f"of its `executor`: {error}. Give it what workers can "
                    "open for themselves. Received: "
                    f"executor={type(self.executor).__name__}"
                ) from error

    def solve(self, qubo, seed=0):
        """Solves all columns of `qubo`.

        The best read of each column is taken, and turned round if it ascends
        (s'g > 0): the energy of -g is then lower.

        Returns:
            A `Solution`.
        """
        seed = int(seed)
        block_size = self.block_size_for(qubo.num_variables)
        if block_size < qubo.num_variables:
            states, info = blocks.solve(
                qubo, seed, block_size, self._solve_whole, self.block_sweeps
            )
            return self._best(qubo, states[None], info)
        return self._solve_whole(qubo, seed)

    def _solve_whole(self, qubo, seed):
        return self._best(qubo, *calls.sample(self, qubo, seed))

    def _best(self, qubo, samples, info):
        fields = np.asarray(qubo.fields, dtype=np.float64)
        ascent = np.einsum("nm,rnm->rm", fields, samples) > 0
        samples = np.where(ascent[:, None, :], -samples, samples)
        # Compared without what all states have in common: next to a large
        # offset, small differences would be lost.
        varying = qubo.varying_energies(samples)
        best = varying.argmin(axis=0)
        energies = varying + qubo.random_energy()
        columns = np.arange(qubo.num_columns)
        several = len(samples) > 1
        info.setdefault("reads", len(samples))
        info["energies"] = energies
        return Solution(
            states=samples[best, :, columns].T.copy(),
            energies=energies[best, columns],
            info=info,
            samples=samples if several else None,
            sample_energies=energies if several else None,
        )

    def close(self):
        """Gives back connections and licences; the next solve opens anew."""
        self._handle = None

    def get_config(self):
        """The arguments, without the executor."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        return {
            name: value
            for name, value in options.items()
            if value != getattr(type(self), name)
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def __repr__(self):
        try:
            config = self.get_config()
        except ValueError:  # it holds what cannot be saved
            return f"{type(self).__name__}(...)"
        arguments = ", ".join(f"{k}={v!r}" for k, v in config.items())
        return f"{type(self).__name__}({arguments})"

    def __getstate__(self):
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("executor", "_handle", "_lock")
        }

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = threading.RLock()


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

    def __init__(self):
        super().__init__()

    def search(self, problem, seed):
        """States (n, m) of +1.0 and -1.0 for an `ops.Problem`.

        Args:
            problem: an `ops.Problem` in either form.
            seed: int32 tensor of shape (2,).
        """
        raise NotImplementedError

    def start(self, problem):
        """States (n, m) to start from, or `None`; found as `problem.start`.

        It is independent of the scale of the gradients, which is not applied
        yet. This part is not compiled by itself, since XLA on a CPU factorises
        a matrix fifty times slower than TensorFlow does; in a model that is
        compiled whole (`jit_compile=True`) it is.
        """
        del problem
        return None

    def solve_in_graph(self, problem, seed):
        """`search`, with the check against ascent."""
        (states,) = self._solve([problem], [seed], [1.0], _finished)
        return states

    def step_in_graph(self, problems, seeds, factors):
        """The states that a training step moves along, 0 where it holds.

        Args:
            problems: list of `ops.Problem`, one per layer.
            seeds: list of int32 tensors of shape (2,).
            factors: list of scalars, the scales of the gradients, see
                `ops.scale_problem`.
        """
        states = [None] * len(problems)
        for group in _groups(problems):
            parts = (problems, seeds, factors)
            parts = ([part[i] for i in group] for part in parts)
            found = self._solve(*parts, _finished_and_held)
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

    def sample(self, qubo, seed):
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
