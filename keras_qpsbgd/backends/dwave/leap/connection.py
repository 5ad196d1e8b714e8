"""Keeps a QPU connected: other solvers, and other working graphs.

A solver may go offline during training, and a recalibration may take a qubit
out of its working graph. In both cases the embeddings of the old chip are of no
use. The connection then opens the next solver, or the same solver with its new
graph, and raises `ChipChanged`. The caller repeats what it did, on the new
chip.
"""

import threading
import warnings

import dimod

from keras_qpsbgd.backends.dwave.leap import ocean
from keras_qpsbgd.backends.errors import NOT_RUN
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import TransientError


class ChipChanged(SolverError):
    """Raised if a call failed and the connection now has another chip.

    The problem has to be embedded again. If the failed call certainly did not
    run, its `info` has a QPU time of zero.
    """


class Connection:
    """The sampler in use and the embeddings on its graph.

    Threads may share one object.

    Args:
        make_chip: Function that receives a sampler and returns the object with
            its embeddings. It must have the attribute `sampler`.
        connect: Function that receives an entry of `solvers` and returns a
            sampler, or raises `BackendUnavailable`.
        solvers: Sequence of names or features of solvers, in the order to try
            them. `None` leaves the choice to D-Wave's configuration. Defaults
            to `(None,)`.
        sampler: An open sampler (optional). It is used instead of `solvers`,
            and neither replaced nor closed. Only its working graph may change.
            Defaults to `None`.
        seconds: Float. Timeout of requests about the state of a solver.
            Defaults to `60`.
    """

    def __init__(
        self, make_chip, connect, solvers=(None,), sampler=None, seconds=60.0
    ):
        self.solvers = tuple(solvers)
        self._make_chip = make_chip
        self._connect = connect
        self._given = sampler
        self._seconds = seconds
        self._chip = None
        self._current = None  # position in `solvers`
        self._graph = None
        self._lock = threading.RLock()

    def chip(self):
        """Returns the chip in use.

        Connects on first use. If the working graph of the sampler has changed
        since then, returns a new chip.

        Raises:
            BackendUnavailable: If no solver can be reached.
        """
        with self._lock:
            if self._chip is None:
                if self._given is not None:
                    self._adopt(self._given)
                else:
                    self._open_any(range(len(self.solvers)))
            elif self._has_new_graph():
                self._warn_of_new_graph()
                self._adopt(self._chip.sampler)
            return self._chip

    def sample(self, chip, problem, seconds, **parameters):
        """Samples a problem that was embedded on `chip`.

        Args:
            chip: Result of `chip()`.
            problem: `dimod.BinaryQuadraticModel` on qubits.
            seconds: Float. Timeout.
            **parameters: Parameters of the call.

        Returns:
            A resolved `dimod.SampleSet`.

        Raises:
            ChipChanged: If the call failed because of another chip. Embed the
                problem on `chip()` again.
            SolverError, BackendUnavailable: If the call failed otherwise.
        """
        try:
            return ocean.sample(chip.sampler, problem, seconds, **parameters)
        except (SolverError, BackendUnavailable) as error:
            if not self.recover(chip, error):
                raise
            changed = ChipChanged(
                f"{error}. The connection now uses the solver "
                f"{solver_name(self.chip().sampler)}"
            )
            did_not_run = _is_structural(error) or _is_offline(error)
            changed.info = error.info or (NOT_RUN if did_not_run else {})
            raise changed from error

    def recover(self, chip, error):
        """Looks for a reason for a failed call, and opens another chip.

        Args:
            chip: The chip of the failed call.
            error: The exception.

        Returns:
            Boolean. True if `chip()` now returns another chip.
        """
        with self._lock:
            if self._chip is not chip:  # another thread has done it
                return True
            if self._has_new_graph():
                self._warn_of_new_graph()
                self._adopt(chip.sampler)
                return True
            offline = _is_offline(error)
            if self._given is not None or not (offline or _may_be_chip(error)):
                return False
            state = self._state()
            if offline or state == "offline":
                return self._open_next(error)
            if state == "new graph":
                return self._reopen()
            return False

    def close(self):
        """Closes the sampler, unless it was given."""
        with self._lock:
            if self._chip is not None and self._given is None:
                self._chip.sampler.close()
            self._chip = None

    # The current chip

    def _adopt(self, sampler):
        self._chip = self._make_chip(sampler)
        self._graph = (sampler.nodelist, sampler.edgelist)
        self._sizes = tuple(map(len, self._graph))

    def _has_new_graph(self):
        """Compares lists of qubits and couplers, in microseconds if equal."""
        sampler = self._chip.sampler
        lists = (sampler.nodelist, sampler.edgelist)
        # Samplers keep these lists until they connect to another solver.
        if all(new is old for new, old in zip(lists, self._graph)):
            return tuple(map(len, lists)) != self._sizes
        if all(new == old for new, old in zip(lists, self._graph)):
            self._graph = lists
            return False
        return True

    def _state(self):
        """Asks Leap whether the solver is "offline" or has a "new graph"."""
        sampler = self._chip.sampler
        client = getattr(sampler, "client", None)
        name = getattr(getattr(sampler, "solver", None), "name", None)
        if client is None or name is None:
            return ""
        from dwave.cloud.exceptions import SolverNotFoundError

        try:
            # Without `refresh`, Ocean answers from a cache of up to one hour.
            found = ocean.call_with_timeout(
                self._seconds,
                lambda: client.get_solvers(refresh=True, name=name),
            )
        except SolverNotFoundError:
            return "offline"
        except Exception:  # the error of the call says more
            return ""
        if not found:  # Ocean lists only solvers that are online
            return "offline"
        same = (
            found[0].nodes == sampler.solver.nodes
            and found[0].edges == sampler.solver.edges
        )
        return "" if same else "new graph"

    # Other chips

    def _open_any(self, positions):
        """Connects to the first solver of `solvers` that is available."""
        errors = []
        for position in positions:
            try:
                sampler = self._connect(self.solvers[position])
            except BackendUnavailable as error:
                if not _is_offline(error):  # no token or no network
                    raise
                errors.append(error)
                continue
            self._current = position
            self._adopt(sampler)
            return
        if len(errors) == 1:
            raise errors[0]
        raise BackendUnavailable(
            "None of the solvers is available: "
            + "; ".join(map(str, errors))
            + f". Received: solver={list(self.solvers)}"
        ) from errors[-1]

    def _open_next(self, error):
        """Leaves a solver that is offline. Returns whether another is open."""
        old = self._chip.sampler
        name = solver_name(old)
        if not self._open_similar(old):
            others = [k for k in range(len(self.solvers)) if k != self._current]
            if not others:
                return False
            try:
                self._open_any(others)
            except BackendUnavailable:
                return False
            _retire(old)
        warnings.warn(
            f"The solver {name} is not available ({error}). Training goes on "
            f"with {solver_name(self._chip.sampler)}.",
            stacklevel=2,
        )
        return True

    def _open_similar(self, sampler):
        """Lets Ocean choose another solver with the same features."""
        features = self.solvers[self._current]
        old = getattr(sampler, "solver", None)
        pinned = isinstance(features, str) or "name" in (features or {})
        if pinned or not hasattr(sampler, "trigger_failover"):
            return False
        try:
            ocean.call_with_timeout(self._seconds, sampler.trigger_failover)
        except Exception:  # no other solver has these features
            return False
        if sampler.solver.name == old.name:
            return False
        self._adopt(sampler)
        return True

    def _reopen(self):
        """Connects to the same solver with its new graph."""
        old = self._chip.sampler
        try:
            sampler = self._connect(old.solver.name)
        except BackendUnavailable:
            return False
        self._warn_of_new_graph()
        self._adopt(sampler)
        _retire(old)
        return True

    def _warn_of_new_graph(self):
        warnings.warn(
            f"The working graph of the solver {solver_name(self._chip.sampler)}"
            " has changed. The layers are embedded again.",
            stacklevel=2,
        )


def solver_name(sampler):
    """Returns the name of the chip or solver behind a sampler."""
    chip = (sampler.properties or {}).get("chip_id")
    solver = getattr(sampler, "solver", None)
    return chip or getattr(solver, "name", None) or type(sampler).__name__


def _retire(sampler):
    """Closes a sampler without waiting for its calls."""
    threading.Thread(target=sampler.close, daemon=True).start()


def _causes(error):
    while error is not None:
        yield error
        error = error.__cause__


def _is_structural(error):
    kind = dimod.exceptions.BinaryQuadraticModelStructureError
    return any(isinstance(cause, kind) for cause in _causes(error))


def _is_offline(error):
    """Returns whether Leap reported that the solver is offline or gone."""
    from dwave.cloud import exceptions

    kinds = (exceptions.SolverOfflineError, exceptions.SolverNotFoundError)
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _may_be_chip(error):
    """Returns whether another chip could be the reason for an error.

    A timeout or a rejected token has other reasons. A rejected problem may have
    been embedded on an old graph.
    """
    from dwave.cloud import exceptions
    from dwave.cloud.api import exceptions as api

    if isinstance(error, TransientError):
        return False
    if isinstance(error, ChipChanged):  # in a worker
        return True
    kinds = (
        exceptions.SolverError,
        exceptions.InvalidProblemError,
        exceptions.UseAfterCloseError,
        api.ResourceNotFoundError,
    )
    others = (
        api.ResourceAuthenticationError,
        api.ResourceAccessForbiddenError,
    )
    causes = list(_causes(error))
    return any(
        isinstance(cause, kinds) and not isinstance(cause, others)
        for cause in causes
    ) or _is_structural(error)
