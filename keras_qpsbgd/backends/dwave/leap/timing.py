"""Estimates the QPU time of a call."""

from keras_qpsbgd.backends.dwave.leap import published


def parameter_ranges(properties, parameters):
    """Returns the known ranges of `num_reads` and `annealing_time`."""
    fast = "fast_anneal_time_range"
    time = fast if parameters.get("fast_anneal") else "annealing_time_range"
    names = {"num_reads": "num_reads_range", "annealing_time": time}
    return {k: properties[v] for k, v in names.items() if properties.get(v)}


def access_time(sampler, num_qubits, **parameters):
    """Estimates the QPU access time of one call, in seconds.

    Args:
        sampler: A `DWaveSampler` or `MockQPU`.
        num_qubits: Integer. Number of qubits that the problem occupies.
        **parameters: Parameters of the call, such as `num_reads` and
            `annealing_time`.

    Raises:
        KeyError, ValueError: If Ocean does not support the solver's timing
            data.
    """
    solver = getattr(sampler, "solver", None)
    properties = getattr(solver, "properties", None) or {}
    if not properties.get("problem_timing_data"):
        solver = offline_solver(sampler.properties)
    return 1e-6 * solver.estimate_qpu_access_time(num_qubits, **parameters)


def source(sampler):
    """Describes the timing data behind the estimates for a sampler.

    Args:
        sampler: A `DWaveSampler` or `MockQPU`.

    Returns:
        A string, such as `"Advantage_system4.1, August 2022 (...)"`.
    """
    if sampler.properties.get("problem_timing_data"):
        solver = getattr(sampler, "solver", None)
        name = getattr(solver, "name", None) or "the solver"
        return f"{name}, its current `problem_timing_data`"
    return str(_published(sampler.properties))


def offline_solver(properties):
    """Returns Ocean's cost model for a chip, given only its properties.

    Uses `problem_timing_data` of the properties, or published timing data of a
    chip of the same topology if there are none.
    """
    from dwave.cloud.solver import StructuredSolver

    known = _published(properties)
    own = properties.get("problem_timing_data")
    data = {
        "identity": {"name": known.solver, "version": {"graph_id": ""}},
        "properties": {
            "supported_problem_types": ["ising", "qubo"],
            "qubits": [],
            "couplers": [],
            "problem_timing_data": dict(own or known.data),
        },
    }
    return StructuredSolver(client=None, data=data)


def _published(properties):
    topology = properties.get("topology") or {}
    return published.for_topology(topology.get("type"))
