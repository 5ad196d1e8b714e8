"""Maps the columns of a layer from a QUBO to qubits and back."""

import numpy as np

from keras_qpsbgd.backends.dwave.chip import ranges
from keras_qpsbgd.backends.dwave.chip.cliques import Cliques
from keras_qpsbgd.backends.errors import SolverError


class OpenChip:
    """A sampler and the embeddings on its graph."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.cliques = Cliques(sampler.to_networkx_graph())
        self._structures = {}

    def structure(self, num_variables, num_columns):
        """Returns an `EmbeddedStructure` for this many columns.

        Its labels are those of `Qubo.to_union_bqm`.
        """
        from dwave.embedding import EmbeddedStructure

        key = (num_variables, num_columns)
        if key not in self._structures:
            copies = self.cliques.copies(num_variables, num_columns)
            embedding = {
                column * num_variables + variable: chain
                for column, copy in enumerate(copies)
                for variable, chain in copy.items()
            }
            self._structures[key] = EmbeddedStructure(
                self.sampler.edgelist, embedding
            )
        return self._structures[key]


def embed(qubo, structure, chain_strength, properties):
    """Embeds the columns, each scaled to the full ranges of the chip.

    Args:
        qubo: A `Qubo`.
        structure: Result of `OpenChip.structure` for this `qubo`.
        chain_strength: `None`, number or function. See `DWaveBackend`.
        properties: Dictionary. Properties of the sampler.

    Returns:
        A `dimod.BinaryQuadraticModel` on qubits.
    """
    n, m = qubo.num_variables, qubo.num_columns
    strengths = _chain_strengths(qubo, structure, chain_strength)
    lengths = [len(structure[label]) for label in range(n * m)]
    scales = ranges.column_scales(
        qubo, np.reshape(lengths, (m, n)).T, strengths, properties
    )
    return structure.embed_bqm(
        qubo.to_union_bqm(scales),
        chain_strength=dict(enumerate(np.repeat(scales * strengths, n))),
    )


def _chain_strengths(qubo, structure, chain_strength):
    """Returns the chain strength of each column, in units of the QUBO."""
    from dwave.embedding.chain_strength import uniform_torque_compensation

    n, m = qubo.num_variables, qubo.num_columns
    if chain_strength is None:
        if np.any(qubo.couplings - np.diag(np.diag(qubo.couplings))):
            # All columns have the same couplings.
            return np.full(m, uniform_torque_compensation(qubo.to_bqm(0)))
        # Without couplings there is no torque to compensate.
        return np.abs(qubo.fields).max(axis=0)
    if not callable(chain_strength):
        return np.full(m, float(chain_strength))
    return np.array(
        [
            chain_strength(
                qubo.to_bqm(column),
                {i: structure[column * n + i] for i in range(n)},
            )
            for column in range(m)
        ]
    )


def unembed(found, structure):
    """Returns spins and broken chains, (reads, variables), in label order."""
    from dwave.embedding.chain_breaks import broken_chains
    from dwave.embedding.chain_breaks import majority_vote

    record = found.record
    position = {qubit: i for i, qubit in enumerate(found.variables)}
    wanted = [structure[label] for label in range(len(structure))]
    missing = [q for chain in wanted for q in chain if q not in position]
    if missing:
        raise SolverError(
            f"The answer must contain all {sum(map(len, wanted))} qubits of "
            f"the problem. Received: {len(found.variables)} qubits, "
            f"{len(missing)} missing"
        )
    if not len(record) or not np.isfinite(record.energy).all():
        raise SolverError(
            "The answer must contain at least one read, and all energies must "
            f"be finite. Received: {np.asarray(record.energy)[:5].tolist()}"
        )
    chains = [np.array([position[q] for q in chain]) for chain in wanted]
    broken = broken_chains(record.sample, chains)
    breakable = [len(chain) > 1 for chain in chains]
    if any(breakable) and broken[:, breakable].all():
        raise SolverError(
            "All chains are broken in all reads, so the answer is meaningless. "
            f"Increase `chain_strength`. Received: {len(record)} reads of "
            f"{sum(breakable)} chains"
        )
    samples, _ = majority_vote(record.sample, chains)
    return np.asarray(samples), broken
