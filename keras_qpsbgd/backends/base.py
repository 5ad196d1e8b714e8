"""The contract between QUBOs and whatever solves them."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from typing import Any
from typing import Optional
from typing import Union

import dimod
import numpy as np

from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.host import blocks
from keras_qpsbgd.backends.host import parallel
from keras_qpsbgd.qubo import Qubo

# Arguments of every host backend that are saved, if they are not the default.
_OPTIONS = (
    "executor_tasks",
    "block_size",
    "block_sweeps",
    "retries",
    "timeout_seconds",
)

# What names a backend: its name, its configuration, itself, or a sampler.
BackendLike = Union[str, dict[str, Any], "Backend", dimod.Sampler]


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
            see `backends/host/blocks.py`. `None`: as a whole.
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

    name: str | None = None
    max_variables: int | None = None
    executor: Any = None
    executor_tasks: int = 16
    block_size: int | None = None
    block_sweeps: int = 4
    retries: int = 3
    timeout_seconds: float = 600.0
    # What is opened when first needed and not copied to workers.
    _handle: Any = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Until it is registered: what messages call it. A name that was
        # inherited would be that of another class.
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
        parallel.check_executor(executor)
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

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Candidate states for all columns.

        Args:
            qubo: a `Qubo`.
            seed: int, the only source of randomness.

        Returns:
            `(samples, info)`: samples of shape (reads, n, m), and a dictionary.
            Arrays in it have one entry per column.
        """
        raise NotImplementedError

    def prepare(self, qubo: Qubo) -> Any:
        """What is computed once for all columns: further arguments of `sample`.

        The columns may then be sampled in several calls, in several places.
        """
        del qubo
        return {}

    def columns_per_call(
        self, num_variables: int, num_columns: int
    ) -> int | None:
        """How many columns one call of `sample` should get."""
        del num_variables
        if self.executor is None:
            return num_columns
        return -(-num_columns // self.executor_tasks)

    def reserve(self, num_variables: int, num_columns: int) -> Any:
        """Called before each call of `sample`; may raise. See `settle`."""

    def settle(self, reserved: Any, info: dict[str, Any]) -> None:
        """Called after it, with what `reserve` gave and the call's `info`.

        After a failure `info` is what the error knows, or `None`.
        """

    @classmethod
    def configuration_missing(cls) -> str | None:
        """What the user has yet to configure, as text; empty if nothing."""
        return ""

    def block_size_for(self, num_variables: int) -> int:
        """How many variables are solved together."""
        return min(num_variables, self.block_size or num_variables)

    # What they inherit

    def check(self, num_variables: int, num_columns: int) -> None:
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

    def solve(self, qubo: Qubo, seed: int = 0) -> Solution:
        """Solves all columns of `qubo`.

        Takes the best read g of each column, or -g if g ascends (s'g > 0): the
        energy of -g is then lower.

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
        return self._best(qubo, *parallel.sample(self, qubo, seed))

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

    def close(self) -> None:
        """Gives back connections and licences; the next solve opens anew."""
        self._handle = None

    def get_config(self) -> dict[str, Any]:
        """The arguments, without the executor."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        return {
            name: value
            for name, value in options.items()
            if value != getattr(type(self), name)
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Backend:
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
