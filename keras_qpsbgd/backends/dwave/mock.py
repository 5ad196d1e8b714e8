"""A mock QPU that replaces the chip with simulated annealing."""

import zlib

import dimod
import numpy as np
from dwave.cloud.exceptions import SolverFailureError
from dwave.samplers import SimulatedAnnealingSampler
from dwave.system.testing import MockDWaveSampler

from keras_qpsbgd.backends.dwave import cost
from keras_qpsbgd.backends.dwave import ranges

SHAPES = {"pegasus": [16], "zephyr": [12, 4]}
# Inverse temperatures at the start and at the end.
BETA_RANGE = (0.1, 10.0)


class MockQPU(MockDWaveSampler):
    """The mock sampler of dwave-system, with the ranges and times of a QPU.

    It has the structure and the parameters of a `DWaveSampler`, and answers in
    the same format. Simulated annealing replaces the chip. Problems are scaled
    to the ranges of Advantage for Pegasus, and of Advantage2 for Zephyr. With
    `auto_scale=False`, problems that exceed the ranges are rejected. Times come
    from Ocean's cost model with published timing data (see
    `cost.timing_source`). The same problem always gets the same answer.

    Args:
        topology: String. `"pegasus"` or `"zephyr"`. Defaults to `"pegasus"`.
        shape: List of integers (optional). Shape of the topology. Defaults to
            P16 for Pegasus and to Z12 for Zephyr.
        dead_qubits: Sequence of qubits that do not work. Defaults to `()`.
        num_sweeps: Integer. Number of simulated annealing sweeps per read.
            Defaults to `100`.
    """

    def __init__(
        self,
        topology="pegasus",
        shape=None,
        dead_qubits=(),
        num_sweeps=100,
    ):
        super().__init__(
            topology_type=topology,
            topology_shape=list(shape or SHAPES[topology]),
            broken_nodes=list(dead_qubits),
            substitute_sampler=_Annealer(num_sweeps),
            parameter_warnings=False,
            exact_solver_cutoff=0,
        )
        if topology == "zephyr":
            # Advantage2 limits groups of couplers instead of qubits.
            del self.properties["per_qubit_coupling_range"]
            self.properties["per_group_coupling_range"] = [-13.0, 10.0]
        self.solver = cost.offline_solver(self.properties)

    def sample(self, bqm, **parameters):
        spin = bqm.spin
        timing = self._timing(bqm.num_variables, parameters)
        scaled = spin.copy()
        excess = ranges.excess(scaled, self.properties)
        if parameters.get("auto_scale", True):
            scaled.scale(1.0 / excess if excess > 0 else 1.0)
        elif excess > 1:
            raise SolverFailureError("Problem exceeds the ranges of the solver")
        found = super().sample(scaled, **parameters)
        found.info["timing"].update(timing)
        found.record.energy = spin.energies(found)
        return found.change_vartype(bqm.vartype, inplace=False)

    def _timing(self, num_qubits, parameters):
        """Returns the times in microseconds, in the format of a QPU."""
        access = 1e6 * cost.access_time(self, num_qubits, **parameters)
        none = {**parameters, "num_reads": 0}
        programming = 1e6 * cost.access_time(self, num_qubits, **none)
        return {
            "qpu_access_time": access,
            "qpu_programming_time": programming,
            "qpu_sampling_time": access - programming,
        }


class _Annealer(dimod.Sampler):
    """Simulated annealing in place of the chip."""

    properties: dict = {}
    parameters: dict = {"num_reads": []}

    def __init__(self, num_sweeps):
        self.num_sweeps = num_sweeps

    def sample(self, bqm, num_reads=1, **ignored):
        del ignored  # used only by a chip, such as the annealing time
        return SimulatedAnnealingSampler().sample(
            bqm,
            num_reads=num_reads,
            num_sweeps=self.num_sweeps,
            # Fixed, since all problems are scaled to the ranges of the chip.
            beta_range=BETA_RANGE,
            seed=_fingerprint(bqm),
        )


def _fingerprint(bqm):
    """Computes a seed from the problem."""
    linear, (first, second, pairs), _ = bqm.to_numpy_vectors()
    arrays = (linear, first, second, pairs)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return zlib.crc32(data) >> 1
