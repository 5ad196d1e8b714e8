"""What can go wrong with a solver, in types of our own."""

import math
import numbers

# What `info` says of a call that certainly never reached a QPU.
NOT_RUN = {"qpu_access_time": 0.0}


class BackendUnavailable(RuntimeError):
    """A backend cannot run here, or not on this layer: before training.

    A package, a licence, a token or the network is missing, or the layer is too
    wide. The message says what to do. Trying again does not help.

    Attributes:
        info: as in `SolverError`.
    """

    info: dict = {}


class SolverError(RuntimeError):
    """A solver failed, or answered with something that is no solution.

    Attributes:
        info: what is known of the failed calls, as in `Solution.info`.
    """

    info: dict = {}


class TransientError(SolverError):
    """A failure that can pass: a time-out, too many requests, a server error.

    Raised by a backend's `sample`, it makes the call be repeated.
    """


class BudgetExceeded(SolverError):
    """The next call could cost more than is left of the budget."""


def check_number(
    name, value, at_least=None, above=None, optional=False, whole=False
):
    """Raises a `ValueError` that names the argument."""
    if value is None and optional:
        return
    if (
        not isinstance(value, numbers.Integral if whole else numbers.Real)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or (at_least is not None and not value >= at_least)
        or (above is not None and not value > above)
    ):
        kind = "a whole number" if whole else "a number"
        bound = f"above {above}" if at_least is None else f"at least {at_least}"
        raise ValueError(
            f"`{name}` must be {kind} {bound}{' or None' * optional}. "
            f"Received: {name}={value!r}"
        )


def in_short(value):
    """The type of a value and the beginning of its text, for a message."""
    text = " ".join(repr(value).split())
    text = text if len(text) <= 80 else f"{text[:80]}..."
    return text if value is None else f"{type(value).__name__} {text}"


# How names end of what no configuration holds and no message repeats.
_SECRETS = ("token", "password", "secret", "api_key")


def refuse_secrets(config):
    """Raises a `ValueError` if a dictionary holds a secret, at any depth."""
    for name, value in config.items():
        if str(name).lower().endswith(_SECRETS):
            raise ValueError(
                "Secrets are no arguments, as arguments are saved with the "
                "model: configure the solver's own package (`dwave setup "
                f"--auth`, a licence file). Received: {name} (not shown)"
            )
        if isinstance(value, dict):
            refuse_secrets(value)
