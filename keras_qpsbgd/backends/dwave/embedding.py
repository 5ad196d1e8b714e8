"""Embeds the columns of a call on a chip, and reads its answers."""

import functools
import itertools
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_qpsbgd.backends.dwave import packing
from keras_qpsbgd.backends.dwave.cliques import Cliques
from keras_qpsbgd.backends.dwave.ranges import Limits
from keras_qpsbgd.backends.errors import SolverError

# Maximum number of cached layouts. A network needs few, because most of its
# calls use the same qubits. One layout takes about 1 MB.
MAX_LAYOUTS = 32


class OpenChip:
    """A sampler and the embeddings on its graph. Threads may share it.

    Args:
        sampler: A `DWaveSampler`, or a compatible sampler.
    """

    def __init__(self, sampler):
        self.sampler = sampler
        self.cliques = Cliques(sampler.to_networkx_graph())
        self._pack = functools.lru_cache(MAX_LAYOUTS)(
            lambda sizes: packing.pack(self.cliques, sizes)
        )
        self._layout = functools.lru_cache(MAX_LAYOUTS)(
            lambda chains: Layout(chains, sampler)
        )

    def pack(self, sizes):
        """Returns the calls for some layers. See `packing.pack`."""
        return self._pack(tuple((int(n), int(m)) for n, m in sizes))

    def embedded(self, packed):
        """Returns the `EmbeddedCall` of a `PackedCall`."""
        return EmbeddedCall(packed, self._layout(packed.chains))


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
        slots: The argument `slots`.
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
                entries.extend(count * [i * n + j])
                # Each pair is in both halves of the symmetric matrix.
                weights.extend(count * [2.0 / count])


class QubitModel(NamedTuple):
    """The problem of one call, on qubits.

    Attributes:
        bqm: A `dimod.BinaryQuadraticModel`.
        gauge: Array of -1 and 1 with one entry per variable, or `None`. Pass it
            to `EmbeddedCall.unembed`.
        scales: Array with the scale of each slot.
        linear: Array with the linear bias of each qubit.
    """

    bqm: Any
    gauge: np.ndarray | None
    scales: np.ndarray
    linear: np.ndarray


class _Layer(NamedTuple):
    """The part of the arrays that belongs to one layer."""

    columns: list[int]
    variables: slice
    couplers: slice  # between chains


class EmbeddedCall:
    """Embeds the columns of one call, and reads its answers.

    The object is immutable, so threads may share it. It is cheap to build: all
    large arrays are in the layout.

    **Scale.** Every column is scaled to the ranges of the chip separately. See
    `ranges`.

    **Gauge.** A random spin reversal replaces the variable `g_i` by `-g_i` for
    half of the variables, so that errors that favor one direction do not favor
    the same states in every call. It flips whole chains.
    `SpinReversalTransformComposite` from dwave-preprocessing is not suitable.
    Applied below the embedding, it flips each qubit separately, and half of the
    couplings within chains become positive. Couplings range from -2 to 1, so
    chains would have half the strength.

    Args:
        call: A `PackedCall`.
        layout: The `Layout` of `call.chains`.
    """

    def __init__(self, call, layout):
        self.call = call
        self._layout = layout
        between = layout.coupler_slot[layout.num_within :]
        ends = np.cumsum(layout.sizes)
        slots = call.slots
        self._layers = {}
        # Slots are sorted by layer, so the slots of a layer are consecutive.
        groups = itertools.groupby(
            range(len(slots)), lambda place: slots[place].layer
        )
        for layer, group in groups:
            first, *others = group
            last = others[-1] if others else first
            self._layers[layer] = _Layer(
                [slot.column for slot in slots[first : last + 1]],
                slice(layout.starts[first], ends[last]),
                slice(*np.searchsorted(between, [first, last + 1])),
            )

    @property
    def qubits(self):
        """List of the qubits of the call, chain by chain."""
        return self._layout.qubits

    def embed(self, qubos, chain_strength=None, gauge=None):
        """Embeds the columns, each scaled to the full ranges of the chip.

        Args:
            qubos: Sequence or dictionary of `Qubo`, indexed by `Slot.layer`.
            chain_strength: Number or function (optional). See `DWaveBackend`.
                Defaults to `None`.
            gauge: `numpy.random.Generator` (optional). Draws a random spin
                reversal. Defaults to `None`, which flips no variable.

        Returns:
            A `QubitModel`.
        """
        import dimod

        layout = self._layout
        fields = np.empty(len(layout.lengths))
        pairs = np.empty(len(layout.first))
        within, between = np.split(pairs, [layout.num_within])
        strengths = np.empty(len(layout.sizes))
        for index, layer in self._layers.items():
            qubo = qubos[index]
            columns = np.asarray(qubo.fields).T[layer.columns]
            fields[layer.variables] = columns.ravel()
            couplings = np.asarray(qubo.couplings, dtype=np.float64).ravel()
            between[layer.couplers] = couplings[layout.entries[layer.couplers]]
        between *= layout.weights
        self._set_chain_strengths(strengths, qubos, chain_strength)
        within[:] = -strengths[layout.coupler_slot[: layout.num_within]]
        linear = (fields / layout.lengths)[layout.variable]
        signs = None
        if gauge is not None:
            signs = 1 - 2 * gauge.integers(0, 2, len(fields), dtype=np.int8)
            flips = signs[layout.variable]
            linear *= flips
            # Both ends of a coupler within a chain flip together.
            pairs *= flips[layout.first] * flips[layout.second]
        scales = layout.limits.scales(
            linear, pairs, layout.slot, len(strengths)
        )
        linear *= scales[layout.slot]
        pairs *= scales[layout.coupler_slot]
        bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(
            linear,
            (layout.first, layout.second, pairs),
            0.0,
            dimod.SPIN,
            variable_order=layout.qubits,
        )
        return QubitModel(bqm, signs, scales, linear)

    def _set_chain_strengths(self, strengths, qubos, chain_strength):
        """Sets the chain strength of each slot, in units of its QUBO."""
        default = {}
        for k, slot in enumerate(self.call.slots):
            qubo = qubos[slot.layer]
            if callable(chain_strength):
                strengths[k] = chain_strength(
                    qubo.to_bqm(slot.column), dict(enumerate(slot.chains))
                )
            elif chain_strength is not None:
                strengths[k] = chain_strength
            else:
                if slot.layer not in default:
                    default[slot.layer] = _default_strengths(qubo)
                strengths[k] = default[slot.layer][slot.column]

    def unembed(self, found, gauge=None):
        """Returns the spins of the variables, by majority vote.

        Args:
            found: A resolved `dimod.SampleSet`, the answer to `QubitModel.bqm`.
            gauge: Array (optional). `QubitModel.gauge`. Defaults to `None`.

        Returns:
            A dictionary from layers to tuples `(samples, broken)`. `samples`
            has shape `(reads, n, columns)`, with the columns in the order of
            the slots. `broken` has the same shape and is true for broken
            chains. If all chains of a layer are broken in all reads, a
            `SolverError` takes the place of the tuple.

        Raises:
            SolverError: If the answer is incomplete.
        """
        samples = self._read(found)
        sums = np.add.reduceat(
            samples, self._layout.chain_starts, axis=1, dtype=np.int32
        )
        broken = np.abs(sums) != self._layout.lengths
        if gauge is not None:
            # Before the vote, so that ties do not depend on the gauge.
            sums *= gauge
        spins = np.where(sums >= 0, 1, -1).astype(np.int8)
        return {
            index: self._answer(layer, spins, broken)
            for index, layer in self._layers.items()
        }

    def _read(self, found):
        """Returns the reads, (reads, qubits), in the order of `qubits`."""
        import dimod

        if found.vartype is not dimod.SPIN:
            found = found.change_vartype(dimod.SPIN, inplace=False)
        record = found.record
        position = {qubit: k for k, qubit in enumerate(found.variables)}
        missing = [q for q in self.qubits if q not in position]
        if missing:
            raise SolverError(
                f"The answer must contain all {len(self.qubits)} qubits of "
                f"the problem. Received: {len(position)} qubits, "
                f"{len(missing)} missing"
            )
        if not len(record) or not np.isfinite(record.energy).all():
            raise SolverError(
                "The answer must contain at least one read, and all energies "
                "must be finite. Received: "
                f"{np.asarray(record.energy)[:5].tolist()}"
            )
        return record.sample[:, [position[q] for q in self.qubits]]

    def _answer(self, layer, spins, broken):
        spins, broken = spins[:, layer.variables], broken[:, layer.variables]
        breakable = self._layout.lengths[layer.variables] > 1
        if breakable.any() and broken[:, breakable].all():
            return SolverError(
                "All chains are broken in all reads, so the answer is "
                "meaningless. Increase `chain_strength`. Received: "
                f"{len(spins)} reads of {breakable.sum()} chains"
            )
        shape = (len(spins), len(layer.columns), -1)
        return tuple(
            values.reshape(shape).swapaxes(1, 2) for values in (spins, broken)
        )


def _default_strengths(qubo):
    """Returns the default chain strength of each column."""
    from dwave.embedding.chain_strength import uniform_torque_compensation

    if np.any(qubo.couplings - np.diag(np.diag(qubo.couplings))):
        # All columns have the same couplings.
        strength = uniform_torque_compensation(qubo.to_bqm(0))
        return np.full(qubo.num_columns, strength)
    # Without couplings there is no torque to compensate.
    return np.abs(qubo.fields).max(axis=0)
