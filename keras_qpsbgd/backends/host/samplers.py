"""Any `dimod.Sampler` as a backend, column by column."""

import numbers
import sys
from typing import Any

import dimod
import numpy as np

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.dwave import ocean
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import in_short
from keras_qpsbgd.backends.host import progress
from keras_qpsbgd.qubo import Qubo


class SamplerBackend(Backend):
    """Solves each column with a `dimod.Sampler`.

    The model with the couplings is built once per layer and step; from column
    to column only its linear part changes.

    Args:
        sampler: a `dimod.Sampler`. It is called by one thread at a time.
        options: dictionary with arguments of `Backend`, or `None`.
        **parameters: passed to `sampler.sample` for every column. A `seed` is
            added where the sampler takes one.
    """

    def __init__(
        self,
        sampler: Any,
        options: dict[str, Any] | None = None,
        /,
        **parameters: Any,
    ) -> None:
        super().__init__(**(options or {}))
        self.sampler = sampler
        self.parameters = parameters
        self.name = type(sampler).__name__

    def sample(
        self, qubo: Qubo, seed: int, **shared: Any
    ) -> tuple[np.ndarray, dict[str, Any]]:
        with self._lock:
            return self._sample(qubo, seed, {**shared, **self.parameters})

    def _sample(self, qubo, seed, parameters):
        seeds = _column_seeds(qubo, seed)
        seeded = "seed" in (self.sampler.parameters or {})
        seeded = seeded and "seed" not in parameters
        model = qubo.to_bqm(0)
        order = list(model.variables)
        fields = np.asarray(qubo.fields, dtype=np.float64)
        offset = np.asarray(qubo.offset, dtype=np.float64)
        trace = float(np.trace(qubo.couplings))
        reads = []
        seconds = []
        for column in range(qubo.num_columns):
            # A copy: samplers may change what they are given.
            given = model.copy()
            given.add_linear_from_array(fields[:, column] - fields[:, 0])
            given.offset = offset[column] + trace
            if seeded:
                parameters["seed"] = int(seeds[column])
            try:
                found = self.sampler.sample(given, **parameters)
                reads.append(ordered_samples(found, order, self.sampler))
                seconds.append(_access_time(found))
            except Exception as error:
                if "dwave.cloud" not in sys.modules:
                    raise
                # It may be remote, and the failure may pass.
                ocean.raise_ours(error)
            progress.column()
        # Samplers may merge equal reads; repeat the last so that all columns
        # have the same number.
        count = max(len(read) for read in reads)
        samples = np.empty((count, *fields.shape), np.int8)
        for column, read in enumerate(reads):
            samples[: len(read), :, column] = read
            samples[len(read) :, :, column] = read[-1]
        info = {"reads": count, "calls": qubo.num_columns}
        if any(time is not None for time in seconds):
            info["qpu_access_time"] = sum(time or 0.0 for time in seconds)
        return samples, info

    def get_config(self) -> dict[str, Any]:
        raise ValueError(
            "A `dimod.Sampler` cannot be saved with the optimizer. Make it a "
            "`Backend` of its own and call `keras_qpsbgd.backends.register`. "
            f"Received: backend={type(self.sampler).__name__}"
        )

    def __repr__(self):
        return f"{type(self).__name__}({type(self.sampler).__name__})"


class SimulatedAnnealingBackend(SamplerBackend):
    """Simulated annealing of dwave-samplers.

    Args:
        num_reads: annealings per column; the best is taken.
        num_sweeps: sweeps per annealing.
        beta_range: inverse temperatures at the start and at the end. `None`
            computes them once per layer and step, see `beta_range`.
        **options: arguments of `Backend`.
    """

    name = "simulated_annealing"

    def __init__(
        self,
        num_reads: int = 10,
        num_sweeps: int = 1000,
        beta_range: tuple[float, float] | None = None,
        **options: Any,
    ) -> None:
        from dwave.samplers import SimulatedAnnealingSampler

        super().__init__(
            SimulatedAnnealingSampler(),
            options,
            num_reads=num_reads,
            num_sweeps=num_sweeps,
        )
        self.name = "simulated_annealing"
        self.beta_range = beta_range

    def prepare(self, qubo: Qubo) -> Any:
        return {"beta_range": self.beta_range or beta_range(qubo)}

    def get_config(self) -> dict[str, Any]:
        return {
            **Backend.get_config(self),
            **self.parameters,
            "beta_range": self.beta_range,
        }


class TabuBackend(SamplerBackend):
    """Tabu search of dwave-samplers.

    Args:
        num_reads: searches per column; the best is taken.
        num_restarts: restarts per search.
        timeout: milliseconds after which a search ends. A search that ends this
            way is not repeatable, so the default is far above what the restarts
            take.
        **options: arguments of `Backend`.
    """

    name = "tabu"

    def __init__(
        self,
        num_reads: int = 1,
        num_restarts: int = 10,
        timeout: int = 60_000,
        **options: Any,
    ) -> None:
        from dwave.samplers import TabuSampler

        super().__init__(
            TabuSampler(),
            options,
            num_reads=num_reads,
            num_restarts=num_restarts,
            timeout=timeout,
        )
        self.name = "tabu"

    def get_config(self) -> dict[str, Any]:
        return {**Backend.get_config(self), **self.parameters}


def _column_seeds(qubo, seed):
    """A seed for each column, which a cut into parts does not change."""
    last = qubo.first_column + qubo.num_columns
    seeds = np.random.default_rng(seed).integers(2**31, size=last)
    return seeds[qubo.first_column :]


def beta_range(qubo):
    """Inverse temperatures that suit all columns of `qubo`.

    The field on a variable in a random state is typically
    t = sqrt(s^2 + sum (2 Q_i)^2). It is hot where a flip against the largest t
    has probability 1/2, and cold where one against 1 % of the median t has
    probability 1 %.

    dwave-samplers takes the largest possible field and the smallest bias
    instead, for each column, in a Python loop that can take longer than the
    annealing. With these dense, real-valued couplings that range is far too
    wide: most sweeps are spent frozen or at random.
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


def ordered_samples(found, order, sampler):
    """Reads (reads, n) of a sample set, variables in the given order.

    Args:
        found: what a `dimod.Sampler` returned.
        order: the labels of the model that it was given.
        sampler: the sampler, for messages.

    Raises:
        SolverError: `found` is no sample set of these variables.
    """
    ocean.check_sample_set(found, sampler)
    who = f"The sampler `{type(sampler).__name__}`"
    labels = list(found.variables)
    position = {label: i for i, label in enumerate(labels)}
    missing = [label for label in order if label not in position]
    if missing:
        raise SolverError(
            f"{who} must return samples of all variables of the model that it "
            f"was given, under the same labels. {len(missing)} of {len(order)} "
            f"are missing, such as {missing[0]!r}. Received: {len(labels)} "
            f"variables, {in_short(labels)}"
        )
    samples = found.record.sample
    if not len(samples):
        raise SolverError(
            f"{who} must return at least one sample. Received: an empty sample "
            "set"
        )
    if found.vartype is dimod.BINARY:
        samples = 2 * samples - 1
    if labels == order:
        return samples
    return samples[:, [position[label] for label in order]]


def _access_time(found):
    """Microseconds on a QPU, or `None` where the sampler tells none."""
    timing = (found.info or {}).get("timing")
    time = timing.get("qpu_access_time") if isinstance(timing, dict) else None
    return time if isinstance(time, numbers.Real) else None
