"""What a quantum annealer does to a problem: scale it, and take its time."""

import numpy as np

# Control errors of current chips (sd of h about 0.01 to 0.025, of J about
# 0.015): smaller values are not what the chip anneals.
PRECISION = 0.02


def scale_factor(bqm, properties):
    """The factor by which a chip multiplies a problem to use its ranges.

    Args:
        bqm: spin model on the chip's qubits.
        properties: of the sampler: `h_range`, `extended_j_range` or `j_range`,
            `per_qubit_coupling_range`.
    """
    linear, (first, second, pairs), _ = bqm.to_numpy_vectors()
    couplings = properties.get("extended_j_range") or properties["j_range"]
    excess = [
        _excess(linear, properties["h_range"]),
        _excess(pairs, couplings),
    ]
    per_qubit = properties.get("per_qubit_coupling_range")
    if per_qubit:
        sums = np.zeros(len(linear))
        np.add.at(sums, first, pairs)
        np.add.at(sums, second, pairs)
        excess.append(_excess(sums, per_qubit))
    largest = max(excess)
    return 1.0 / largest if largest > 0 else 1.0


def column_scales(qubo, chain_lengths, chain_strength, properties):
    """Factors that let every column use the ranges of the chip.

    A chip scales a problem as a whole, so beside a column with a large gradient
    the fields of the others would drown in control errors.

    Args:
        qubo: a `Qubo`.
        chain_lengths: (n, m), qubits of each variable, over which its field is
            spread.
        chain_strength: (m,), coupling within chains, in units of the QUBO.
        properties: of the sampler.

    Returns:
        (m,) factors.
    """
    ranges = properties.get("extended_j_range") or properties["j_range"]
    couplings = 2 * np.array(qubo.couplings, dtype=np.float64)
    np.fill_diagonal(couplings, 0.0)
    fields = np.abs(qubo.fields / chain_lengths).max(axis=0)
    excess = np.maximum(
        fields / properties["h_range"][1], _excess(couplings, ranges)
    )
    if (chain_lengths > 1).any():
        excess = np.maximum(excess, chain_strength / -ranges[0])
    return np.divide(1.0, excess, out=np.ones_like(excess), where=excess > 0)


def _excess(values, bounds):
    """By what the values must be divided to lie within the bounds."""
    low, high = bounds
    least = values.min(initial=0.0) / low if low else 0.0
    return max(least, values.max(initial=0.0) / high if high else 0.0)


def parameter_ranges(properties, parameters):
    """What `num_reads` and `annealing_time` may be, as far as is known."""
    fast = "fast_anneal_time_range"
    time = fast if parameters.get("fast_anneal") else "annealing_time_range"
    names = {"num_reads": "num_reads_range", "annealing_time": time}
    return {k: properties[v] for k, v in names.items() if properties.get(v)}


def access_time(sampler, num_qubits, **parameters):
    """Estimated QPU access time of one call, in seconds.

    Args:
        sampler: a `DWaveSampler` or its mock.
        num_qubits: qubits that the problem occupies.
        **parameters: of the call: `num_reads`, `annealing_time`, ...
    """
    solver = getattr(sampler, "solver", None) or offline_solver(
        sampler.properties
    )
    return 1e-6 * solver.estimate_qpu_access_time(num_qubits, **parameters)


def offline_solver(properties):
    """Ocean's own cost model, for a chip of which only properties are known.

    Without timing data among them it takes those of an Advantage system of
    2022, the newest that Ocean ships.
    """
    from dwave.cloud.solver import StructuredSolver
    from dwave.cloud.testing import mocks

    timing = properties.get("problem_timing_data")
    timing = timing or mocks.qpu_problem_timing_data("advantage")
    data = mocks.structured_solver_data()
    data["properties"]["problem_timing_data"] = timing
    return StructuredSolver(client=None, data=data)
