"""Wraps a backend as a `dimod.Sampler`."""

import random
import time
from typing import Any

import dimod
import numpy as np

from keras_qpsbgd.backends import registry
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.solution import merge_column_info
from keras_qpsbgd.qubo import Qubo

# TensorFlow seeds are int32.
_NUM_SEEDS = 2**31


class BackendSampler(dimod.Sampler):
    """Samples any binary quadratic model with a backend. See `as_sampler`."""

    properties: Any = None
    parameters: Any = None

    def __init__(self, backend: BackendLike = "native") -> None:
        self.backend = registry.get(backend)
        try:
            config = registry.serialize(self.backend)
        except ValueError:  # it cannot be saved, but this is not needed here
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
        """Samples a binary quadratic model, with one solve per read.

        Args:
            bqm: `dimod.BinaryQuadraticModel` with finite biases.
            num_reads: Integer. Number of reads. Defaults to `1`.
            seed: Integer (optional). The reads use `seed`, `seed + 1`, ...
                `None` draws a random seed. Defaults to `0`.
            **kwargs: Parameters of other samplers. They are ignored with a
                warning.

        Returns:
            A `dimod.SampleSet`. Its `info` contains the `seed`, the time in
            `timing["sampling_ns"]`, and the merged `info` of all solves:
            `calls`, `retries`, `reads`, `qpu_access_time`, ... Entries with one
            value per column become a list with one value per solve.

        Raises:
            ValueError: If an argument is invalid or a bias is not finite.
            BackendUnavailable: If the backend cannot solve the model.
            SolverError: If the solver fails.
        """
        self.remove_unknown_kwargs(**kwargs)
        check_number("num_reads", num_reads, at_least=1, whole=True)
        check_number("seed", seed, at_least=0, optional=True, whole=True)
        if seed is None:
            seed = random.randrange(_NUM_SEEDS)
        seed = int(seed)  # `seed + read` can overflow small NumPy integers
        labels = list(bqm.variables)
        if not labels:
            samples = np.empty((num_reads, 0), np.int8)
            return dimod.SampleSet.from_samples_bqm((samples, labels), bqm)
        qubo = Qubo.from_bqm(bqm)
        biases = [qubo.couplings.ravel(), qubo.fields.ravel(), qubo.offset]
        biases = np.unique(np.concatenate(biases))
        invalid = biases[~np.isfinite(biases)].tolist()
        if invalid:
            raise ValueError(
                "`bqm` must have finite biases and a finite offset. Received: "
                f"biases or an offset of {invalid}"
            )
        self.backend.check(qubo.num_variables, qubo.num_columns)
        start = time.perf_counter_ns()
        solutions = [
            self.backend.solve(qubo, (seed + read) % _NUM_SEEDS)
            for read in range(num_reads)
        ]
        spins = np.stack([solution.states[:, 0] for solution in solutions])
        info = _merge_solution_info([solution.info for solution in solutions])
        info["seed"] = seed
        info["timing"] = {"sampling_ns": time.perf_counter_ns() - start}
        if bqm.vartype is dimod.BINARY:
            spins = (spins + 1) // 2
        return dimod.SampleSet.from_samples_bqm((spins, labels), bqm, info=info)


def as_sampler(backend: BackendLike = "native") -> BackendSampler:
    """Wraps a backend as a `dimod.Sampler`.

    Args:
        backend: Name, configuration, `Backend` or `dimod.Sampler`, as in
            `backends.get`. Defaults to `"native"`.

    Returns:
        A `BackendSampler`.

    Example:
        ```python
        bqm = dimod.BinaryQuadraticModel({"a": 1}, {("a", "b"): -2}, "SPIN")
        sampler = kq.backends.as_sampler("native")
        sampler.sample(bqm).first.energy  # -3.0
        ```
    """
    return BackendSampler(backend)


def _merge_solution_info(parts):
    """Merges the `info` of several solutions into plain Python values.

    Drops the energies, because the sample set contains them.
    """
    parts = [
        {name: value for name, value in part.items() if name != "energies"}
        for part in parts
    ]
    merged = merge_column_info(parts)
    merged["reads"] = sum(part.get("reads", 1) for part in parts)
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in merged.items()
    }
