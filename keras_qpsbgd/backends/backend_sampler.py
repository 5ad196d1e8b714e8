"""The other way round: a backend as a `dimod.Sampler`."""

import dimod
import numpy as np

from keras_qpsbgd.backends import registry
from keras_qpsbgd.qubo import Qubo


class BackendSampler(dimod.Sampler):
    """Samples any binary quadratic model with one of our backends.

    Args:
        backend: whatever `backends.get` takes.

    Example:

    >>> import dimod
    >>> sampler = as_sampler("native")
    >>> bqm = dimod.BinaryQuadraticModel({"a": 1}, {("a", "b"): -2}, "SPIN")
    >>> sampler.sample(bqm).first.energy
    -3.0
    """

    properties = None
    parameters = None

    def __init__(self, backend="native"):
        self.backend = registry.get(backend)
        self.properties = {"backend": registry.serialize(self.backend)}
        self.parameters = {"num_reads": [], "seed": []}

    def __repr__(self):
        return f"{type(self).__name__}({self.backend!r})"

    def sample(self, bqm, num_reads=1, seed=0, **kwargs):
        """One solve per read, with `seed`, `seed + 1`, ...

        Args:
            bqm: a `dimod.BinaryQuadraticModel`.
            num_reads: number of reads.
            seed: int.
        """
        self.remove_unknown_kwargs(**kwargs)
        labels = list(bqm.variables)
        if not labels:
            samples = np.empty((num_reads, 0), np.int8)
            return dimod.SampleSet.from_samples_bqm((samples, labels), bqm)
        qubo = Qubo.from_bqm(bqm)
        self.backend.check(qubo.num_variables, qubo.num_columns)
        spins = np.stack(
            [
                self.backend.solve(qubo, seed + read).states[:, 0]
                for read in range(num_reads)
            ]
        )
        if bqm.vartype is dimod.BINARY:
            spins = (spins + 1) // 2
        return dimod.SampleSet.from_samples_bqm((spins, labels), bqm)


def as_sampler(backend="native"):
    """A `dimod.Sampler` that solves with one of our backends."""
    return BackendSampler(backend)
