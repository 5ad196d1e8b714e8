"""Scales problems to the ranges of a chip, and checks solver parameters.

A chip limits the linear biases (`h_range`), the couplings (`extended_j_range`,
or `j_range` if it has none) and the sum of the couplings:

- Advantage limits the sum over all couplers of a qubit,
  `per_qubit_coupling_range`.
- Advantage2 limits the sum over each group of couplers,
  `per_group_coupling_range`. The couplers of every qubit are divided into two
  groups of similar size, so every coupler is in one group of each of its two
  qubits. `dwave.system.coupling_groups` returns the groups.
  `DWaveCliqueSampler` uses it for the same purpose.

The solver parameter `auto_scale` divides a whole problem by one number, the
largest ratio of a value to its limit. The largest column would therefore
determine the scale of all columns. Here, every column is divided by the number
that `auto_scale` would use for this column alone. Columns share no qubit, so
they share no coupler and no group, and the whole problem is within all ranges.
`PARAMETERS` turns `auto_scale` off, as `DWaveCliqueSampler` does. A problem
outside the ranges is then rejected instead of silently scaled down.

References:
    - [Solver properties](
      https://docs.dwavequantum.com/en/latest/quantum_research/solver_properties_all.html)
    - [Solver parameters](
      https://docs.dwavequantum.com/en/latest/quantum_research/solver_parameters.html)
"""

import numpy as np

from keras_qpsbgd.backends.errors import BackendUnavailable

# Control errors of current chips (standard deviation about 0.01 to 0.025 for h,
# about 0.015 for J). Smaller values are lost in these errors.
PRECISION = 0.02
# Parameters of a call whose problem is scaled here.
PARAMETERS = {"auto_scale": False}
# Keeps scaled values within the ranges despite rounding errors.
_MARGIN = 1e-12


class Limits:
    """The ranges of a chip for problems on the same qubits and couplers.

    Args:
        properties: Dictionary. Properties of the sampler.
        qubits: Sequence of the labels of the qubits.
        first: Array of integers. For each coupler, the position of one of its
            qubits in `qubits`.
        second: Array of integers. The position of the other qubit.
    """

    def __init__(self, properties, qubits, first, second):
        self.linear = properties["h_range"]
        self.pairs = properties.get("extended_j_range") or properties["j_range"]
        self._num_qubits = len(qubits)
        self._first = np.asarray(first, dtype=np.intp)
        self._second = np.asarray(second, dtype=np.intp)
        self._totals = []
        per_qubit = properties.get("per_qubit_coupling_range")
        if per_qubit:
            owners = np.arange(len(qubits))
            self._totals.append((per_qubit, self._first, self._second, owners))
        per_group = properties.get("per_group_coupling_range")
        if per_group:
            groups = _groups(properties, qubits, self._first, self._second)
            self._totals.append((per_group, *groups))

    def excess(self, linear, pairs, part=None, num_parts=1):
        """Returns the largest ratio of a value to its limit, for each part.

        Args:
            linear: Array. Linear biases of the qubits.
            pairs: Array. Couplings.
            part: Array of integers (optional). For each qubit, the part of the
                problem that it belongs to. Couplers must not connect parts.
                Defaults to one part.
            num_parts: Integer. Number of parts. Defaults to `1`.

        Returns:
            An array of shape `(num_parts,)`. A part that is divided by this
            number, or by a larger one, is within all ranges.
        """
        if part is None:
            part = np.zeros(self._num_qubits, dtype=np.intp)
        largest = np.zeros(num_parts)
        np.maximum.at(largest, part, _ratio(linear, self.linear))
        np.maximum.at(largest, part[self._first], _ratio(pairs, self.pairs))
        for bounds, first, second, owners in self._totals:
            count = len(owners)
            totals = np.bincount(first, pairs, count)
            totals += np.bincount(second, pairs, count)
            np.maximum.at(largest, part[owners], _ratio(totals, bounds))
        return largest

    def scales(self, linear, pairs, part, num_parts):
        """Returns the factors that scale each part to its full ranges."""
        largest = self.excess(linear, pairs, part, num_parts)
        scales = np.ones(num_parts)
        usable = largest > np.finfo(np.float64).tiny  # else the scale stays 1
        return np.divide(1 - _MARGIN, largest, out=scales, where=usable)


def excess(bqm, properties):
    """Returns the largest ratio of a value of a problem to its limit.

    Args:
        bqm: A spin-valued `dimod.BinaryQuadraticModel` on the chip's qubits.
        properties: Dictionary. Properties of the sampler.
    """
    vectors = bqm.to_numpy_vectors(return_labels=True)
    linear, (first, second, pairs), _, labels = vectors
    limits = Limits(properties, list(labels), first, second)
    return float(limits.excess(linear, pairs)[0])


def _ratio(values, bounds):
    """Returns the ratio of each value to the bound with the same sign."""
    low, high = bounds
    above = np.divide(values, high) if high > 0 else np.zeros(len(values))
    return np.maximum(above, np.divide(values, low) if low < 0 else 0.0)


def _groups(properties, qubits, first, second):
    """Returns the group of each end of each coupler, and the groups' qubits."""
    import networkx as nx
    from dwave.system.coupling_groups import coupling_groups

    topology = properties["topology"]
    # The groups of a subgraph are those of the chip without unused couplers.
    graph = nx.Graph(family=topology["type"], rows=topology["shape"][0])
    ends = [(qubits[a], qubits[b]) for a, b in zip(first, second)]
    graph.add_edges_from(ends)
    position = {qubit: k for k, qubit in enumerate(qubits)}
    group_of, owners = {}, []
    for index, group in enumerate(coupling_groups(graph)):
        group_of.update(dict.fromkeys(group, index))
        # The second qubit of each coupler is the one that the group belongs to.
        owners.append(position[group[0][1]] if group else 0)
    return (
        np.array([group_of[b, a] for a, b in ends], dtype=np.intp),
        np.array([group_of[a, b] for a, b in ends], dtype=np.intp),
        np.array(owners, dtype=np.intp),
    )


# Parameters of a call


def call_parameters(backend):
    """Returns the solver parameters of a call of a `DWaveBackend`."""
    sampler = backend.open().sampler
    given = {"num_reads": backend.num_reads, **backend.parameters}
    if backend.annealing_time is not None:
        given["annealing_time"] = backend.annealing_time
    # Return every read, and show a label in Leap's list of problems.
    defaults = {"answer_mode": "raw", **PARAMETERS}
    if backend.problem_label is not None:
        defaults["label"] = backend.problem_label
    for name, value in defaults.items():
        if name in sampler.parameters:
            given.setdefault(name, value)
    return given


def check_parameters(backend):
    """Raises a `BackendUnavailable` if the solver rejects the parameters."""
    sampler = backend.open().sampler
    unknown = sorted(set(backend.parameters) - set(sampler.parameters))
    if unknown:
        raise BackendUnavailable(
            "`parameters` must be parameters of this solver: "
            f"{sorted(sampler.parameters)}. Received: {unknown}"
        )
    # `LinearAncillaComposite` of dwave-system emulates linear biases, but needs
    # a free neighbor for every qubit. Packing leaves few free qubits.
    if backend.parameters.get("fast_anneal"):
        raise BackendUnavailable(
            "`parameters` must not contain `fast_anneal`. The fast-anneal "
            "protocol requires that all linear biases are zero, and the linear "
            "biases of a column are its gradient. Use a short `annealing_time` "
            "instead. Received: fast_anneal="
            f"{backend.parameters['fast_anneal']!r}"
        )
    if backend.parameters.get("auto_scale"):
        raise BackendUnavailable(
            "`parameters` must not contain `auto_scale`, which scales all "
            "columns by one number. The backend scales each column on its "
            f"own. Received: auto_scale={backend.parameters['auto_scale']!r}"
        )
    given = call_parameters(backend)
    for name in ("num_reads", "annealing_time"):
        bounds = sampler.properties.get(f"{name}_range")
        value = given.get(name)
        if not bounds or value is None:
            continue
        low, high = bounds
        if not low <= value <= high:
            raise BackendUnavailable(
                f"`{name}` must be between {low:g} and {high:g} on this "
                f"solver. Received: {name}={value}"
            )


def check_duration(backend, calls):
    """Raises a `BackendUnavailable` if a call takes longer than allowed."""
    limits = backend.open().sampler.properties.get("problem_run_duration_range")
    qubits = max(call.num_qubits for call in calls)
    try:  # the limit does not include the programming time
        seconds = backend.call_seconds(qubits)
        seconds -= backend.call_seconds(qubits, num_reads=0)
    except BackendUnavailable:
        return
    if limits and seconds > 1e-6 * limits[1]:
        raise BackendUnavailable(
            f"A call would take {seconds:.3g} s, but this solver allows at "
            f"most {1e-6 * limits[1]:g} s. Lower `num_reads` or "
            f"`annealing_time`. Received: num_reads={backend.num_reads}, "
            f"annealing_time={backend.annealing_time}"
        )
