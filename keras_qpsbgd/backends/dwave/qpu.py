"""Solves the layers of a network side by side on a D-Wave quantum annealer."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_qpsbgd._messages import reason
from keras_qpsbgd.backends import remote
from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.dwave import cost
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.backends.dwave import shared_calls
from keras_qpsbgd.backends.dwave.embedding import OpenChip
from keras_qpsbgd.backends.dwave.packing import PackedCall
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.errors import reject_secrets
from keras_qpsbgd.backends.solution import Solution
from keras_qpsbgd.backends.solution import StepCost
from keras_qpsbgd.qubo import Qubo

BLOCK_SIZE = 64
LABEL = "keras_qpsbgd"
# Only values that differ from these are saved.
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("solver", "topology", "annealing_time", "chain_strength")),
    "qpu_budget_seconds": None,
    "parameters": {},
    "gauge": True,
    "problem_label": LABEL,
    "mock": False,
}


class DWaveBackend(Backend):
    r"""Solves QUBOs on a D-Wave QPU, through dwave-system.

    The couplings of a layer form a complete graph on its inputs, the same for
    all columns. The columns of all layers are annealed in one call, each on its
    own qubits. Columns that do not fit on the chip are annealed in further
    calls. The embedding is computed once per chip and network, which takes
    seconds. A layer that is wider than the largest complete graph on the chip
    is solved in blocks, with its own calls.

    A failed call counts as a failure for every layer in it, and `on_failure`
    decides what happens to each of them. Other layers keep their answers. A
    call also fails if the solver goes offline or if its working graph changes.
    Call `close` to make the next solve connect and embed the layers again.

    The backend returns the best read of each column. `Solution.info` has
    `qpu_access_time` (microseconds), `chain_break_fraction` (per column),
    `reads`, `energies` and `problem_id`, a list of the identifiers of the calls
    in Leap and dwave-inspector. The time of a call is divided among its layers
    in proportion to their numbers of qubits.

    The backend is tested with dwave-system and a mock chip, not on a QPU.

    Configure access with D-Wave's own tools: `dwave setup --auth`, or the
    environment variable `DWAVE_API_TOKEN`. There is no argument for a token.

    Args:
        solver: String, dictionary or list of these (optional). Name of the
            solver, or its features. The solvers of a list are tried in order
            when the backend connects. Defaults to `None`, which uses D-Wave's
            configuration, or the largest QPU if the configuration names no
            solver.
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
        parameters: Dictionary (optional). Other parameters of the solver.
            Defaults to `None`.
        qpu_budget_seconds: Float (optional). Maximum QPU access time of this
            backend. A call that could exceed it, according to Ocean's estimate,
            is not made, and `on_failure` decides what happens instead. Failed
            calls that report no time are counted with their estimate. The count
            restarts at zero when a saved optimizer is loaded. Defaults to
            `None`, which sets no limit.
        gauge: Boolean. If `True`, each call reverses a random half of the spins
            and reverses them back in the answer, so that errors of the chip do
            not favor the same states in every call. It costs no QPU time. The
            seed of the step determines the choice. Defaults to `True`.
        problem_label: String (optional). Label of the calls in Leap. `None`
            sets no label. Defaults to `"keras_qpsbgd"`.
        mock: Boolean. If `True`, simulated annealing replaces the chip.
            Embeddings, times and ranges stay the same. Defaults to `False`.
        sampler: An open `DWaveSampler`, or a compatible sampler (optional). It
            is not saved. Defaults to `None`, which connects to Leap.
        **options: Arguments of `Backend`, except `executor`.

    Raises:
        ValueError: If an argument is invalid.

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
    package = "dwave.system"
    install = "keras_qpsbgd[dwave]"
    info_entries = ("qpu_access_time", "chain_break_fraction")
    _without_executor = "solves the columns of all layers in shared calls"

    def __init__(
        self,
        solver: Any = None,
        topology: str | None = None,
        num_reads: int = 100,
        annealing_time: float | None = None,
        chain_strength: Any = None,
        parameters: dict[str, Any] | None = None,
        qpu_budget_seconds: float | None = None,
        gauge: bool = True,
        problem_label: str | None = LABEL,
        mock: bool = False,
        sampler: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.solver = solver
        self.topology = topology
        self.num_reads = num_reads
        self.annealing_time = annealing_time
        self.chain_strength = chain_strength
        self.parameters = parameters
        self.qpu_budget_seconds = qpu_budget_seconds
        self.gauge = gauge
        self.problem_label = problem_label
        self.mock = mock
        self.sampler = sampler
        self._check_arguments()
        self.parameters = dict(parameters or {})
        self.gauge = bool(gauge)
        self.budget = cost.Budget(qpu_budget_seconds)
        self._warned = False

    def _check_arguments(self):
        """Raises a `ValueError` if an argument is invalid."""
        self._check_solver()
        reject_secrets({"solver": self.solver, "parameters": self.parameters})
        if not isinstance(self.parameters, (dict, type(None))) or (
            {"num_reads", "annealing_time"} & set(self.parameters or ())
        ):
            raise ValueError(
                "`parameters` must be a dictionary without `num_reads` and "
                "`annealing_time`, which are separate arguments. Received: "
                f"parameters={self.parameters!r}"
            )
        optional = {"optional": True}
        if not callable(self.chain_strength):
            check_number(
                "chain_strength", self.chain_strength, above=0, **optional
            )
        check_number("num_reads", self.num_reads, at_least=1, whole=True)
        check_number("annealing_time", self.annealing_time, above=0, **optional)
        check_number(
            "qpu_budget_seconds",
            self.qpu_budget_seconds,
            at_least=0,
            **optional,
        )
        if not isinstance(self.gauge, (bool, np.bool_)):
            raise ValueError(
                f"`gauge` must be True or False. Received: gauge={self.gauge!r}"
            )
        if not isinstance(self.problem_label, (str, type(None))):
            raise ValueError(
                "`problem_label` must be a string or None. Received: "
                f"problem_label={self.problem_label!r}"
            )

    def _check_solver(self):
        if self.topology not in (None, "pegasus", "zephyr"):
            raise ValueError(
                '`topology` must be "pegasus", "zephyr" or None. Received: '
                f"topology={self.topology!r}"
            )
        solvers = _listed(self.solver)
        is_list = solvers is self.solver
        kinds = (str, dict) if is_list else (str, dict, type(None))
        if not solvers or not all(isinstance(s, kinds) for s in solvers):
            raise ValueError(
                "`solver` must be a string, a dictionary of features, a list "
                f"of these or None. Received: solver={self.solver!r}"
            )
        if self.solver is not None and (self.topology is not None or self.mock):
            raise ValueError(
                "`solver` cannot be combined with `topology` or `mock`, which "
                "choose the chip themselves. Remove one of them. "
                f"Received: solver={self.solver!r}, "
                f"topology={self.topology!r}, mock={self.mock!r}"
            )

    # Setup

    @classmethod
    def unconfigured(cls) -> str:
        return remote.token_missing("DWaveSampler")

    def check(self, num_variables: int, num_columns: int) -> None:
        """Connects, checks the parameters and embeds the layer."""
        self.check_layers([(num_variables, num_columns)])

    def check_layers(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Connects, checks the parameters and packs the layers."""
        for num_variables, num_columns in sizes:
            super().check(num_variables, num_columns)
        ranges.check_parameters(self)
        planned = shared_calls.plan(self, sizes)
        ranges.check_duration(self, [call for call, _ in planned])
        if self.qpu_budget_seconds is not None:
            self.call_seconds(num_qubits=1)

    def open(self) -> Any:
        """Returns the sampler and its embeddings, opened on first use."""
        with self._lock:
            if self._handle is None:
                given = self.sampler is not None
                sampler = self.sampler if given else self._connect()
                self._handle = OpenChip(sampler)
            return self._handle

    def _connect(self):
        if self.mock:
            from keras_qpsbgd.backends.dwave.mock import MockQPU

            return MockQPU(self.topology or "pegasus")
        solvers = _listed(self.solver)
        if self.topology is not None:
            largest = "-num_active_qubits"
            solvers = [{"topology__type": self.topology, "order_by": largest}]
        return remote.connect("DWaveSampler", self.timeout_seconds, solvers)

    def block_size_for(self, num_variables: int) -> int:
        if self.block_size is not None:
            return min(num_variables, self.block_size)
        largest = self.open().cliques.largest()
        if num_variables <= largest:
            return num_variables
        return min(BLOCK_SIZE, largest)

    # Calls

    def pack(self, sizes: Sequence[tuple[int, int]]) -> tuple[PackedCall, ...]:
        """Returns the calls for layers that each fit on the chip.

        Args:
            sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

        Raises:
            BackendUnavailable: If a layer is too wide.
        """
        try:
            return self.open().pack(sizes)
        except ValueError as error:
            raise BackendUnavailable(
                f"The chip cannot hold a layer ({reason(error)}). Use a "
                f"smaller `block_size`. Received: block_size={self.block_size}"
            ) from error

    def _solve_whole(self, qubo, seed):
        ranges.check_parameters(self)
        (found,) = self.solve_layers([qubo], [seed], stop_at_failure=True)
        if isinstance(found, Exception):
            raise found
        return found

    def solve_layers(
        self, qubos: Sequence[Qubo], seeds: Sequence[int], stop_at_failure: bool
    ) -> list[Solution | Exception]:
        """Solves the layers of one training step, in as few calls as possible.

        Args:
            qubos: List of `Qubo`, one per layer.
            seeds: List of integers, one per layer.
            stop_at_failure: Boolean. If True, no further calls are made after
                one has failed. The remaining layers get a `Stopped` error.

        Returns:
            A list with a `Solution` or an exception for each layer. The `info`
            of an exception contains what is known about the layer's calls.
        """
        return shared_calls.solve_layers(self, qubos, seeds, stop_at_failure)

    def step_cost(self, sizes: Sequence[tuple[int, int]]) -> StepCost:
        self.check_layers(sizes)
        return cost.step_cost(self, sizes)

    def estimate(
        self, num_variables: int, num_columns: int, **parameters: Any
    ) -> float:
        """Estimates the QPU seconds of a layer that fits on the chip.

        Args:
            num_variables: Integer. Number of inputs of the layer.
            num_columns: Integer. Number of outputs of the layer.
            **parameters: Parameters that replace those of the backend.

        Raises:
            BackendUnavailable: If the layer is too wide for the chip, or if
                there is no cost model for the solver.
        """
        packed = self.pack([(num_variables, num_columns)])
        return sum(
            self.call_seconds(call.num_qubits, **parameters) for call in packed
        )

    def call_seconds(self, num_qubits: int, **others: Any) -> float:
        """Estimates the QPU seconds of one call.

        Args:
            num_qubits: Integer. Number of qubits of the call.
            **others: Parameters that replace those of the backend.

        Raises:
            BackendUnavailable: If there is no cost model for the solver.
        """
        given = {**ranges.call_parameters(self), **others}
        try:
            return cost.access_time(self.open().sampler, num_qubits, **given)
        except (KeyError, ValueError) as error:
            raise BackendUnavailable(
                "Ocean has no cost model for this solver, so QPU time can be "
                "neither estimated nor limited. Received: "
                f"qpu_budget_seconds={self.qpu_budget_seconds} ({error})"
            ) from error

    def warn_if_imprecise(self, linear: np.ndarray) -> None:
        """Warns once if most scaled fields are below the chip's errors."""
        if self._warned:
            return
        linear = np.abs(linear)
        linear = linear[linear > 0]
        share = (linear < ranges.PRECISION).mean() if linear.size else 0.0
        if share > 0.5:
            self._warned = True
            warnings.warn(
                f"{100 * share:.0f} % of the fields are below the precision of "
                f"the chip ({ranges.PRECISION} after scaling), so the gradient "
                "has little effect on its answers. Use inputs of similar "
                "sizes, a larger `kappa`, or a lower `chain_strength`.",
                stacklevel=2,
            )

    def close(self) -> None:
        with self._lock:
            if self._handle is not None and self.sampler is None:
                self._handle.sampler.close()
            super().close()

    # Configuration

    def get_config(self) -> dict[str, Any]:
        if callable(self.chain_strength):
            raise ValueError(
                "`chain_strength` must be a number or None to be saved with "
                "the optimizer. Received: "
                f"chain_strength={self.chain_strength!r}"
            )
        given = {
            name: getattr(self, name)
            for name, default in _DEFAULTS.items()
            if getattr(self, name) != default
        }
        return {**super().get_config(), "num_reads": self.num_reads, **given}


def _listed(solver):
    return solver if isinstance(solver, (list, tuple)) else [solver]
