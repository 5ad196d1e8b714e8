"""Solvers on the host: the preset `once`, and those of other packages.

The others solve one column at a time. Each solver is called as efficiently as
we know how. There is one model per layer, and only its linear part changes from
column to column. The annealing temperatures are computed once per layer
(`samplers.beta_range`). A state that points uphill is negated, as in our
backends. This is free and improves the result.

Slow solvers get fewer columns. The time of a layer is the time of the
preparation plus the number of columns times the mean time of a column.
"""

import importlib.util
import time

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd.backends.host import samplers

NUM_SWEEPS = 1000
LARGEST = ("htanh", 64, False)


class Baseline:
    """A host solver.

    Attributes:
        name: Name in the table.
        package: Package that must be installed.
        max_variables: Wider layers are not solved.
        num_columns: Dictionary from a number of inputs to the number of columns
            to solve in layers with more inputs than that. The entry with the
            largest matching number of inputs is used.
    """

    name = None
    package = None
    max_variables = None
    num_columns = {0: 16, 128: 4}

    def is_installed(self):
        try:
            return importlib.util.find_spec(self.package) is not None
        except ModuleNotFoundError:  # the parent package is missing
            return False

    def columns_for(self, n, cell):
        """Returns the number of columns to solve, possibly 0."""
        del cell
        if self.max_variables is not None and n > self.max_variables:
            return 0
        reached = [above for above in self.num_columns if n > above]
        return self.num_columns[max(reached)]

    def prepare(self, qubo):
        """Does the work per layer. The result is passed to `solve`."""
        raise NotImplementedError

    def solve(self, prepared, qubo, column):
        """Returns the state (n,) found for a column."""
        raise NotImplementedError

    def run(self, qubo, columns):
        """Solves the first columns of a layer.

        Returns:
            States (n, columns), and the CPU seconds extrapolated to all columns
            of `qubo`.
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


class Once(Baseline):
    """The preset `once` of our backend, which solves all columns together."""

    name = "once"
    package = "keras_qpsbgd"

    def run(self, qubo, columns):
        backend = backends.get({"name": "native", "preset": "once"})
        start = time.process_time()
        states = backend.solve(qubo, seed=0).states
        return states[:, :columns], time.process_time() - start


class _Sampler(Baseline):
    """A solver that accepts a `dimod.BinaryQuadraticModel`."""

    def sample(self, model, qubo, column):
        """Returns a sample set."""
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
    """Simulated annealing from dwave-samplers with 1,000 sweeps."""

    package = "dwave.samplers"

    def __init__(self, reads):
        self.name = f"SA {reads}"
        self.reads = reads
        if reads == 10:
            self.num_columns = {0: 16, 128: 4, 256: 1}
        elif reads == 100:
            self.num_columns = {0: 4, 128: 2, 256: 1}

    def columns_for(self, n, cell):
        # A read takes half a second there, so only one cell is measured.
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
    """Tabu search from dwave-samplers with its defaults: 20 ms per column."""

    name = "tabu"
    package = "dwave.samplers"

    def sample(self, model, qubo, column):
        from dwave.samplers import TabuSampler

        return TabuSampler().sample(model, seed=column)


class Descent(_Sampler):
    """Steepest descent from dwave-samplers, from 10 random states."""

    name = "descent"
    package = "dwave.samplers"

    def sample(self, model, qubo, column):
        from dwave.samplers import SteepestDescentSampler

        return SteepestDescentSampler().sample(model, num_reads=10, seed=column)


class Gurobi(Baseline):
    """Gurobi with a limit of about a second per column, without a proof.

    The license that comes with the package allows 200 inputs.
    """

    name = "Gurobi"
    package = "gurobipy"
    max_variables = 200
    num_columns = {0: 2}

    def prepare(self, qubo):
        return backends.get({"name": "gurobi", "work_limit": 1.0})

    def solve(self, prepared, qubo, column):
        part = qubo.columns(column, column + 1)
        return prepared.solve(part).states[:, 0]


BASELINES = (
    Once(),
    Annealing(1),
    Annealing(10),
    Annealing(100),
    Tabu(),
    Descent(),
    Gurobi(),
)
