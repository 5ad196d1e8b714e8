"""QPU and cloud for tests without either."""

import functools
from unittest import mock

import numpy as np


@functools.cache
def small_chip():
    """A Pegasus chip of 264 qubits, shared, as its embeddings are."""
    from keras_qpsbgd.backends.mock_qpu import MockQPU

    return MockQPU("pegasus", shape=[4])


@functools.cache
def small_qpu():
    """One backend for all tests that do not change it."""
    return qpu(small_chip())


def qpu(sampler, **arguments):
    from keras_qpsbgd.backends.dwave import DWaveBackend

    return DWaveBackend(sampler=sampler, **{"num_reads": 20, **arguments})


def hybrid(**arguments):
    """The real `LeapHybridSampler`; dwave-system's mock replaces the server."""
    from dwave.system import LeapHybridSampler
    from dwave.system.testing import MockLeapHybridSolver

    from keras_qpsbgd.backends.leap_hybrid import LeapHybridBackend

    target = "dwave.system.samplers.leap_hybrid_sampler.Client"
    with mock.patch(target) as client:
        client.from_config.return_value.get_solver.return_value = (
            MockLeapHybridSolver()
        )
        return LeapHybridBackend(sampler=LeapHybridSampler(), **arguments)


def dead_qubits(nodes, count, seed=0):
    """Qubits that a real chip might lack."""
    rng = np.random.default_rng(seed)
    return [int(q) for q in rng.choice(sorted(nodes), count, replace=False)]
