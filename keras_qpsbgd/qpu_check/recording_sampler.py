"""A sampler that keeps the problems and the raw answers of its calls."""

import dataclasses
from typing import Any

import dimod
import numpy as np


@dataclasses.dataclass
class Call:
    """One call of the QPU.

    Attributes:
        problem: `dimod.BinaryQuadraticModel` on qubits, as it was sent.
        parameters: Dictionary. Parameters of the call.
        found: `dimod.SampleSet` with the raw reads, or `None` if it failed.
    """

    problem: Any
    parameters: dict
    found: Any = None

    def arrays(self):
        """Returns the problem and the reads as a dictionary of arrays."""
        linear, (first, second, pairs), _, qubits = (
            self.problem.spin.to_numpy_vectors(return_labels=True)
        )
        qubits = np.array(qubits)
        arrays = {
            "qubits": qubits,
            "linear": linear,
            "couplers": np.stack([qubits[first], qubits[second]], axis=1),
            "couplings": pairs,
        }
        if self.found is not None:
            record = self.found.record
            order = [self.found.variables.index(q) for q in qubits.tolist()]
            arrays["reads"] = record.sample[:, order].astype(np.int8)
            arrays["read_energies"] = record.energy
            arrays["occurrences"] = record.num_occurrences
        return arrays


class RecordingSampler:
    """Forwards everything to another sampler, and records its calls.

    Args:
        sampler: A `DWaveSampler` or compatible sampler.
    """

    def __init__(self, sampler):
        self.recorded = sampler
        self.calls = []

    def __getattr__(self, name):
        return getattr(self.recorded, name)

    def sample(self, problem, **parameters):
        call = Call(problem.copy(), dict(parameters))
        self.calls.append(call)
        found = self.recorded.sample(problem, **parameters)
        if isinstance(found, dimod.SampleSet):
            found.resolve()
            call.found = found
        return found
