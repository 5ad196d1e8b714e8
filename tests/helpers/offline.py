"""Replacements for the QPU and the Leap service, for offline tests."""

import functools
import random
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


def split_calls(monkeypatch, backend, columns):
    """Makes QPU backends send at most this many columns per call."""
    original = type(backend).pack

    def pack(self, sizes):
        return tuple(
            call._replace(slots=call.slots[start : start + columns])
            for call in original(self, sizes)
            for start in range(0, len(call.slots), columns)
        )

    monkeypatch.setattr(type(backend), "pack", pack)


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


def lattice(family, size, qubits=0, couplers=0, seed=0, **labels):
    """Returns the graph of a chip without some random qubits and couplers."""
    from keras_qpsbgd.backends.dwave.cliques import lattices

    graph = getattr(lattices(), f"{family}_graph")(size, **labels)
    rng = random.Random(seed)
    graph.remove_nodes_from(rng.sample(sorted(graph), qubits))
    graph.remove_edges_from(rng.sample(sorted(graph.edges), couplers))
    return graph


def assert_clique(chains, graph):
    """Asserts that chains are connected, and each coupled to all others."""
    owner = {q: i for i, chain in enumerate(chains) for q in chain}
    coupled = set()
    for chain in chains:
        assert isinstance(chain, tuple)
        reached = {chain[0]}
        for _ in chain:
            reached |= {q for q in chain if reached & set(graph[q])}
        assert reached == set(chain)
        for q in chain:
            coupled |= {(owner[q], owner[r]) for r in graph[q] if r in owner}
    n = len(chains)
    assert {(i, j) for i in range(n) for j in range(n) if i != j} <= coupled


def dead_qubits(nodes, count, seed=0):
    """Draws random qubits to remove from a chip."""
    rng = np.random.default_rng(seed)
    return [int(q) for q in rng.choice(sorted(nodes), count, replace=False)]


def exact_chip(topology="pegasus", shape=(4,)):
    """Returns a mock QPU that finds the ground state of every column."""
    from keras_qpsbgd.backends.dwave.mock import MockQPU

    chip = MockQPU(topology, shape=list(shape))
    chip.substitute_sampler = GroundStates()
    return chip


class GroundStates:
    """Enumerates the states of each connected component of a problem."""

    def sample(self, bqm, num_reads=1, **ignored):
        import dimod
        import networkx as nx

        best = {}
        for qubits in nx.connected_components(dimod.to_networkx_graph(bqm)):
            qubits = sorted(qubits)
            bits = np.arange(2 ** len(qubits))[:, None] >> range(len(qubits))
            states = 2.0 * (bits & 1) - 1
            place = {qubit: k for k, qubit in enumerate(qubits)}
            energies = states @ [bqm.linear[qubit] for qubit in qubits]
            couplings = np.zeros((len(qubits), len(qubits)))
            for qubit in qubits:
                for other, bias in bqm.iter_neighborhood(qubit):
                    couplings[place[qubit], place[other]] = bias / 2
            energies += np.einsum("ri,ri->r", states @ couplings, states)
            best.update(zip(qubits, states[energies.argmin()]))
        reads = np.tile([best[q] for q in bqm.variables], (num_reads, 1))
        return dimod.SampleSet.from_samples_bqm(
            (reads.astype(np.int8), bqm.variables), bqm
        )
