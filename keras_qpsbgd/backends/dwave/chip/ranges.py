"""Scales problems to the ranges of a quantum annealer."""

import numpy as np

# Control errors of current chips (standard deviation about 0.01 to 0.025 for h,
# about 0.015 for J). Smaller values are lost in these errors.
PRECISION = 0.02


def scale_factor(bqm, properties):
    """Returns the factor that scales a problem to the full ranges of a chip.

    Args:
        bqm: A spin-valued `dimod.BinaryQuadraticModel` on the chip's qubits.
        properties: Dictionary. Properties of the sampler: `h_range`,
            `extended_j_range` or `j_range`, and `per_qubit_coupling_range`.
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
    """Returns factors that scale every column to the full ranges of the chip.

    A chip scales a problem as a whole. Next to a column with a large gradient,
    the fields of the other columns would be smaller than the control errors.

    Args:
        qubo: A `Qubo`.
        chain_lengths: Array of shape `(n, m)`. Number of qubits of each
            variable, over which its field is spread.
        chain_strength: Array of shape `(m,)`. Coupling within chains, in units
            of the QUBO.
        properties: Dictionary. Properties of the sampler.

    Returns:
        An array of shape `(m,)`.
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
    """Returns the divisor that brings the values within the bounds."""
    low, high = bounds
    least = values.min(initial=0.0) / low if low else 0.0
    return max(least, values.max(initial=0.0) / high if high else 0.0)
