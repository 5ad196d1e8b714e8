"""Maps the columns of layers from QUBOs to qubits and back."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_qpsbgd.backends.dwave.chip.ranges import Limits
from keras_qpsbgd.backends.errors import SolverError


class Problem(NamedTuple):
    """One call, on qubits.

    Attributes:
        bqm: A `dimod.BinaryQuadraticModel`.
        gauge: Array of -1 and 1 with one entry per variable, or `None`. Pass it
            to `EmbeddedCall.unembed` and `EmbeddedCall.initial_state`.
        scales: Array with the scale of each slot.
    """

    bqm: Any
    gauge: np.ndarray | None
    scales: np.ndarray


class _Layer(NamedTuple):
    """Index arrays of the slots of one layer."""

    columns: np.ndarray  # (slots,) columns of the layer
    variables: np.ndarray  # (slots, n) variables of the call
    shape: tuple  # number of copies, number of columns
    couplers: np.ndarray  # couplers between the chains of these slots
    entries: np.ndarray  # their entries in the couplings, flat
    weights: np.ndarray  # 2 / number of couplers of the same entry


class EmbeddedCall:
    """Embeds the columns of one call, and reads its answers.

    All index arrays are built once. The object is immutable, so threads may
    share it.

    **Scale.** Every column is scaled to the ranges of the chip for itself, see
    `chip.ranges`.

    **Gauge.** A random spin reversal replaces the variable `g_i` by `-g_i` for
    half of the variables, so that errors that favor one direction do not favor
    the same states in every call. It flips whole chains. The composite
    `SpinReversalTransformComposite` of dwave-preprocessing does not fit. Below
    the embedding it flips each qubit for itself, and half of the couplings
    within chains become positive. There the range ends at 1 instead of -2, and
    chains would have half the strength. Above the embedding it would work, but
    it does not flip the `initial_state` of reverse annealing, by its
    documentation.

    Args:
        call: A `PackedCall`.
        sampler: A structured sampler, such as `DWaveSampler`.
    """

    def __init__(self, call, sampler):
        from dwave.embedding import EmbeddedStructure

        self.call = call
        chains = [chain for slot in call.slots for chain in slot.chains]
        sizes = [len(slot.chains) for slot in call.slots]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._lengths = np.array([len(chain) for chain in chains])
        self.qubits = [qubit for chain in chains for qubit in chain]
        self._chain_starts = np.cumsum(self._lengths) - self._lengths
        self._variable = np.repeat(np.arange(len(chains)), self._lengths)
        slots = np.repeat(np.arange(len(sizes)), sizes)
        self._slot = slots[self._variable]
        self._position = {qubit: k for k, qubit in enumerate(self.qubits)}
        if len(self._position) < len(self.qubits):
            raise ValueError(
                "`call` must use every qubit once. Received: "
                f"{len(self.qubits) - len(self._position)} qubits used again"
            )
        structure = EmbeddedStructure(sampler.edgelist, dict(enumerate(chains)))
        within = [pair for v in structure for pair in structure.chain_edges(v)]
        self._num_within = len(within)
        couplers = list(within)
        self._layers = {
            layer: self._index(layer, structure, couplers)
            for layer in dict.fromkeys(slot.layer for slot in call.slots)
        }
        ends = [[self._position[q] for q in coupler] for coupler in couplers]
        ends = np.array(ends, dtype=np.intp).reshape(-1, 2)
        self._first, self._second = ends.T.copy()
        self._limits = Limits(
            sampler.properties, self.qubits, self._first, self._second
        )

    def _index(self, layer, structure, couplers):
        """Returns a `_Layer` and appends its couplers to `couplers`."""
        places = [
            k for k, slot in enumerate(self.call.slots) if slot.layer == layer
        ]
        slots = [self.call.slots[k] for k in places]
        n = len(slots[0].chains)
        copies = len({slot.copy for slot in slots})
        columns = [slot.column for slot in slots]
        # Copies as the first axis, and columns in the order of the slots.
        order = np.argsort([slot.copy for slot in slots], kind="stable")
        table = np.array(columns)[order]
        if (
            len(slots) % copies
            or (
                table.reshape(copies, -1) != table[: len(slots) // copies]
            ).any()
        ):
            raise ValueError(
                "`call` must have the same columns in every copy of a layer. "
                f"Received: columns {columns} in {copies} copies"
            )
        starts = self._starts[np.array(places)[order]]
        begin = len(couplers)
        entries, weights = [], []
        for start in starts.tolist():
            for i in range(n):
                for j in range(i + 1, n):
                    pairs = structure.interaction_edges(start + i, start + j)
                    before = len(couplers)
                    couplers.extend(pairs)
                    count = len(couplers) - before
                    if not count:
                        raise ValueError(
                            "`call` must have a coupler between all chains of "
                            "a slot. Received: none between variables "
                            f"{i} and {j} of layer {layer}"
                        )
                    entries.extend(count * [i * n + j])
                    # Each pair is in both halves of the symmetric matrix.
                    weights.extend(count * [2.0 / count])
        return _Layer(
            table,
            starts[:, None] + np.arange(n),
            (copies, len(slots) // copies),
            np.arange(begin, len(couplers)),
            np.array(entries, dtype=np.intp),
            np.array(weights),
        )

    @property
    def num_qubits(self):
        """Number of qubits of the call."""
        return len(self.qubits)

    def embed(self, qubos, chain_strength=None, gauge=None):
        """Embeds the columns, each scaled to the full ranges of the chip.

        Args:
            qubos: Sequence or dictionary of `Qubo`, indexed by `Slot.layer`.
            chain_strength: `None`, number or function. See `DWaveBackend`.
            gauge: A `numpy.random.Generator` (optional), which draws a random
                spin reversal. Defaults to `None`, which flips no variable.

        Returns:
            A `Problem`.
        """
        import dimod

        fields = np.empty(len(self._lengths))
        pairs = np.empty(len(self._first))
        strengths = np.empty(len(self.call.slots))
        for index, layer in self._layers.items():
            qubo = qubos[index]
            fields[layer.variables] = np.asarray(qubo.fields).T[layer.columns]
            couplings = np.asarray(qubo.couplings, dtype=np.float64).ravel()
            pairs[layer.couplers] = couplings[layer.entries] * layer.weights
        self._set_chain_strengths(strengths, qubos, chain_strength)
        linear = (fields / self._lengths)[self._variable]
        within = slice(self._num_within)
        pairs[within] = -strengths[self._slot[self._first[within]]]
        signs = None
        if gauge is not None:
            signs = 1 - 2 * gauge.integers(0, 2, len(fields), dtype=np.int8)
            flips = signs[self._variable]
            linear *= flips
            # Both ends of a coupler within a chain flip together.
            pairs *= flips[self._first] * flips[self._second]
        scales = self._limits.scales(linear, pairs, self._slot, len(strengths))
        linear *= scales[self._slot]
        pairs *= scales[self._slot[self._first]]
        bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(
            linear,
            (self._first, self._second, pairs),
            0.0,
            dimod.SPIN,
            variable_order=self.qubits,
        )
        return Problem(bqm, signs, scales)

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
            found: A resolved `dimod.SampleSet`, the answer to `Problem.bqm`.
            gauge: Array (optional). `Problem.gauge`. Defaults to `None`.

        Returns:
            A dictionary from layers to tuples `(samples, broken)`. `samples`
            has shape `(copies * reads, n, columns)`, with the reads of the
            first copy first and the columns in the order of the slots. `broken`
            has the same shape and states which chains were broken. If all
            chains of a layer are broken in all reads, a `SolverError` takes the
            place of the tuple.

        Raises:
            SolverError: If the answer is incomplete.
        """
        samples = self._read(found)
        sums = np.add.reduceat(
            samples, self._chain_starts, axis=1, dtype=np.int32
        )
        broken = np.abs(sums) != self._lengths
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
        chains = layer.variables.ravel()
        breakable = chains[self._lengths[chains] > 1]
        if breakable.size and broken[:, breakable].all():
            return SolverError(
                "All chains are broken in all reads, so the answer is "
                "meaningless. Increase `chain_strength`. Received: "
                f"{len(spins)} reads of {breakable.size} chains"
            )
        copies, columns = layer.shape
        n = layer.variables.shape[1]

        def arrange(values):
            values = values[:, chains].reshape(-1, copies, columns, n)
            return values.transpose(1, 0, 3, 2).reshape(-1, n, columns)

        return arrange(spins), arrange(broken)

    def initial_state(self, states, gauge=None):
        """Returns the state of the qubits from which to anneal in reverse.

        Args:
            states: Sequence or dictionary of arrays of shape `(n, m)` with -1
                and 1, indexed by `Slot.layer`. One state per column.
            gauge: Array (optional). `Problem.gauge`. Defaults to `None`.

        Returns:
            A dictionary from qubits to -1 or 1, for the solver parameter
            `initial_state`. All qubits of a chain have the same state.
        """
        spins = np.empty(len(self._lengths), dtype=np.int8)
        for index, layer in self._layers.items():
            spins[layer.variables] = np.asarray(states[index]).T[layer.columns]
        if gauge is not None:
            spins *= gauge
        return dict(zip(self.qubits, spins[self._variable].tolist()))


def _default_strengths(qubo):
    """Returns the default chain strength of each column."""
    from dwave.embedding.chain_strength import uniform_torque_compensation

    if np.any(qubo.couplings - np.diag(np.diag(qubo.couplings))):
        # All columns have the same couplings.
        strength = uniform_torque_compensation(qubo.to_bqm(0))
        return np.full(qubo.num_columns, strength)
    # Without couplings there is no torque to compensate.
    return np.abs(qubo.fields).max(axis=0)
