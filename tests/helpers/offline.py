"""Replacements for the QPU and the Leap service, for offline tests."""

import functools
import types
from unittest import mock

import numpy as np


@functools.cache
def small_chip():
    """Returns a Pegasus chip with 264 qubits, shared to reuse embeddings."""
    from keras_qpsbgd.backends.dwave.mock import MockQPU

    return MockQPU("pegasus", shape=[4])


@functools.cache
def small_qpu():
    """Returns the backend shared by all tests that do not modify it."""
    return qpu(small_chip())


def qpu(sampler, **arguments):
    from keras_qpsbgd.backends.dwave.qpu import DWaveBackend

    return DWaveBackend(sampler=sampler, **{"num_reads": 20, **arguments})


def hybrid(**arguments):
    """Returns a backend with the real `LeapHybridSampler` and a mock server.

    The server is the mock of dwave-system. It samples with simulated annealing
    here, because the mock only descends from one random state.
    """
    from dwave.samplers import SimulatedAnnealingSampler
    from dwave.system import LeapHybridSampler
    from dwave.system.testing import MockLeapHybridSolver

    from keras_qpsbgd.backends.dwave.hybrid import LeapHybridBackend

    class Server(MockLeapHybridSolver):
        calls = 0

        def sample_bqm(self, bqm, time_limit):
            type(self).calls += 1
            found = SimulatedAnnealingSampler().sample(
                bqm, num_reads=10, num_sweeps=100, seed=1
            )
            found.info.update(qpu_access_time=32_000, run_time=3_000_000)
            return types.SimpleNamespace(sampleset=found)

    target = "dwave.system.samplers.leap_hybrid_sampler.Client"
    with mock.patch(target) as client:
        client.from_config.return_value.get_solver.return_value = Server()
        return LeapHybridBackend(sampler=LeapHybridSampler(), **arguments)


def dead_qubits(nodes, count, seed=0):
    """Draws random qubits to remove from a chip."""
    rng = np.random.default_rng(seed)
    return [int(q) for q in rng.choice(sorted(nodes), count, replace=False)]
