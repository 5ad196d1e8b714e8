"""Remote calls of D-Wave Ocean: never for ever, and with errors of our own."""

import os
import threading

import dimod

from keras_qpsbgd.backends.errors import NOT_RUN
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import TransientError
from keras_qpsbgd.backends.errors import in_short

CONFIGURE = "Configure access with `dwave setup --auth` or DWAVE_API_TOKEN"


def within(seconds, function):
    """`function()`, or a `TransientError` if it takes longer.

    Ocean has time-outs for single requests, but retries them, and some waits
    have none. A thread that does not come back is left behind: it ends with the
    process. The call it made may still be answered, and billed.
    """
    answer = {}

    def run():
        try:
            answer["value"] = function()
        except BaseException as error:
            answer["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TransientError(f"No answer in {seconds:g} s (`timeout_seconds`)")
    if "error" in answer:
        raise answer["error"]
    return answer["value"]


def connect(kind, seconds, **config):
    """Opens a `DWaveSampler` or `LeapHybridSampler`.

    Args:
        kind: name of the class in `dwave.system`.
        seconds: time-out of the connection, of each request, and of waiting
            for an answer.
        **config: arguments of the sampler; `None` leaves the choice to the
            user's configuration.

    Raises:
        BackendUnavailable: with what to do.
    """
    import dwave.system

    config.update(request_timeout=seconds, polling_timeout=seconds)
    given = {k: v for k, v in config.items() if v is not None}
    try:
        return within(seconds, lambda: getattr(dwave.system, kind)(**given))
    except Exception as error:
        known = translate(error)
        if isinstance(known, BackendUnavailable):
            raise known from error
        raise BackendUnavailable(
            f"The connection to D-Wave Leap failed: {known}. Check the "
            f"network. {CONFIGURE}"
        ) from error


def sample(sampler, problem, seconds, **parameters):
    """The resolved answer to a problem, or an error of ours."""

    def call():
        found = sampler.sample(problem, **parameters)
        check_sample_set(found, sampler)
        found.resolve()  # errors of a remote call surface here
        return found

    try:
        return within(seconds, call)
    except Exception as error:
        raise_ours(error)


def check_sample_set(found, sampler):
    """Raises a `SolverError` if a sampler did not return a sample set."""
    if not isinstance(found, dimod.SampleSet):
        raise SolverError(
            f"The sampler `{type(sampler).__name__}` must return a "
            f"`dimod.SampleSet`. Received: {in_short(found)}"
        )


def raise_ours(error):
    """Raises what `translate` makes of an error, and tells where from."""
    known = translate(error)
    raise known from (None if known is error else error)


def translate(error):
    """The error of ours that says what can be done about one of Ocean's.

    | ours | what |
    |---|---|
    | `BackendUnavailable` | 401, 403, 404, configuration: will not pass |
    | `TransientError` | time-outs, 429, 5xx, lost connections: may pass |
    | `SolverError` | all others |
    """
    import requests
    from dwave.cloud import exceptions
    from dwave.cloud.api import exceptions as api
    from dwave.cloud.config.exceptions import ConfigFileError

    if isinstance(error, (SolverError, BackendUnavailable)):
        return error
    text = f"{type(error).__name__}: {_without_token(str(error))}"
    # Submissions raise one type for all, with the HTTP status as its code.
    code = getattr(error, "error_code", None) or 0
    refused = (
        api.ResourceAuthenticationError,
        api.ResourceAccessForbiddenError,
        api.ResourceNotFoundError,
        exceptions.UnsupportedSolverError,
        ConfigFileError,
    )
    if isinstance(error, refused) or code in (401, 403, 404):
        known = BackendUnavailable(f"D-Wave Leap refuses: {text}. {CONFIGURE}")
        known.info = NOT_RUN
        return known
    if isinstance(error, api.ResourceLimitsExceededError) or code == 429:
        known = TransientError(f"Too many requests: {text}")
        known.info = NOT_RUN
        return known
    passing = (
        api.InternalServerError,
        api.RequestTimeout,
        api.ResourceBadResponseError,
        exceptions.Timeout,
        exceptions.PollingTimeout,
        exceptions.ProblemUploadError,
        exceptions.SolverOfflineError,
        requests.ConnectionError,
        requests.Timeout,
        ConnectionError,
        TimeoutError,
    )
    passes = isinstance(error, passing) or code >= 500
    return (TransientError if passes else SolverError)(text)


def token_missing():
    """What the user has yet to configure, as text; empty if nothing."""
    from dwave.cloud.config import load_config

    try:
        configured = bool(load_config().get("token"))
    except Exception as error:
        return f"D-Wave's configuration cannot be read ({type(error).__name__})"
    return "" if configured else f"no token. {CONFIGURE}."


def _without_token(text):
    """Ocean's messages hold no token; if one ever does, it stays here."""
    from dwave.cloud.config import load_config
    from dwave.cloud.config.exceptions import ConfigFileError

    tokens = {os.environ.get("DWAVE_API_TOKEN")}
    try:
        tokens.add(load_config().get("token"))
    except (ConfigFileError, ValueError):
        pass  # a file that cannot be read has told Ocean no token either
    for token in filter(None, tokens):
        text = text.replace(token, "***")
    return text
