"""A layer's columns on a D-Wave quantum annealer, side by side."""

import warnings
from typing import Any

import numpy as np

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.dwave import chip
from keras_qpsbgd.backends.dwave import columns
from keras_qpsbgd.backends.dwave import ocean
from keras_qpsbgd.backends.dwave.budget import Budget
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.errors import refuse_secrets
from keras_qpsbgd.backends.host import blocks
from keras_qpsbgd.qubo import Qubo

BLOCK_SIZE = 64


class DWaveBackend(Backend):
    r"""The QPU, through dwave-system.

    The couplings of a layer are a complete graph on its inputs, the same for
    all columns. So the embedding of $K_n$ is found once per number of inputs,
    kept for the run and on disk, and laid on the chip as many times as there
    are columns, or as fit: all columns are annealed in one call, each on its
    own qubits. Columns that find no place are left to a further call. A layer
    that is wider than the largest clique is solved by blocks.

    The best read of each column is taken. `Solution.info` has
    `qpu_access_time` (microseconds), `chain_break_fraction` (per column),
    `reads` and `energies`.

    Access is configured in D-Wave's own ways (`dwave setup --auth`, or the
    environment variable `DWAVE_API_TOKEN`); there is no argument for a token.

    Args:
        solver: name of the solver, or a dictionary of features; `None` takes
            what D-Wave's configuration says, else the largest QPU.
        topology: `"pegasus"` or `"zephyr"`, to choose a solver by it.
        num_reads: anneals per call.
        annealing_time: microseconds per anneal; `None` is the solver's default.
        chain_strength: coupling that holds the qubits of a variable together,
            in units of the QUBO: a number, or a function of model and embedding
            of a column that returns one (such a function is not saved). `None`
            is dwave-system's `uniform_torque_compensation`.
        parameters: dictionary of further parameters of the solver.
        qpu_budget_seconds: no call is made that, by Ocean's estimate, could
            bring the QPU access time of this backend above it; `on_failure`
            decides what happens then.
            Calls that failed without a report count with their estimate. The
            count starts anew when a saved optimizer is loaded.
        profile: section of D-Wave's configuration file.
        region: of Leap.
        mock: True replaces the chip by simulated annealing, see
            `mock_qpu.py`; all else, embeddings, times and ranges, stays.
        sampler: a `DWaveSampler` that is open already, or one like it. Not
            saved; workers of an executor get a copy, if it can be pickled.
        **options: arguments of `Backend`.

    Example:

    >>> optimizer = kq.QPSBGD(
    ...     0.02,
    ...     backend={"name": "dwave", "qpu_budget_seconds": 30},
    ...     on_failure="native",
    ... )
    """

    name = "dwave"

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
        if not isinstance(solver, (str, dict, type(None))):
            raise ValueError(
                "`solver` must be a name, a dictionary of features or None. "
                f"Received: solver={solver!r}"
            )
        if solver is not None and (topology is not None or mock):
            raise ValueError(
                "`solver` chooses a QPU, so that `topology` and `mock` must "
                f"not. Received: solver={solver!r}, topology={topology!r}, "
                f"mock={mock!r}"
            )
        refuse_secrets({"solver": solver, "parameters": parameters})
        if not isinstance(parameters, (dict, type(None))) or (
            {"num_reads", "annealing_time"} & set(parameters or ())
        ):
            raise ValueError(
                "`parameters` must be a dictionary without `num_reads` and "
                "`annealing_time`, which are arguments of their own. Received: "
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

    # Set-up

    @classmethod
    def configuration_missing(cls) -> str | None:
        missing = ocean.token_missing()
        return missing and f"{missing} With `mock=True` it needs none."

    def check(self, num_variables: int, num_columns: int) -> None:
        """Connects, and embeds what the layer needs, before training."""
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
                "This solver has no such `parameters`; it has "
                f"{sorted(sampler.parameters)}. Received: {unknown}"
            )
        properties = sampler.properties
        ranges = chip.parameter_ranges(properties, self.parameters)
        for name, value in self._call_parameters().items():
            low, high = ranges.get(name, (-np.inf, np.inf))
            if isinstance(value, (int, float)) and not low <= value <= high:
                raise BackendUnavailable(
                    f"`{name}` must be between {low:g} and {high:g} on this "
                    f"solver. Received: {name}={value}"
                )

    def _check_duration(self, num_variables, num_columns):
        limits = self.open().sampler.properties.get(
            "problem_run_duration_range"
        )
        try:  # without the time of programming, which does not count
            seconds = self.estimate(num_variables, num_columns)
            seconds -= self.estimate(num_variables, num_columns, num_reads=0)
        except BackendUnavailable:
            return
        if limits and seconds > 1e-6 * limits[1]:
            raise BackendUnavailable(
                f"A call would take {seconds:.3g} s, this solver allows "
                f"{1e-6 * limits[1]:g} s. Lower `num_reads` or "
                f"`annealing_time`. Received: num_reads={self.num_reads}, "
                f"annealing_time={self.annealing_time}"
            )

    def open(self) -> Any:
        """The sampler and its embeddings, opened when first needed."""
        with self._lock:
            if self._handle is None:
                self._handle = columns.OpenChip(self.sampler or self._connect())
            return self._handle

    def _connect(self):
        if self.mock:
            from keras_qpsbgd.backends.dwave.mock import MockQPU

            return MockQPU(self.topology or "pegasus")
        solver = self.solver
        if self.topology is not None:
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
        """Embeddings for a call: at most one for each column."""
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
                f"The chip holds no complete graph of {num_variables} "
                "variables. Give `dwave` a smaller `block_size`. Received: "
                f"block_size={self.block_size}"
            )
        number = -(-num_columns // copies)
        return -(-num_columns // number)  # calls of about equal size

    def estimate(
        self, num_variables: int, num_columns: int, **parameters: Any
    ) -> float:
        """Estimated QPU seconds of one call."""
        copies = self.copies(num_variables, num_columns)
        qubits = sum(len(chain) for copy in copies for chain in copy.values())
        parameters = {**self._call_parameters(), **parameters}
        try:
            return chip.access_time(self.open().sampler, qubits, **parameters)
        except (KeyError, ValueError) as error:
            raise BackendUnavailable(
                "Ocean has no cost model for this solver, so that there can be "
                "no budget. Received: "
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
        paid = {}
        if "qpu_access_time" in timing:
            paid["qpu_access_time"] = float(timing["qpu_access_time"])
        try:
            samples, broken = columns.unembed(found, structure)
        except SolverError as error:
            error.info = paid
            raise
        shape = (len(samples), qubo.num_columns, qubo.num_variables)
        info = {
            "calls": 1,
            "reads": int(found.record.num_occurrences.sum()),
            "chain_break_fraction": broken.reshape(shape).mean(axis=(0, 2)),
            **paid,
        }
        return samples.reshape(shape).swapaxes(1, 2), info

    def _call_parameters(self):
        parameters = {"num_reads": self.num_reads, **self.parameters}
        if self.annealing_time is not None:
            parameters["annealing_time"] = self.annealing_time
        # Every read as it came, under a name to find in Leap's list of calls.
        wanted = {"answer_mode": "raw", "label": "keras_qpsbgd"}
        for name, value in wanted.items():
            if name in self.open().sampler.parameters:
                parameters.setdefault(name, value)
        return parameters

    def _warn_if_imprecise(self, problem):
        if self._warned:
            return
        linear = np.abs(problem.to_numpy_vectors().linear_biases)
        linear = linear[linear > 0]
        properties = self.open().sampler.properties
        scaled = linear * chip.scale_factor(problem, properties)
        share = (scaled < chip.PRECISION).mean() if linear.size else 0.0
        if share > 0.5:
            self._warned = True
            warnings.warn(
                f"{100 * share:.0f} % of the fields are below the precision of "
                f"the chip ({chip.PRECISION} after scaling), so the gradient "
                "hardly steers its answers. A larger `kappa`, another "
                "`gradient_scale` or a lower `chain_strength` helps.",
                stacklevel=2,
            )

    def close(self) -> None:
        with self._lock:
            if self._handle is not None and self.sampler is None:
                self._handle.sampler.close()
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
                "A function as `chain_strength` cannot be saved with the "
                "optimizer; a number can. Received: "
                f"chain_strength={self.chain_strength!r}"
            )
        given = {k: v for k, v in config.items() if v is not None}
        return {**super().get_config(), **given}

    def __getstate__(self):
        # Copies in workers count nothing: a call is paid for where it starts.
        state = super().__getstate__()
        del state["budget"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self.budget = Budget(self.qpu_budget_seconds)
