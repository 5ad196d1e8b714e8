"""The qubits and couplers of the columns of a call."""

import numpy as np

from keras_qpsbgd.backends.dwave.chip.ranges import Limits


class Layout:
    """Index arrays of the complete graphs that one call anneals.

    A slot is one complete graph. The arrays depend on the qubits only, not on
    the layers and columns in the slots, so all calls on the same qubits share
    one object. Building it takes up to half a second of CPU time. It is
    immutable, so threads may share it.

    Args:
        slots: Tuple with the chains of each slot, as in `PackedCall.chains`.
        sampler: A structured sampler, such as `DWaveSampler`.

    Attributes:
        slots: The argument.
        sizes: Array. Number of variables of each slot.
        starts: Array. First variable of each slot.
        lengths: Array. Number of qubits of each variable.
        qubits: List of the labels of all qubits, chain by chain.
        chain_starts: Array. Position of the first qubit of each variable.
        variable: Array. Variable of each qubit.
        slot: Array. Slot of each qubit.
        first, second: Arrays. Positions of the qubits of each coupler. Couplers
            within chains come first, then those between chains, slot by slot.
        num_within: Integer. Number of couplers within chains.
        coupler_slot: Array. Slot of each coupler.
        entries: Array. For each coupler between chains, its entry in the
            flat coupling matrix of its slot.
        weights: Array. For each coupler between chains, 2 divided by the number
            of couplers of the same entry.
        limits: The `Limits` of the chip for these couplers.

    Raises:
        ValueError: If slots share a qubit, or if two chains of a slot are not
            coupled.
    """

    def __init__(self, slots, sampler):
        from dwave.embedding import EmbeddedStructure

        self.slots = slots
        chains = [chain for slot in slots for chain in slot]
        self.sizes = np.array([len(slot) for slot in slots])
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.lengths = np.array([len(chain) for chain in chains])
        self.qubits = [qubit for chain in chains for qubit in chain]
        self.chain_starts = np.cumsum(self.lengths) - self.lengths
        self.variable = np.repeat(np.arange(len(chains)), self.lengths)
        self.slot = np.repeat(np.arange(len(slots)), self.sizes)[self.variable]
        position = {qubit: k for k, qubit in enumerate(self.qubits)}
        if len(position) < len(self.qubits):
            raise ValueError(
                "`slots` must use every qubit once. Received: "
                f"{len(self.qubits) - len(position)} qubits used again"
            )
        structure = EmbeddedStructure(sampler.edgelist, dict(enumerate(chains)))
        couplers = [
            pair for v in structure for pair in structure.chain_edges(v)
        ]
        self.num_within = len(couplers)
        entries, weights = [], []
        for number, start in enumerate(self.starts.tolist()):
            self._couple(number, start, structure, couplers, entries, weights)
        self.entries = np.array(entries, dtype=np.intp)
        self.weights = np.array(weights)
        ends = [[position[q] for q in coupler] for coupler in couplers]
        ends = np.array(ends, dtype=np.intp).reshape(-1, 2)
        self.first, self.second = ends.T.copy()
        self.coupler_slot = self.slot[self.first]
        self.limits = Limits(
            sampler.properties, self.qubits, self.first, self.second
        )

    def _couple(self, number, start, structure, couplers, entries, weights):
        """Appends the couplers between the chains of a slot."""
        n = len(self.slots[number])
        for i in range(n):
            for j in range(i + 1, n):
                before = len(couplers)
                couplers.extend(
                    structure.interaction_edges(start + i, start + j)
                )
                count = len(couplers) - before
                if not count:
                    raise ValueError(
                        "`slots` must have a coupler between all chains of a "
                        f"slot. Received: none between variables {i} and {j} "
                        f"of slot {number}"
                    )
                entries.extend(count * [i * n + j])
                # Each pair is in both halves of the symmetric matrix.
                weights.extend(count * [2.0 / count])
