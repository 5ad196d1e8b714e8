"""The cost model of QPU calls and the timing data behind it."""

import itertools
import types

import offline
import pytest
from dwave.cloud.solver import StructuredSolver
from dwave.cloud.testing import mocks
from dwave.system.testing import MockDWaveSampler

from keras_qpsbgd.backends.dwave import cost
from keras_qpsbgd.backends.dwave import mock

pytestmark = pytest.mark.once

REVERSE = [[0.0, 1.0], [10.0, 0.5], [20.0, 1.0]]
CALLS = [
    {"num_reads": reads, **more}
    for reads, more in itertools.product(
        (0, 1, 100, 1000),
        (
            {},
            {"annealing_time": 0.5},
            {"annealing_time": 200.0, "label": "name"},
            {"anneal_schedule": [[0.0, 0.0], [30.0, 1.0]]},
            {"anneal_schedule": REVERSE, "initial_state": [(0, 1)]},
            {
                "anneal_schedule": REVERSE,
                "initial_state": [(0, 1)],
                "reinitialize_state": True,
            },
            {"reduce_intersample_correlation": True},
            {"programming_thermalization": 5.0, "readout_thermalization": 7.0},
        ),
    )
]


def ocean_solver(data):
    """Returns Ocean's own mock of a solver with these timing data."""
    solver = mocks.structured_solver_data()
    solver["properties"]["problem_timing_data"] = data
    return StructuredSolver(client=None, data=solver)


@pytest.mark.parametrize("num_qubits", [1, 16, 150, 1600, 5000])
def test_estimates_equal_those_of_ocean(num_qubits):
    ocean = ocean_solver(mocks.qpu_problem_timing_data("advantage"))
    chip = offline.small_chip()
    for call in CALLS:
        expected = 1e-6 * ocean.estimate_qpu_access_time(num_qubits, **call)
        assert cost.access_time(chip, num_qubits, **call) == expected


def test_timing_data_of_the_solver_are_used():
    """Given as properties, or through the solver of a `DWaveSampler`."""
    data = mocks.qpu_problem_timing_data("2000q")
    ocean = ocean_solver(data)
    chip = MockDWaveSampler(properties={"problem_timing_data": data})
    remote = types.SimpleNamespace(solver=ocean, properties=ocean.properties)
    for sampler, call in itertools.product((chip, remote), CALLS):
        expected = 1e-6 * ocean.estimate_qpu_access_time(70, **call)
        assert cost.access_time(sampler, 70, **call) == expected
    assert ocean.name in cost.timing_source(remote)
    for sampler in (chip, remote):
        assert "problem_timing_data" in cost.timing_source(sampler)


def test_sources_name_a_solver_and_a_date():
    assert cost.timing_source(offline.small_chip()).startswith(
        "Advantage_system4.1, August 2022 ("
    )
    zephyr = mock.MockQPU("zephyr", shape=[2, 4])
    assert cost.timing_source(zephyr).startswith("Advantage2_system1.7, ")
    # 33.6 ms to program; 20 + 101 + 60.6 microseconds per read.
    for num_qubits, num_reads in ((1, 1), (500, 100), (4000, 1000)):
        found = cost.access_time(zephyr, num_qubits, num_reads=num_reads)
        expected = 33.6e-3 + 1e-3 + num_reads * 181.6e-6
        assert found == pytest.approx(expected)
