"""Any `dimod.Sampler` as a backend, column by column."""

import threading

import dimod
import numpy as np

from keras_qpsbgd.backends.backend import Backend


class SamplerBackend(Backend):
    """Solves each column with a `dimod.Sampler`.

    The model with the couplings is built once per layer and step; from column
    to column only its linear part changes.

    Args:
        sampler: a `dimod.Sampler`. It is called by one thread at a time.
        **parameters: passed to `sampler.sample` for every column. A `seed` is
            added where the sampler takes one.
    """

    def __init__(self, sampler, **parameters):
        self.sampler = sampler
        self.parameters = parameters
        self.name = type(sampler).__name__
        self._lock = threading.Lock()

    def sample(self, qubo, seed):
        with self._lock:
            return self._sample(qubo, seed)

    def _sample(self, qubo, seed):
        rng = np.random.default_rng(seed)
        seeds = rng.integers(2**31, size=qubo.num_columns)
        parameters = {**self.column_parameters(qubo), **self.parameters}
        seeded = "seed" in (self.sampler.parameters or {})
        model = qubo.to_bqm(0)
        order = list(model.variables)
        fields = np.asarray(qubo.fields, dtype=np.float64)
        reads = []
        previous = fields[:, 0]
        for column in range(qubo.num_columns):
            model.add_linear_from_array(fields[:, column] - previous)
            previous = fields[:, column]
            if seeded and "seed" not in self.parameters:
                parameters["seed"] = int(seeds[column])
            sampleset = self.sampler.sample(model, **parameters)
            reads.append(_samples(sampleset, order))
        # Samplers may merge equal reads; repeat the last so that all columns
        # have the same number.
        count = max(len(read) for read in reads)
        samples = np.empty((count, *fields.shape), np.int8)
        for column, read in enumerate(reads):
            samples[: len(read), :, column] = read
            samples[len(read) :, :, column] = read[-1]
        return samples, {"reads": count}

    def column_parameters(self, qubo):
        """Parameters that are computed once for all columns of a layer."""
        del qubo
        return {}

    def get_config(self):
        raise ValueError(
            "A `dimod.Sampler` cannot be saved with the optimizer. Make it a "
            "`Backend` of its own and call `keras_qpsbgd.backends.register`. "
            f"Received: backend={type(self.sampler).__name__}"
        )

    def __repr__(self):
        return f"{type(self).__name__}({type(self.sampler).__name__})"

    def __getstate__(self):
        state = self.__dict__.copy()
        del state["_lock"]
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = threading.Lock()


class SimulatedAnnealingBackend(SamplerBackend):
    """Simulated annealing of dwave-samplers.

    Args:
        num_reads: annealings per column; the best is taken.
        num_sweeps: sweeps per annealing.
        beta_range: inverse temperatures at the start and at the end. `None`
            computes them once per layer and step: hot enough that the stiffest
            variable flips with probability 1/2, cold enough that the softest
            excitation has died out to 1 %.
    """

    name = "simulated_annealing"

    def __init__(self, num_reads=10, num_sweeps=1000, beta_range=None):
        from dwave.samplers import SimulatedAnnealingSampler

        super().__init__(
            SimulatedAnnealingSampler(),
            num_reads=num_reads,
            num_sweeps=num_sweeps,
        )
        self.name = "simulated_annealing"
        self.beta_range = beta_range

    def column_parameters(self, qubo):
        return {"beta_range": self.beta_range or beta_range(qubo)}

    def get_config(self):
        return {**self.parameters, "beta_range": self.beta_range}


class TabuBackend(SamplerBackend):
    """Tabu search of dwave-samplers.

    Args:
        num_reads: searches per column; the best is taken.
        num_restarts: restarts per search.
        timeout: milliseconds after which a search ends. A search that ends this
            way is not repeatable, so the default is far above what the restarts
            take.
    """

    name = "tabu"

    def __init__(self, num_reads=1, num_restarts=10, timeout=60_000):
        from dwave.samplers import TabuSampler

        super().__init__(
            TabuSampler(),
            num_reads=num_reads,
            num_restarts=num_restarts,
            timeout=timeout,
        )
        self.name = "tabu"

    def get_config(self):
        return dict(self.parameters)


def beta_range(qubo):
    """Inverse temperatures that suit all columns of `qubo`.

    The largest energy change of a flip is at most 2 (max|s| + 2 sum|Q_i|); the
    smallest that matters is about the smallest coupling or field.
    """
    couplings = np.abs(np.array(qubo.couplings, dtype=np.float64)) * 2
    np.fill_diagonal(couplings, 0.0)
    fields = np.abs(np.asarray(qubo.fields, dtype=np.float64))
    largest = 2 * (fields.max(axis=1) + couplings.sum(axis=1)).max()
    if largest == 0:
        return (0.1, 1.0)
    # As in dwave-samplers: the smallest bias of each variable, non-zero.
    candidates = np.concatenate([couplings, fields], axis=1)
    candidates[candidates <= largest * 1e-9] = np.inf
    smallest = 2 * candidates.min()
    hot, cold = np.log(2) / largest, np.log(100) / smallest
    return (float(hot), float(max(cold, hot)))


def _samples(sampleset, order):
    """Reads (reads, n) of a sample set, variables in the given order."""
    labels = list(sampleset.variables)
    samples = sampleset.record.sample
    if sampleset.vartype is dimod.BINARY:
        samples = 2 * samples - 1
    if labels == order:
        return samples
    position = {label: i for i, label in enumerate(labels)}
    return samples[:, [position[label] for label in order]]
