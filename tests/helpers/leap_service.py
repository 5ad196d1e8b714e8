"""A stand-in for Leap's service, behind the real `DWaveSampler`.

The client and the network are replaced. `DWaveSampler`, `StructuredSolver` and
the choice of solvers by features are those of Ocean, and `MockQPU` is the chip.
"""

import concurrent.futures
import types
from unittest import mock

from dwave.cloud import exceptions
from dwave.cloud.solver import StructuredSolver


class Service:
    """The QPUs of a user.

    Args:
        **shapes: For each name of a solver, the arguments of its `MockQPU`.

    Attributes:
        chips: Dictionary from names to `MockQPU`.
        offline: Set of the names of solvers that are offline.
        calls: List of the names of the solvers that received a problem.
        plan: Dictionary from the number of a call to a function, which runs
            before the call.
    """

    def __init__(self, **shapes):
        from keras_qpsbgd.backends.dwave.mock import MockQPU

        self.chips = {name: MockQPU(**shape) for name, shape in shapes.items()}
        self.offline = set()
        self.calls = []
        self.plan = {}
        self.requests = 0

    def lose_qubit(self, name, qubit):
        """Takes a qubit out of the working graph, as a recalibration may."""
        from keras_qpsbgd.backends.dwave.mock import MockQPU

        properties = self.chips[name].properties
        self.chips[name] = MockQPU(
            properties["topology"]["type"],
            properties["topology"]["shape"],
            dead_qubits=[qubit],
        )

    def connected(self):
        """Context manager in which `DWaveSampler` connects to this service."""
        target = "dwave.system.samplers.dwave_sampler.Client"
        client = types.SimpleNamespace(from_config=lambda **c: _Client(self, c))
        return mock.patch(target, client)


class _Client:
    """Like `dwave.cloud.Client`: caches solvers unless asked to refresh."""

    def __init__(self, service, config):
        solver = config.get("solver") or config["defaults"]["solver"]
        if isinstance(solver, str):
            solver = {"name": solver}
        self.config = types.SimpleNamespace(solver=dict(solver))
        self.service = service
        self.closed = False

    def get_solvers(self, refresh=False, order_by=None, **filters):
        del order_by
        self.service.requests += 1
        filters.pop("online", None)
        unknown = set(filters) - {"name", "topology__type"}
        assert not unknown, unknown
        name = filters.get("name")
        if name is not None and name not in self.service.chips:
            raise exceptions.SolverNotFoundError(f"No solver with name={name}")
        topology = filters.get("topology__type")
        return [
            _Solver(self.service, key, chip)
            for key, chip in self.service.chips.items()
            if key not in self.service.offline
            and name in (None, key)
            and topology in (None, chip.properties["topology"]["type"])
        ]

    def close(self):
        self.closed = True


class _Solver(StructuredSolver):
    def __init__(self, service, name, chip):
        graph = str(hash((tuple(chip.nodelist), tuple(chip.edgelist))))
        properties = {
            **chip.properties,
            "chip_id": name,
            "problem_timing_data": None,
        }
        super().__init__(
            client=None,
            data={
                "identity": {"name": name, "version": {"graph_id": graph}},
                "properties": properties,
            },
        )
        self.service = service

    def sample_bqm(self, bqm, label=None, **parameters):
        if not self.check_problem(dict(bqm.linear), dict(bqm.quadratic)):
            raise exceptions.ProblemStructureError("not on the graph")
        service, number = self.service, len(self.service.calls)
        service.calls.append(self.name)
        service.plan.get(number, lambda: None)()
        future = concurrent.futures.Future()
        chip = service.chips[self.name]
        if self.name in service.offline:
            future.set_exception(
                exceptions.SolverOfflineError("Solver is offline")
            )
        elif chip.nodelist != sorted(self.nodes):
            # The server has another graph than this client.
            future.set_exception(
                exceptions.SolverFailureError("Problem rejected")
            )
        else:
            found = chip.sample(bqm, label=label, **parameters)
            future.sampleset = found
            future.set_result(found)
        return _Computation(future)


class _Computation:
    """Like the future of the cloud client."""

    def __init__(self, future):
        self.future = future

    def done(self):
        return self.future.done()

    @property
    def sampleset(self):
        return self.future.result()
