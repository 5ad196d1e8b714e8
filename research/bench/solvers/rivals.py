"""What else solves a layer: other people's solvers, one column at a time.

Each is called as well as we know how: one model per layer, of which only the
linear part changes from column to column, and for annealing temperatures that
are computed once per layer (`samplers.beta_range`). A found state that ascends
is turned round, as our backends do; it costs nothing and helps.

Slow ones get fewer columns; the time of a layer is that of what is done once,
plus its columns times that of one.
"""

import importlib.util
import time

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd.backends.host import samplers

NUM_SWEEPS = 1000
LARGEST = ("htanh", 64, False)


class Rival:
    """A solver on the host.

    Attributes:
        name: as in the table.
        package: what must be installed.
        most_variables: wider layers are not solved.
        num_columns: how many columns to solve, by the number of inputs above
            which this holds; the largest that applies counts.
    """

    name = None
    package = None
    most_variables = None
    num_columns = {0: 16, 128: 4}

    def is_installed(self):
        try:
            return importlib.util.find_spec(self.package) is not None
        except ModuleNotFoundError:  # the package it is a part of
            return False

    def columns_for(self, n, cell):
        """How many columns of an `Instance` to solve; 0: none."""
        del cell
        if self.most_variables is not None and n > self.most_variables:
            return 0
        reached = [above for above in self.num_columns if n > above]
        return self.num_columns[max(reached)]

    def prepare(self, qubo):
        """What is done once per layer; handed to `solve`."""
        raise NotImplementedError

    def solve(self, prepared, qubo, column):
        """The state (n,) found for a column."""
        raise NotImplementedError

    def run(self, qubo, columns):
        """Solves the first columns of a layer.

        Returns:
            States (n, columns) and the CPU seconds for all columns of `qubo`.
        """
        start = time.process_time()
        prepared = self.prepare(qubo)
        once = time.process_time() - start
        states = np.empty((qubo.num_variables, columns), np.int8)
        start = time.process_time()
        for column in range(columns):
            states[:, column] = self.solve(prepared, qubo, column)
        each = (time.process_time() - start) / columns
        ascent = (qubo.fields[:, :columns] * states).sum(axis=0) > 0
        states = np.where(ascent, -states, states)
        return states, once + qubo.num_columns * each


class _Sampler(Rival):
    """One that takes a `dimod.BinaryQuadraticModel`."""

    def sample(self, model, qubo, column):
        """A sample set."""
        raise NotImplementedError

    def prepare(self, qubo):
        return qubo.to_bqm(0)

    def solve(self, model, qubo, column):
        if column:
            change = qubo.fields[:, column] - qubo.fields[:, column - 1]
            model.add_linear_from_array(change)
        record = self.sample(model, qubo, column).record
        return record.sample[record.energy.argmin()]


class Annealing(_Sampler):
    """Simulated annealing of dwave-samplers, 1,000 sweeps."""

    package = "dwave.samplers"

    def __init__(self, reads):
        self.name = f"SA {reads}"
        self.reads = reads
        if reads == 10:
            self.num_columns = {0: 16, 128: 4, 256: 1}
        elif reads == 100:
            self.num_columns = {0: 4, 128: 2, 256: 1}

    def columns_for(self, n, cell):
        # Half a second a read there: one cell is enough to see what it is.
        slow = self.reads == 100 and n > 256
        if slow and (cell.kind, cell.batch, cell.planted) != LARGEST:
            return 0
        return super().columns_for(n, cell)

    def prepare(self, qubo):
        from dwave.samplers import SimulatedAnnealingSampler

        self._sampler = SimulatedAnnealingSampler()
        self._temperatures = samplers.beta_range(qubo)
        return super().prepare(qubo)

    def sample(self, model, qubo, column):
        return self._sampler.sample(
            model,
            num_reads=self.reads,
            num_sweeps=NUM_SWEEPS,
            beta_range=self._temperatures,
            seed=column,
        )


class Tabu(_Sampler):
    """Tabu search of dwave-samplers with its defaults: 20 ms a column."""

    name = "tabu"
    package = "dwave.samplers"

    def sample(self, model, qubo, column):
        from dwave.samplers import TabuSampler

        return TabuSampler().sample(model, seed=column)


class Descent(_Sampler):
    """Steepest descent of dwave-samplers from 10 random states."""

    name = "descent"
    package = "dwave.samplers"

    def sample(self, model, qubo, column):
        from dwave.samplers import SteepestDescentSampler

        return SteepestDescentSampler().sample(model, num_reads=10, seed=column)


class OpenJij(_Sampler):
    """Simulated annealing of OpenJij, 10 reads of 1,000 sweeps."""

    name = "OpenJij"
    package = "openjij"
    num_columns = {0: 16, 128: 4, 256: 1}

    def prepare(self, qubo):
        import openjij

        self._sampler = openjij.SASampler()
        self._temperatures = samplers.beta_range(qubo)
        return super().prepare(qubo)

    def sample(self, model, qubo, column):
        hot, cold = self._temperatures
        return self._sampler.sample(
            model,
            num_reads=10,
            num_sweeps=NUM_SWEEPS,
            beta_min=hot,
            beta_max=cold,
            seed=column,
        )


class Bifurcation(Rival):
    """Simulated bifurcation, 128 agents, with its defaults, on the CPU."""

    name = "bifurcation"
    package = "simulated_bifurcation"
    num_columns = {0: 4, 256: 1}

    def prepare(self, qubo):
        import torch

        torch.manual_seed(0)
        return torch.tensor(np.float32(qubo.couplings))

    def solve(self, prepared, qubo, column):
        import simulated_bifurcation
        import torch

        state, _ = simulated_bifurcation.minimize(
            prepared,
            torch.tensor(np.float32(qubo.fields[:, column])),
            domain="spin",
            verbose=False,
        )
        return np.where(state.numpy() > 0, 1, -1)


class Gurobi(Rival):
    """Gurobi, at most about a second a column, no proof asked for.

    The licence that comes with the package allows 200 inputs.
    """

    name = "Gurobi"
    package = "gurobipy"
    most_variables = 200
    num_columns = {0: 2}

    def prepare(self, qubo):
        return backends.get({"name": "gurobi", "work_limit": 1.0})

    def solve(self, prepared, qubo, column):
        part = qubo.columns(column, column + 1)
        return prepared.solve(part).states[:, 0]


RIVALS = (
    Annealing(1),
    Annealing(10),
    Annealing(100),
    Tabu(),
    Descent(),
    Gurobi(),
    OpenJij(),
    Bifurcation(),
)
