"""Exceptions of the backends, and checks of their arguments."""

import math
import numbers

# The `info` of a call that did not run on a QPU.
NOT_RUN = {"qpu_access_time": 0.0}


class BackendUnavailable(RuntimeError):
    """Raised if a backend cannot run here or cannot solve a layer.

    A package, a license, a token or the network is missing, or the layer is too
    wide. The message says what to do. Retrying does not help. If possible, the
    error is raised before training starts.

    Attributes:
        info: Dictionary, as in `SolverError`.
    """

    info: dict = {}


class SolverError(RuntimeError):
    """Raised if a solver fails or returns an invalid answer.

    Attributes:
        info: Dictionary. What is known about the failed calls, with the entries
            of `Solution.info`.
    """

    info: dict = {}


class TransientError(SolverError):
    """Raised for a temporary failure, such as a timeout or a server error.

    The call is repeated if a backend's `sample` raises this error.
    """


class BudgetExceeded(SolverError):
    """Raised if the next call could cost more than the remaining budget."""


def check_number(
    name, value, at_least=None, above=None, optional=False, whole=False
):
    """Raises a `ValueError` if an argument is not a number in its range."""
    if value is None and optional:
        return
    if (
        not isinstance(value, numbers.Integral if whole else numbers.Real)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or (at_least is not None and not value >= at_least)
        or (above is not None and not value > above)
    ):
        kind = "an integer" if whole else "a finite number"
        bound = (
            f"greater than {above}"
            if at_least is None
            else f"of at least {at_least}"
        )
        raise ValueError(
            f"`{name}` must be {kind} {bound}{', or None' * optional}. "
            f"Received: {name}={value!r}"
        )


def info_of(result):
    """Returns the `info` of a solution or an exception, or `{}` if none.

    Exceptions of other packages may have an unrelated `info`, such as the
    method of `urllib.error.HTTPError`.
    """
    info = getattr(result, "info", None)
    return info if isinstance(info, dict) else {}


def in_short(value):
    """Returns the type of a value and the start of its text, for messages."""
    text = " ".join(repr(value).split())
    text = text if len(text) <= 80 else f"{text[:80]}..."
    return text if value is None else f"{type(value).__name__} {text}"


# Arguments with these suffixes are never saved and never shown in messages.
_SECRET_SUFFIXES = ("token", "password", "secret", "api_key")


def reject_secrets(config):
    """Raises a `ValueError` if a dictionary holds a secret, at any depth."""
    for name, value in config.items():
        if str(name).lower().endswith(_SECRET_SUFFIXES):
            raise ValueError(
                "Do not pass secrets as arguments, because arguments are saved "
                "with the model. Configure the solver's own package instead "
                "(`dwave setup --auth`, a license file). Received: "
                f"{name} (value not shown)"
            )
        entries = value if isinstance(value, (list, tuple)) else [value]
        for entry in entries:
            if isinstance(entry, dict):
                reject_secrets(entry)
