"""Estimates the QPU time of a call."""


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
    """
    solver = getattr(sampler, "solver", None) or offline_solver(
        sampler.properties
    )
    return 1e-6 * solver.estimate_qpu_access_time(num_qubits, **parameters)


def offline_solver(properties):
    """Returns Ocean's cost model for a chip, given only its properties.

    If the properties contain no timing data, uses those of an Advantage system
    of 2022, the newest that Ocean ships.
    """
    from dwave.cloud.solver import StructuredSolver
    from dwave.cloud.testing import mocks

    timing = properties.get("problem_timing_data")
    timing = timing or mocks.qpu_problem_timing_data("advantage")
    data = mocks.structured_solver_data()
    data["properties"]["problem_timing_data"] = timing
    return StructuredSolver(client=None, data=data)
