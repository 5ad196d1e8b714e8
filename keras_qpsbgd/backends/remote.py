"""Connections and calls to D-Wave, with timeouts and this package's errors."""

import concurrent.futures
import os
import queue
import sys
import threading
import urllib.error

import dimod

from keras_qpsbgd.backends.errors import NOT_RUN
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import TransientError
from keras_qpsbgd.backends.errors import in_short

_NO_TOKEN = (
    "No D-Wave API token found. Run `dwave setup --auth` or set "
    "DWAVE_API_TOKEN."
)
# By the class in `dwave.system`.
NO_TOKEN = {
    "LeapHybridSampler": _NO_TOKEN,
    "DWaveSampler": f'{_NO_TOKEN} To try it without access, pass "mock": True.',
}
CONFIGURE = "Configure access with `dwave setup --auth` or DWAVE_API_TOKEN"


def call_with_timeout(seconds, function):
    """Returns `function()`, or raises a `TransientError` if it takes longer.

    Ocean has timeouts for single requests but retries them, and some waits
    have no timeout. A thread that does not return is abandoned and ends with
    the process. Its call may still be answered and billed.
    """
    answers = queue.SimpleQueue()

    def run():
        try:
            answers.put((function(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TransientError(
            f"No answer within {seconds:g} s (`timeout_seconds`)"
        ) from None
    if error is not None:
        raise error
    return value


def connect(kind, seconds, solvers):
    """Opens a `DWaveSampler` or `LeapHybridSampler`.

    Args:
        kind: String. Name of the class in `dwave.system`.
        seconds: Float. Timeout of the connection, of each request and of the
            wait for an answer.
        solvers: Sequence of names or features of solvers, in the order in which
            to try them. `None` leaves the choice to the user's configuration.

    Returns:
        The sampler of the first solver that is available.

    Raises:
        BackendUnavailable: If no connection is possible. The message states how
            to configure access.
    """
    errors = []
    for solver in solvers:
        try:
            return _connect(kind, seconds, solver)
        except BackendUnavailable as error:
            if not _is_offline(error.__cause__):  # no token or no network
                raise
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise BackendUnavailable(
        "None of the solvers is available: "
        + "; ".join(map(str, errors))
        + f". Received: solver={list(solvers)}"
    ) from errors[-1]


def _connect(kind, seconds, solver):
    import dwave.system

    config = {"request_timeout": seconds, "polling_timeout": seconds}
    if solver is not None:
        config["solver"] = solver
    try:
        return call_with_timeout(
            seconds, lambda: getattr(dwave.system, kind)(**config)
        )
    except Exception as error:
        # Ocean raises a `ValueError` if there is no token.
        if isinstance(error, ValueError) and "token" in str(error).lower():
            raise BackendUnavailable(NO_TOKEN[kind]) from error
        known = translate(error)
        if isinstance(known, BackendUnavailable):
            raise known from error
        raise BackendUnavailable(
            f"The connection to D-Wave Leap failed: {known}. Check the "
            f"network. {CONFIGURE}"
        ) from error


def sample(sampler, problem, seconds, /, **parameters):
    """Returns the resolved answer, or raises an error of this package.

    Args:
        sampler: `dimod.Sampler`.
        problem: `dimod.BinaryQuadraticModel`.
        seconds: Float. Timeout.
        **parameters: Parameters of the call.
    """

    def call():
        found = sampler.sample(problem, **parameters)
        if not isinstance(found, dimod.SampleSet):
            raise SolverError(
                f"The sampler `{type(sampler).__name__}` must return a "
                f"`dimod.SampleSet`. Received: {in_short(found)}"
            )
        found.resolve()  # errors of a remote call surface here
        return found

    try:
        return call_with_timeout(seconds, call)
    except Exception as error:
        known = translate(error)
        if known is error:
            raise
        raise known from error


def _is_network_failure(error):
    """Returns whether a client of another service lost its connection."""
    code = getattr(error, "code", None)  # of `urllib.error.HTTPError`
    if isinstance(code, int):
        return code == 429 or code >= 500
    kinds = [
        ConnectionError,
        TimeoutError,
        concurrent.futures.TimeoutError,  # not the builtin before Python 3.11
        urllib.error.URLError,
    ]
    for package, names in (
        ("requests", ("ConnectionError", "Timeout")),
        ("httpx", ("TransportError",)),
    ):
        # An error of a package that was not imported cannot occur.
        module = sys.modules.get(package)
        kinds += [getattr(module, name) for name in names if module]
    return isinstance(error, tuple(kinds))


def translate(error):
    """Translates an error of Ocean into one of this package.

    Without dwave-cloud-client, only temporary failures of the network are
    translated, and other errors are returned unchanged.

    | Result | Cause |
    |---|---|
    | `BackendUnavailable` | 401, 403, 404, configuration (permanent) |
    | `TransientError` | timeouts, 429, 5xx, offline, lost connections |
    | `SolverError` | all others |
    """
    if isinstance(error, (SolverError, BackendUnavailable)):
        return error
    if "dwave.cloud" not in sys.modules:
        if _is_network_failure(error):
            return TransientError(f"{type(error).__name__}: {error}")
        return error
    from dwave.cloud import exceptions
    from dwave.cloud.api import exceptions as api
    from dwave.cloud.config.exceptions import ConfigFileError

    text = f"{type(error).__name__}: {_mask_token(str(error))}"
    # Submissions raise one type for all errors, with the HTTP status as code.
    code = getattr(error, "error_code", None) or 0
    rejected = (
        api.ResourceAuthenticationError,
        api.ResourceAccessForbiddenError,
        api.ResourceNotFoundError,
        exceptions.UnsupportedSolverError,
        ConfigFileError,
    )
    known = None
    if isinstance(error, rejected) or code in (401, 403, 404):
        known = BackendUnavailable(
            f"D-Wave Leap rejected the request: {text}. "
            + (
                "No solver with these features is available to you. "
                "`dwave solvers` lists those that are"
                if isinstance(error, exceptions.SolverNotFoundError)
                else CONFIGURE
            )
        )
    elif isinstance(error, api.ResourceLimitsExceededError) or code == 429:
        known = TransientError(f"Too many requests: {text}")
    elif _is_offline(error):
        known = TransientError(f"The solver is offline: {text}")
    if known is not None:
        known.info = NOT_RUN
        return known
    transient = (
        api.InternalServerError,
        api.RequestTimeout,
        api.ResourceBadResponseError,
        exceptions.Timeout,
        exceptions.PollingTimeout,
        exceptions.ProblemUploadError,
    )
    if (
        isinstance(error, transient)
        or code >= 500
        or _is_network_failure(error)
    ):
        return TransientError(text)
    return SolverError(text)


def is_structural(error):
    """Returns whether a problem does not fit the working graph of a solver.

    Samplers check this before they send a problem.
    """
    from dwave.cloud.exceptions import ProblemStructureError

    kind = dimod.exceptions.BinaryQuadraticModelStructureError
    return isinstance(error, (kind, ProblemStructureError))


def _is_offline(error):
    """Returns whether Leap reported that the solver is offline or not found."""
    from dwave.cloud import exceptions

    kinds = (exceptions.SolverOfflineError, exceptions.SolverNotFoundError)
    return isinstance(error, kinds)


def token_missing(kind):
    """Describes the missing configuration, or returns "" if there is a token.

    Args:
        kind: String. Name of the class in `dwave.system`.
    """
    from dwave.cloud.config import load_config

    try:
        configured = bool(load_config().get("token"))
    except Exception as error:
        return f"cannot read D-Wave's configuration ({type(error).__name__})."
    return "" if configured else NO_TOKEN[kind]


def _mask_token(text):
    """Masks the token, in case a message of Ocean ever contains it."""
    from dwave.cloud.config import load_config
    from dwave.cloud.config.exceptions import ConfigFileError

    tokens = {os.environ.get("DWAVE_API_TOKEN")}
    try:
        tokens.add(load_config().get("token"))
    except (ConfigFileError, ValueError):
        pass  # Ocean cannot read the file, so it has no token from it
    for token in filter(None, tokens):
        text = text.replace(token, "***")
    return text


def ordered_samples(sample_set, order, sampler):
    """Returns the reads (reads, n) of a sample set with ordered variables.

    Args:
        sample_set: `dimod.SampleSet`.
        order: List of the labels of the model, in the order to return.
        sampler: The sampler, for messages.

    Raises:
        SolverError: If there is no read, or if a variable is missing.
    """
    labels = list(sample_set.variables)
    position = {label: i for i, label in enumerate(labels)}
    missing = [label for label in order if label not in position]
    if missing:
        raise SolverError(
            f"The sampler `{type(sampler).__name__}` must return samples of "
            "all variables of the model, with the same labels. "
            f"{len(missing)} of {len(order)} are missing, such as "
            f"{missing[0]!r}. Received: {len(labels)} variables, "
            f"{in_short(labels)}"
        )
    samples = sample_set.record.sample
    if not len(samples):
        raise SolverError(
            f"The sampler `{type(sampler).__name__}` must return at least one "
            "sample. Received: an empty sample set"
        )
    if sample_set.vartype is dimod.BINARY:
        samples = 2 * samples - 1
    if labels == order:
        return samples
    return samples[:, [position[label] for label in order]]
