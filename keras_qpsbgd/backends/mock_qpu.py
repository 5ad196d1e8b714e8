"""A QPU without the chip."""

import zlib

import dimod
import numpy as np
from dwave.cloud.exceptions import SolverFailureError
from dwave.samplers import SimulatedAnnealingSampler
from dwave.system.testing import MockDWaveSampler

from keras_qpsbgd.backends import chip

SHAPES = {"pegasus": [16], "zephyr": [12, 4]}


class MockQPU(MockDWaveSampler):
    """dwave-system's mock sampler with the ranges and times of a QPU.

    Structure, parameters and answers are those of a `DWaveSampler`; in place of
    the chip there is simulated annealing. Problems are scaled to the ranges of
    the chip, or refused if they exceed them with `auto_scale=False`; times come
    from Ocean's cost model. The same problem gets the same answer.

    Args:
        topology: `"pegasus"` or `"zephyr"`.
        shape: of the topology; P16 and Z12 by default.
        dead_qubits: qubits that do not work.
        num_sweeps: of the simulated annealing, per read.
    """

    def __init__(
        self,
        topology="pegasus",
        shape=None,
        dead_qubits=(),
        num_sweeps=100,
    ):
        if topology not in SHAPES:
            raise ValueError(
                f"`topology` must be one of {sorted(SHAPES)}. Received: "
                f"topology={topology!r}"
            )
        super().__init__(
            topology_type=topology,
            topology_shape=list(shape or SHAPES[topology]),
            broken_nodes=list(dead_qubits),
            parameter_warnings=False,
        )
        self.num_sweeps = num_sweeps
        self.solver = chip.offline_solver(self.properties)

    def sample(self, bqm, num_reads=1, annealing_time=None, **parameters):
        parameters["num_reads"] = num_reads
        if annealing_time is not None:
            parameters["annealing_time"] = annealing_time
        self._check(bqm, parameters)
        scaled = bqm.spin.copy()
        factor = chip.scale_factor(scaled, self.properties)
        if parameters.get("auto_scale", True):
            scaled.scale(factor)
        elif factor < 1:
            raise SolverFailureError("Problem exceeds the ranges of the solver")
        found = SimulatedAnnealingSampler().sample(
            scaled,
            num_reads=num_reads,
            num_sweeps=self.num_sweeps,
            # On the chip's scale every problem is annealed alike.
            beta_range=(0.1, 10.0),
            seed=_fingerprint(scaled),
        )
        samples = found.record.sample
        if bqm.vartype is dimod.BINARY:
            samples = (samples + 1) // 2
        return dimod.SampleSet.from_samples_bqm(
            (samples, found.variables),
            bqm,
            info={"timing": self._timing(bqm.num_variables, parameters)},
        )

    def _check(self, bqm, parameters):
        dimod_structure = set(self.nodelist)
        unknown = [v for v in bqm.variables if v not in dimod_structure]
        edges = self.adjacency
        missing = [(u, v) for u, v in bqm.quadratic if v not in edges[u]]
        if unknown or missing:
            raise dimod.exceptions.BinaryQuadraticModelStructureError(
                "Problem graph incompatible with solver"
            )
        for name in parameters:
            if name not in self.parameters:
                raise KeyError(f"{name!r} is not a parameter of this solver")
        for name in ("num_reads", "annealing_time"):
            low, high = self.properties[f"{name}_range"]
            if name in parameters and not low <= parameters[name] <= high:
                raise SolverFailureError(f"Parameter {name} out of range")

    def _timing(self, num_qubits, parameters):
        timed = ("num_reads", "annealing_time")
        access = 1e6 * chip.access_time(
            self,
            num_qubits,
            **{k: v for k, v in parameters.items() if k in timed},
        )
        programming = 1e6 * chip.access_time(self, num_qubits, num_reads=0)
        return {
            "qpu_access_time": access,
            "qpu_programming_time": programming,
            "qpu_sampling_time": access - programming,
            "qpu_access_overhead_time": 0.0,
        }


def _fingerprint(bqm):
    """A seed from the problem."""
    linear, (first, second, pairs), _ = bqm.to_numpy_vectors()
    arrays = (linear, first, second, pairs)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return zlib.crc32(data) >> 1
