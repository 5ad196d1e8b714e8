"""Wraps any `dimod.Sampler` as a backend that solves column by column."""

import inspect
import numbers
from typing import Any

import numpy as np

from keras_qpsbgd.backends import remote
from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.calls import join_columns
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.qubo import Qubo


class SamplerBackend(Backend):
    """Solves each column with a `dimod.Sampler`.

    The sampler may be remote. A column without an answer after
    `timeout_seconds` is a transient failure, as are lost connections and server
    errors. Without an executor, only the failed column is repeated.

    If the sampler uses a QPU, its QPU time is neither estimated nor limited.
    The backend `"dwave"` has a budget, `qpu_budget_seconds`.

    Args:
        sampler: `dimod.Sampler`. Only one thread at a time calls it, unless a
            call has timed out, because such a call cannot be stopped.
        **parameters: Arguments of `Backend`, such as `timeout_seconds` and
            `retries`. All other arguments are passed to `sampler.sample` for
            every column. A `seed` is added if the sampler accepts one.

    Raises:
        ValueError: If an argument of `Backend` is invalid, or if
            `qpu_budget_seconds` is passed.

    Example:
        ```python
        sampler = dimod.ExactSolver()
        backend = kq.backends.SamplerBackend(sampler, timeout_seconds=60)
        optimizer = kq.QPSBGD(backend=backend, on_failure="hold")
        ```
    """

    def __init__(self, sampler: Any, /, **parameters: Any) -> None:
        if "qpu_budget_seconds" in parameters:
            raise ValueError(
                "`SamplerBackend` cannot limit QPU time, because it does not "
                'know what a call costs. Use the backend `"dwave"`. Received: '
                f"qpu_budget_seconds={parameters['qpu_budget_seconds']!r}"
            )
        known = inspect.signature(Backend).parameters
        super().__init__(**{k: v for k, v in parameters.items() if k in known})
        self.sampler = sampler
        self.parameters = {
            k: v for k, v in parameters.items() if k not in known
        }
        self.name = type(sampler).__name__

    def _plan_calls(self, qubo):
        width, _ = super()._plan_calls(qubo)
        if self.executor is None:
            width = 1  # a retry must not repeat the other columns
        return width, {"base": _Base(qubo)}

    def sample(
        self, qubo: Qubo, seed: int, base: Any = None, **shared: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        base = base or _Base(qubo)
        parameters = {**shared, **self.parameters}
        seeds = _column_seeds(qubo, seed)
        seeded = "seed" in (self.sampler.parameters or {})
        seeded = seeded and "seed" not in parameters
        order = list(base.model.variables)
        fields = np.asarray(qubo.fields, dtype=np.float64)
        reads = []
        access_times = []
        for column in range(qubo.num_columns):
            model = base.with_fields(fields[:, column], qubo.offset[column])
            if seeded:
                parameters["seed"] = int(seeds[column])
            with self._lock:
                sample_set = self._call(model, parameters)
            reads.append(
                remote.ordered_samples(sample_set, order, self.sampler)
            )
            access_times.append(_access_time(sample_set))
        # Samplers may merge equal reads.
        samples = join_columns([read[:, :, None] for read in reads])
        info: dict[str, Any] = {"reads": len(samples), "calls": len(reads)}
        if any(time is not None for time in access_times):
            info["qpu_access_time"] = sum(time or 0.0 for time in access_times)
        return samples, info

    def _call(self, model, parameters):
        return remote.sample(
            self.sampler, model, self.timeout_seconds, **parameters
        )

    def get_config(self) -> dict[str, Any]:
        raise ValueError(
            "A `dimod.Sampler` cannot be saved with the optimizer. Wrap it in "
            "a custom `Backend` and call `keras_qpsbgd.backends.register`. "
            f"Received: backend={type(self.sampler).__name__}"
        )

    def __repr__(self):
        return f"{type(self).__name__}({type(self.sampler).__name__})"


class _LocalSamplerBackend(SamplerBackend):
    """Solves with a sampler that computes in this process.

    It needs no timeout and no retries, so all columns are one call.
    """

    package = "dwave.samplers"
    install = "keras_qpsbgd[dwave]"
    is_local = True

    def _plan_calls(self, qubo):
        return Backend._plan_calls(self, qubo)

    def get_config(self) -> dict[str, Any]:
        return {**Backend.get_config(self), **self.parameters}

    def _call(self, model, parameters):
        return self.sampler.sample(model, **parameters)


class SimulatedAnnealingBackend(_LocalSamplerBackend):
    """Solves each column with simulated annealing from dwave-samplers.

    Args:
        num_reads: Integer. Number of anneals per column, of which the best is
            used. Defaults to `10`.
        num_sweeps: Integer. Number of sweeps per anneal. Defaults to `1000`.
        **options: Arguments of `Backend`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        optimizer = kq.QPSBGD(
            backend={"name": "simulated_annealing", "num_reads": 20}
        )
        ```
    """

    name = "simulated_annealing"

    def __init__(
        self,
        num_reads: int = 10,
        num_sweeps: int = 1000,
        **options: Any,
    ) -> None:
        from dwave.samplers import SimulatedAnnealingSampler

        check_number("num_reads", num_reads, at_least=1, whole=True)
        check_number("num_sweeps", num_sweeps, at_least=0, whole=True)
        super().__init__(
            SimulatedAnnealingSampler(),
            num_reads=num_reads,
            num_sweeps=num_sweeps,
            **options,
        )
        self.name = "simulated_annealing"

    def _plan_calls(self, qubo):
        # The temperatures must not depend on how the columns are divided.
        width, _ = super()._plan_calls(qubo)
        return width, {"beta_range": beta_range(qubo)}


class TabuBackend(_LocalSamplerBackend):
    """Solves each column with tabu search from dwave-samplers.

    Args:
        num_reads: Integer. Number of searches per column, of which the best is
            used. Defaults to `1`.
        num_restarts: Integer. Number of restarts per search. Defaults to `10`.
        **options: Arguments of `Backend`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        optimizer = kq.QPSBGD(backend={"name": "tabu", "num_restarts": 20})
        ```
    """

    name = "tabu"

    def __init__(
        self, num_reads: int = 1, num_restarts: int = 10, **options: Any
    ) -> None:
        from dwave.samplers import TabuSampler

        check_number("num_reads", num_reads, at_least=1, whole=True)
        check_number("num_restarts", num_restarts, at_least=0, whole=True)
        super().__init__(
            TabuSampler(),
            num_reads=num_reads,
            num_restarts=num_restarts,
            **options,
        )
        self.name = "tabu"

    def _plan_calls(self, qubo):
        # A search that times out is not reproducible, so the timeout is far
        # longer than the restarts take.
        width, shared = super()._plan_calls(qubo)
        return width, {**shared, "timeout": 60_000}


class _Base:
    """A model with the couplings of a layer, built once per layer and step.

    Only the linear part and the offset change from column to column.
    """

    def __init__(self, qubo):
        self.model = qubo.to_bqm(0)
        self.fields = np.array(qubo.fields[:, 0], dtype=np.float64)
        self.trace = float(np.trace(qubo.couplings))

    def with_fields(self, fields, offset):
        """Returns the model of a column. A sampler may modify it."""
        model = self.model.copy()
        model.add_linear_from_array(fields - self.fields)
        model.offset = float(offset) + self.trace
        return model


def _column_seeds(qubo, seed):
    """Returns a seed for each column that does not depend on the split."""
    last = qubo.first_column + qubo.num_columns
    seeds = np.random.default_rng(seed).integers(2**31, size=last)
    return seeds[qubo.first_column :]


def beta_range(qubo):
    """Returns inverse temperatures that suit all columns of `qubo`.

    The typical field on a variable in a random state is
    t = sqrt(s^2 + sum (2 Q_i)^2). At the start, a flip against the largest t
    has probability 1/2. At the end, a flip against 1 % of the median t has
    probability 1 %.

    dwave-samplers instead uses the largest possible field and the smallest bias
    of each column, in a Python loop that can take longer than the annealing.
    For dense, real-valued couplings that range is far too wide: in most sweeps
    the states are either frozen or random.
    """
    couplings = 2 * np.array(qubo.couplings, dtype=np.float64)
    np.fill_diagonal(couplings, 0.0)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    typical = np.sqrt(fields**2 + (couplings**2).sum(axis=1, keepdims=True))
    typical = typical[typical > 0]
    if typical.size == 0:
        return (0.1, 1.0)
    hot = np.log(2) / (2 * typical.max())
    cold = np.log(100) / (2 * 0.01 * np.median(typical))
    return (float(hot), float(cold))


def _access_time(sample_set):
    """Returns the QPU access time in microseconds, or `None` if unknown."""
    timing = (sample_set.info or {}).get("timing")
    time = timing.get("qpu_access_time") if isinstance(timing, dict) else None
    return time if isinstance(time, numbers.Real) else None
