"""The other way round: a backend as a `dimod.Sampler`."""

import random
import time
from typing import Any

import dimod
import numpy as np

from keras_qpsbgd.backends import registry
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.host import infos
from keras_qpsbgd.qubo import Qubo

# Seeds are int32 in TensorFlow.
_SEEDS = 2**31


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

    properties: Any = None
    parameters: Any = None

    def __init__(self, backend: BackendLike = "native") -> None:
        self.backend = registry.get(backend)
        try:
            config = registry.serialize(self.backend)
        except ValueError:  # it cannot be saved, which is not asked for here
            config = {"name": self.backend.name}
        self.properties = {"backend": config}
        self.parameters = {"num_reads": [], "seed": []}

    def __repr__(self):
        return f"{type(self).__name__}({self.backend!r})"

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        num_reads: int = 1,
        seed: int = 0,
        **kwargs: Any,
    ) -> dimod.SampleSet:
        """One solve per read, with `seed`, `seed + 1`, ...

        Args:
            bqm: a `dimod.BinaryQuadraticModel`. Its biases must be finite.
            num_reads: number of reads.
            seed: int, or `None` to draw one.

        Returns:
            A `dimod.SampleSet`. Its `info` has the `seed`, the time in
            `timing["sampling_ns"]`, and what the backend told of all solves
            together: `calls`, `retries`, `reads`, `qpu_access_time`, ... Where
            the backend has one figure per solve, it is a list of them.
        """
        self.remove_unknown_kwargs(**kwargs)
        check_number("num_reads", num_reads, at_least=1, whole=True)
        check_number("seed", seed, at_least=0, optional=True, whole=True)
        if seed is None:
            seed = random.randrange(_SEEDS)
        seed = int(seed)  # sums of small NumPy integers overflow
        labels = list(bqm.variables)
        if not labels:
            samples = np.empty((num_reads, 0), np.int8)
            return dimod.SampleSet.from_samples_bqm((samples, labels), bqm)
        qubo = Qubo.from_bqm(bqm)
        _check_finite(qubo)
        self.backend.check(qubo.num_variables, qubo.num_columns)
        start = time.perf_counter_ns()
        solutions = [
            self.backend.solve(qubo, (seed + read) % _SEEDS)
            for read in range(num_reads)
        ]
        spins = np.stack([solution.states[:, 0] for solution in solutions])
        info = _merged([solution.info for solution in solutions])
        info["seed"] = seed
        info["timing"] = {"sampling_ns": time.perf_counter_ns() - start}
        if bqm.vartype is dimod.BINARY:
            spins = (spins + 1) // 2
        return dimod.SampleSet.from_samples_bqm((spins, labels), bqm, info=info)


def as_sampler(backend: BackendLike = "native") -> BackendSampler:
    """A `dimod.Sampler` that solves with one of our backends."""
    return BackendSampler(backend)


def _check_finite(qubo):
    """Raises a `ValueError` if a bias is infinite or not a number."""
    biases = np.concatenate(
        [qubo.couplings.ravel(), qubo.fields.ravel(), qubo.offset]
    )
    wrong = biases[~np.isfinite(biases)]
    if wrong.size:
        raise ValueError(
            "`bqm` must have finite biases and a finite offset. Received: "
            f"{np.unique(wrong).tolist()} among them"
        )


def _merged(parts):
    """What the solutions tell together, as plain values.

    The energies are left out: those of the samples are in the sample set.
    """
    parts = [
        {name: value for name, value in part.items() if name != "energies"}
        for part in parts
    ]
    merged = infos.over_columns(parts)
    merged["reads"] = sum(part.get("reads", 1) for part in parts)
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in merged.items()
    }
