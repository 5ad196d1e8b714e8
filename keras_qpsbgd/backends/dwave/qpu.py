"""Solves the columns of a layer side by side on a D-Wave quantum annealer."""

import warnings
from typing import Any

import numpy as np

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.dwave.chip import columns
from keras_qpsbgd.backends.dwave.chip import ranges
from keras_qpsbgd.backends.dwave.leap import ocean
from keras_qpsbgd.backends.dwave.leap import timing
from keras_qpsbgd.backends.dwave.leap.budget import Budget
from keras_qpsbgd.backends.dwave.leap.connection import Connection
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.errors import reject_secrets
from keras_qpsbgd.backends.host import blocks
from keras_qpsbgd.qubo import Qubo

BLOCK_SIZE = 64


class DWaveBackend(Backend):
    r"""Solves on a QPU, through dwave-system.

    The couplings of a layer form a complete graph on its inputs, the same for
    all columns. The embeddings of $K_n$ are therefore searched once per number
    of inputs and cached in memory and on disk. All columns are annealed in one
    call, each on its own qubits. Columns that do not fit on the chip are
    annealed in further calls. A layer that is wider than the largest clique is
    solved in blocks.

    The backend takes the best read of each column. `Solution.info` has
    `qpu_access_time` (microseconds), `chain_break_fraction` (per column),
    `reads` and `energies`.

    Configure access with D-Wave's own tools: `dwave setup --auth`, or the
    environment variable `DWAVE_API_TOKEN`. There is no argument for a token.

    Args:
        solver: String, dictionary or list of these (optional). Name of the
            solver, or its features. The solvers of a list are tried in order,
            at the start and when the solver in use goes offline during
            training. Defaults to `None`, which uses D-Wave's configuration, or
            the largest QPU if that names no solver.
        topology: String (optional). Chooses a solver by its topology,
            `"pegasus"` or `"zephyr"`. Defaults to `None`.
        num_reads: Integer. Number of anneals per call. Defaults to `100`.
        annealing_time: Float (optional). Microseconds per anneal. Defaults to
            `None`, which uses the solver's default.
        chain_strength: Float or function (optional). Coupling that holds the
            qubits of a variable together, in units of the QUBO. A function
            receives the model and the embedding of a column and returns a
            float; it cannot be saved. Defaults to `None`, which uses
            `uniform_torque_compensation` from dwave-system.
        parameters: Dictionary (optional). Further parameters of the solver.
            Defaults to `None`.
        qpu_budget_seconds: Float (optional). Maximum QPU access time of this
            backend. A call that could exceed it, by Ocean's estimate, is not
            made, and `on_failure` decides what happens instead. Failed calls
            that report no time count as their estimate. The count restarts
            at zero when a saved optimizer is loaded. Defaults to `None`,
            which sets no limit.
        profile: String (optional). Section of D-Wave's configuration file.
            Defaults to `None`, which uses D-Wave's configuration.
        region: String (optional). Region of Leap. Defaults to `None`, which
            uses D-Wave's configuration.
        mock: Boolean. If `True`, simulated annealing replaces the chip.
            Embeddings, times and ranges stay the same. Defaults to `False`.
        sampler: An open `DWaveSampler`, or a compatible sampler (optional). It
            is not saved. The workers of an executor receive a copy if it can be
            pickled. Defaults to `None`, which connects to Leap.
        **options: Arguments of `Backend`.

    Example:
        ```python
        optimizer = kq.QPSBGD(
            0.02,
            backend={"name": "dwave", "qpu_budget_seconds": 30},
            on_failure="native",
        )
        ```
    """

    name = "dwave"
    reports = ("qpu_access_time", "chain_break_fraction")

    def __init__(
        self,
        solver: Any = None,
        topology: str | None = None,
        num_reads: int = 100,
        annealing_time: float | None = None,
        chain_strength: Any = None,
        parameters: dict[str, Any] | None = None,
        qpu_budget_seconds: float | None = None,
        profile: str | None = None,
        region: str | None = None,
        mock: bool = False,
        sampler: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if topology not in (None, "pegasus", "zephyr"):
            raise ValueError(
                '`topology` must be "pegasus", "zephyr" or None. Received: '
                f"topology={topology!r}"
            )
        solvers = solver if isinstance(solver, (list, tuple)) else [solver]
        kinds = (str, dict) if solvers is solver else (str, dict, type(None))
        if not solvers or not all(isinstance(s, kinds) for s in solvers):
            raise ValueError(
                "`solver` must be a string, a dictionary of features, a list "
                f"of these or None. Received: solver={solver!r}"
            )
        if solver is not None and (topology is not None or mock):
            raise ValueError(
                "`solver` cannot be combined with `topology` or `mock`. "
                f"Received: solver={solver!r}, topology={topology!r}, "
                f"mock={mock!r}"
            )
        reject_secrets({"solver": solver, "parameters": parameters})
        if not isinstance(parameters, (dict, type(None))) or (
            {"num_reads", "annealing_time"} & set(parameters or ())
        ):
            raise ValueError(
                "`parameters` must be a dictionary without `num_reads` and "
                "`annealing_time`, which are separate arguments. Received: "
                f"parameters={parameters!r}"
            )
        if not callable(chain_strength):
            check_number(
                "chain_strength", chain_strength, above=0, optional=True
            )
        check_number("num_reads", num_reads, at_least=1, whole=True)
        check_number("annealing_time", annealing_time, above=0, optional=True)
        check_number(
            "qpu_budget_seconds", qpu_budget_seconds, at_least=0, optional=True
        )
        self.solver = solver
        self.topology = topology
        self.num_reads = num_reads
        self.annealing_time = annealing_time
        self.chain_strength = chain_strength
        self.parameters = dict(parameters or {})
        self.qpu_budget_seconds = qpu_budget_seconds
        self.profile = profile
        self.region = region
        self.mock = mock
        self.sampler = sampler
        self.budget = Budget(qpu_budget_seconds)
        self._warned = False

    # Setup

    @classmethod
    def configuration_missing(cls) -> str | None:
        missing = ocean.token_missing()
        return missing and f"{missing} `mock=True` works without a token."

    def check(self, num_variables: int, num_columns: int) -> None:
        """Connects, checks the parameters and embeds the layer."""
        super().check(num_variables, num_columns)
        self._check_parameters()
        block_size = self.block_size_for(num_variables)
        for width in blocks.sizes(num_variables, block_size):
            self._check_duration(
                width, self.columns_per_call(width, num_columns)
            )
        if self.qpu_budget_seconds is not None:
            self.estimate(block_size, 1)

    def _check_parameters(self):
        sampler = self.open().sampler
        unknown = sorted(set(self.parameters) - set(sampler.parameters))
        if unknown:
            raise BackendUnavailable(
                "`parameters` must be parameters of this solver: "
                f"{sorted(sampler.parameters)}. Received: {unknown}"
            )
        properties = sampler.properties
        limits = timing.parameter_ranges(properties, self.parameters)
        for name, value in self._call_parameters().items():
            low, high = limits.get(name, (-np.inf, np.inf))
            if isinstance(value, (int, float)) and not low <= value <= high:
                raise BackendUnavailable(
                    f"`{name}` must be between {low:g} and {high:g} on this "
                    f"solver. Received: {name}={value}"
                )

    def _check_duration(self, num_variables, num_columns):
        limits = self.open().sampler.properties.get(
            "problem_run_duration_range"
        )
        try:  # without the programming time, which does not count
            seconds = self.estimate(num_variables, num_columns)
            seconds -= self.estimate(num_variables, num_columns, num_reads=0)
        except BackendUnavailable:
            return
        if limits and seconds > 1e-6 * limits[1]:
            raise BackendUnavailable(
                f"A call would take {seconds:.3g} s, but this solver allows "
                f"at most {1e-6 * limits[1]:g} s. Lower `num_reads` or "
                f"`annealing_time`. Received: num_reads={self.num_reads}, "
                f"annealing_time={self.annealing_time}"
            )

    def open(self) -> Any:
        """Returns the sampler and its embeddings, opened on first use."""
        return self.connection().chip()

    def connection(self) -> Connection:
        """Returns the `Connection`, which replaces a chip that has changed."""
        with self._lock:
            if self._handle is None:
                several = isinstance(self.solver, (list, tuple))
                self._handle = Connection(
                    columns.OpenChip,
                    self._connect,
                    self.solver if several else [self.solver],
                    self.sampler,
                    self.timeout_seconds,
                )
            return self._handle

    def _connect(self, solver):
        if self.mock:
            from keras_qpsbgd.backends.dwave.mock import MockQPU

            return MockQPU(self.topology or "pegasus")
        if solver is None and self.topology is not None:
            solver = {
                "topology__type": self.topology,
                "order_by": "-num_active_qubits",
            }
        return ocean.connect(
            "DWaveSampler",
            self.timeout_seconds,
            solver=solver,
            profile=self.profile,
            region=self.region,
        )

    def copies(self, num_variables: int, num_columns: int) -> Any:
        """Returns the embeddings for a call, at most one per column."""
        return self.open().cliques.copies(num_variables, num_columns)

    def block_size_for(self, num_variables: int) -> int:
        if self.block_size is not None:
            return min(num_variables, self.block_size)
        largest = self.open().cliques.largest()
        if num_variables <= largest:
            return num_variables
        return min(BLOCK_SIZE, largest)

    # Calls

    def columns_per_call(
        self, num_variables: int, num_columns: int
    ) -> int | None:
        copies = len(self.copies(num_variables, num_columns))
        if not copies:
            raise BackendUnavailable(
                f"The chip cannot hold a complete graph of {num_variables} "
                "variables. Use a smaller `block_size`. Received: "
                f"block_size={self.block_size}"
            )
        num_calls = -(-num_columns // copies)
        return -(-num_columns // num_calls)  # calls of about equal size

    def estimate(
        self, num_variables: int, num_columns: int, **parameters: Any
    ) -> float:
        """Estimates the QPU seconds of one call.

        Args:
            num_variables: Integer. Number of variables of a column.
            num_columns: Integer. Number of columns in the call.
            **parameters: Parameters that replace those of the backend.
        """
        copies = self.copies(num_variables, num_columns)
        qubits = sum(len(chain) for copy in copies for chain in copy.values())
        parameters = {**self._call_parameters(), **parameters}
        try:
            return timing.access_time(self.open().sampler, qubits, **parameters)
        except (KeyError, ValueError) as error:
            raise BackendUnavailable(
                "Ocean has no cost model for this solver, so QPU time can be "
                "neither estimated nor limited. Received: "
                f"qpu_budget_seconds={self.qpu_budget_seconds} ({error})"
            ) from error

    def reserve(self, num_variables: int, num_columns: int) -> Any:
        try:
            seconds = self.estimate(num_variables, num_columns)
        except BackendUnavailable:
            if self.qpu_budget_seconds is not None:
                raise
            seconds = 0.0
        return self.budget.reserve(seconds)

    def settle(self, reserved: Any, info: dict[str, Any]) -> None:
        microseconds = (info or {}).get("qpu_access_time")
        charged = reserved if microseconds is None else 1e-6 * microseconds
        self.budget.settle(reserved, charged)

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del seed  # a QPU has none
        structure = self.open().structure(qubo.num_variables, qubo.num_columns)
        problem = columns.embed(
            qubo,
            structure,
            self.chain_strength,
            self.open().sampler.properties,
        )
        self._warn_if_imprecise(problem)
        found = ocean.sample(
            self.open().sampler,
            problem,
            self.timeout_seconds,
            **self._call_parameters(),
        )
        timing = (found.info or {}).get("timing") or {}
        charged = {}
        if "qpu_access_time" in timing:
            charged["qpu_access_time"] = float(timing["qpu_access_time"])
        try:
            samples, broken = columns.unembed(found, structure)
        except SolverError as error:
            error.info = charged
            raise
        shape = (len(samples), qubo.num_columns, qubo.num_variables)
        info = {
            "calls": 1,
            "reads": int(found.record.num_occurrences.sum()),
            "chain_break_fraction": broken.reshape(shape).mean(axis=(0, 2)),
            **charged,
        }
        return samples.reshape(shape).swapaxes(1, 2), info

    def _call_parameters(self):
        parameters = {"num_reads": self.num_reads, **self.parameters}
        if self.annealing_time is not None:
            parameters["annealing_time"] = self.annealing_time
        # Return every read, and show a label in Leap's list of problems.
        defaults = {"answer_mode": "raw", "label": "keras_qpsbgd"}
        for name, value in defaults.items():
            if name in self.open().sampler.parameters:
                parameters.setdefault(name, value)
        return parameters

    def _warn_if_imprecise(self, problem):
        if self._warned:
            return
        linear = np.abs(problem.to_numpy_vectors().linear_biases)
        linear = linear[linear > 0]
        properties = self.open().sampler.properties
        scaled = linear * ranges.scale_factor(problem, properties)
        share = (scaled < ranges.PRECISION).mean() if linear.size else 0.0
        if share > 0.5:
            self._warned = True
            warnings.warn(
                f"{100 * share:.0f} % of the fields are below the precision of "
                f"the chip ({ranges.PRECISION} after scaling), so the gradient "
                "has little effect on its answers. Use a larger `kappa`, "
                "another `gradient_scale` or a lower `chain_strength`.",
                stacklevel=2,
            )

    def close(self) -> None:
        with self._lock:
            if self._handle is not None:
                self._handle.close()
            super().close()

    # Configuration

    def get_config(self) -> dict[str, Any]:
        config = {
            "solver": self.solver,
            "topology": self.topology,
            "num_reads": self.num_reads,
            "annealing_time": self.annealing_time,
            "chain_strength": self.chain_strength,
            "parameters": self.parameters or None,
            "qpu_budget_seconds": self.qpu_budget_seconds,
            "profile": self.profile,
            "region": self.region,
            "mock": self.mock or None,
        }
        if callable(self.chain_strength):
            raise ValueError(
                "`chain_strength` must be a number or None to be saved with "
                "the optimizer. Received: "
                f"chain_strength={self.chain_strength!r}"
            )
        given = {k: v for k, v in config.items() if v is not None}
        return {**super().get_config(), **given}

    def __getstate__(self):
        # Calls are counted where they start, so copies in workers do not count.
        state = super().__getstate__()
        del state["budget"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self.budget = Budget(self.qpu_budget_seconds)
