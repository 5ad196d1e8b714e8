"""The base class of all backends."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Sequence
from typing import Any
from typing import Union

import dimod
import numpy as np

from keras_qpsbgd._messages import reason
from keras_qpsbgd.backends import block_descent
from keras_qpsbgd.backends import calls
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.solution import Solution
from keras_qpsbgd.backends.solution import StepCost
from keras_qpsbgd.qubo import Qubo

# Arguments of every host backend. Only values that differ from the default are
# saved.
_OPTIONS = (
    "executor_tasks",
    "block_size",
    "block_sweeps",
    "retries",
    "timeout_seconds",
)

# Everything that `backends.get` accepts.
BackendLike = Union[str, dict[str, Any], "Backend", dimod.Sampler]


class Backend:
    """Base class for solvers that run on the host.

    Subclasses implement up to three methods:

    - `sample` solves the columns of a layer.
    - `get_config` returns the arguments, if there are any.
    - `check` raises before training if a layer cannot be solved (optional).

    Args:
        executor: `concurrent.futures.Executor` (optional). Solves the columns
            of all layers in parallel. Each worker gets a copy of the backend
            and opens its own solver handles. The executor is never saved in a
            configuration. Use `backends.get(name, executor=...)` to pass one
            to any host backend except `dwave`. Defaults to `None`.
        executor_tasks: Integer. Number of parts into which the columns of a
            layer are split for the executor. Should be at least the number of
            workers. Defaults to `16`.
        block_size: Integer (optional). Layers with more inputs than this are
            solved in sweeps over blocks of at most this many inputs. `None`
            solves every layer as a whole. Defaults to `None`.
        block_sweeps: Integer. Maximum number of sweeps over the blocks.
            Defaults to `4`.
        retries: Integer. Maximum number of times to repeat a call after a
            transient failure (timeout, too many requests, server error), with
            waits of 1, 2, 4, ... seconds. Defaults to `3`.
        timeout_seconds: Float. Maximum number of seconds to wait for an
            executor worker, or for a call of the remote backends of this
            package. Without an executor, `sample` of a custom backend is not
            interrupted. It should pass this value to its solver and raise a
            `TransientError` after a timeout. Defaults to `600`.

    Raises:
        TypeError: If `executor` is not an executor.
        ValueError: If another argument is invalid, if the executor forks
            processes, or if the backend does not accept an executor.

    Example:
        ```python
        class AlwaysUp(kq.backends.Backend):
            def sample(self, qubo, seed):
                return np.ones((1, qubo.num_variables, qubo.num_columns)), {}

        kq.backends.register("always_up", AlwaysUp)
        optimizer = kq.QPSBGD(backend="always_up")
        ```
    """

    name: str | None = None
    # The package that the backend needs, and the argument of `pip install`.
    package: str = ""
    install: str = ""
    max_variables: int | None = None
    executor: Any = None
    executor_tasks: int = 16
    block_size: int | None = None
    block_sweeps: int = 4
    retries: int = 3
    timeout_seconds: float = 600.0
    # Whether solves start from `Qubo.start`, the states of the previous step.
    warm_start: bool = False
    # Whether the states depend on the couplings. If not, layers do not compute
    # them.
    uses_couplings: bool = True
    # Whether it is certain that the solver uses no QPU.
    is_local: bool = False
    # The `Budget` of QPU seconds, for backends that have one.
    budget: Any = None
    # Entries that this backend adds to the `info` of every solution. Callbacks
    # log them from the first epoch on.
    info_entries: tuple[str, ...] = ()
    # Why the backend does not accept an `executor`.
    _without_executor: str | None = None
    # The open connection or solver. Opened on first use, not sent to workers.
    _handle: Any = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Messages use the class name until the class is registered. An
        # inherited `name` would refer to another class.
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(
        self,
        executor: Any = None,
        executor_tasks: int | None = None,
        block_size: int | None = None,
        block_sweeps: int | None = None,
        retries: int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self.use_executor(executor)
        self._lock = threading.RLock()
        positive = {"at_least": 1, "whole": True}
        for name, value, bounds in (
            ("executor_tasks", executor_tasks, positive),
            ("block_size", block_size, positive),
            ("block_sweeps", block_sweeps, positive),
            ("retries", retries, {"at_least": 0, "whole": True}),
            ("timeout_seconds", timeout_seconds, {"above": 0}),
        ):
            check_number(name, value, optional=True, **bounds)
            if value is not None:  # `None` keeps the default of the class
                setattr(self, name, value)

    # Methods that subclasses override

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Samples candidate states for all columns.

        Args:
            qubo: The `Qubo` to solve.
            seed: Integer. The only source of randomness.

        Returns:
            A tuple `(samples, info)`. `samples` has shape (reads, n, m) and
            values +1 and -1. `info` is a dictionary; arrays in it have one
            entry per column.
        """
        raise NotImplementedError

    def check(self, num_variables: int, num_columns: int) -> None:
        """Checks that the backend can solve a layer of this size.

        Args:
            num_variables: Integer. Number of inputs of the layer.
            num_columns: Integer. Number of outputs of the layer.

        Raises:
            BackendUnavailable: If the backend cannot solve the layer.
        """
        width = self.block_size_for(num_variables)
        if self.max_variables and width > self.max_variables:
            raise BackendUnavailable(
                f"The backend `{self.name}` solves layers with at most "
                f"{self.max_variables} inputs. Use the backend `native` or a "
                f"narrower layer. Received: {num_variables} inputs and "
                f"{num_columns} outputs"
            )
        if self.executor is not None:
            try:
                pickle.dumps(self)
            except Exception as error:
                raise BackendUnavailable(
                    f"The backend `{self.name}` cannot be pickled, so it "
                    "cannot be sent to the workers of its `executor`: "
                    f"{reason(error)}. Store only attributes that can be "
                    "pickled, and open connections in the workers. Received: "
                    f"executor={type(self.executor).__name__}"
                ) from error

    @classmethod
    def unconfigured(cls) -> str:
        """Returns what the user still has to configure, or "" if nothing."""
        return ""

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the backend, without the executor."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        return {
            name: value
            for name, value in options.items()
            if value != getattr(type(self), name)
        }

    # Methods that subclasses inherit

    def use_executor(self, executor: Any) -> None:
        """Sets the `executor`.

        Args:
            executor: `concurrent.futures.Executor` or `None`.

        Raises:
            TypeError: If `executor` is not an executor.
            ValueError: If the executor forks processes, or if the backend does
                not accept an executor.
        """
        calls.check_executor(executor)
        if executor is not None and self._without_executor is not None:
            raise ValueError(
                f"The backend `{self.name}` {self._without_executor} and does "
                "not accept an `executor`. Received: "
                f"executor={type(executor).__name__}"
            )
        self.executor = executor

    def check_layers(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Checks that the backend can solve the layers of a network.

        Args:
            sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

        Raises:
            BackendUnavailable: If the backend cannot solve a layer.
        """
        for num_variables, num_columns in sizes:
            self.check(num_variables, num_columns)

    def solve(self, qubo: Qubo, seed: int = 0) -> Solution:
        """Solves all columns of `qubo`.

        A read g that ascends (s'g > 0) is replaced with -g, which has a lower
        energy. The solution contains the best read of each column, or the
        column of `qubo.start` if its energy is lower.

        Args:
            qubo: The `Qubo` to solve.
            seed: Integer. The only source of randomness. Defaults to `0`.

        Returns:
            A `Solution`.

        Raises:
            SolverError: If the solver fails or returns an invalid answer.
        """
        seed = int(seed)
        block_size = self.block_size_for(qubo.num_variables)
        if block_size < qubo.num_variables:
            states, info = block_descent.solve(
                qubo, seed, block_size, self._solve_whole, self.block_sweeps
            )
            return self.best_solution(qubo, states[None], info)
        return self._solve_whole(qubo, seed)

    def step_cost(self, sizes: Sequence[tuple[int, int]]) -> StepCost:
        """Estimates the QPU time of one training step.

        The time is zero if the class sets `is_local`. It is unknown for other
        solvers that do not override this method.

        Args:
            sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

        Returns:
            A `StepCost`.
        """
        del sizes
        if self.is_local:
            return StepCost(0.0, 0, f"The backend `{self.name}` uses no QPU.")
        note = f"The backend `{self.name}` has no estimate of QPU time."
        return StepCost(math.nan, 0, note)

    def block_size_for(self, num_variables: int) -> int:
        """Returns the maximum number of variables that are solved together."""
        return min(num_variables, self.block_size or num_variables)

    def _plan_calls(self, qubo):
        """Returns how to divide the columns of a layer into calls.

        Returns:
            A tuple `(width, shared)`: the number of columns that one call of
            `sample` receives, and keyword arguments for all of these calls,
            which may run in different workers.
        """
        parts = 1 if self.executor is None else self.executor_tasks
        return -(-qubo.num_columns // parts), {}

    def _solve_whole(self, qubo, seed):
        return self.best_solution(qubo, *calls.sample(self, qubo, seed))

    def best_solution(
        self, qubo: Qubo, samples: np.ndarray, info: dict[str, Any]
    ) -> Solution:
        """Returns the best of the samples (reads, n, m) for each column."""
        fields = np.asarray(qubo.fields, dtype=np.float64)
        ascent = np.einsum("nm,rnm->rm", fields, samples) > 0
        samples = np.where(ascent[:, None, :], -samples, samples)
        # Compare without the terms that all states share. With a large offset,
        # small differences would be lost to rounding.
        varying = qubo.varying_energies(samples)
        best = varying.argmin(axis=0)
        energies = varying + qubo.random_energy()
        columns = np.arange(qubo.num_columns)
        has_several = len(samples) > 1
        info.setdefault("reads", len(samples))
        info["energies"] = energies
        states = samples[best, :, columns].T.copy()
        lowest = energies[best, columns]
        if qubo.start is not None:
            (before,) = qubo.varying_energies([qubo.start])
            worse = before < varying[best, columns]
            states[:, worse] = qubo.start[:, worse]
            lowest = np.where(worse, before + qubo.random_energy(), lowest)
        return Solution(
            states=states,
            energies=lowest,
            info=info,
            samples=samples if has_several else None,
            sample_energies=energies if has_several else None,
        )

    def close(self) -> None:
        """Releases connections and licenses; the next solve reopens them."""
        self._handle = None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Backend:
        """Creates a backend from the result of `get_config`."""
        return cls(**config)

    def __repr__(self):
        try:
            config = self.get_config()
        except ValueError:  # some argument cannot be saved
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
