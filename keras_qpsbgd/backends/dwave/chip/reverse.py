"""Reverse annealing: starts from a known state instead of a superposition.

A reverse anneal sets the qubits to `initial_state`, goes back from the anneal
fraction s = 1 to a point in the middle of the anneal, pauses there and returns
to s = 1. It searches around the initial state. Three parameters of the solver
control it:

- `anneal_schedule` must start and end at s = 1. It excludes `annealing_time`.
- `initial_state` has a state for every qubit of the problem, see
  `EmbeddedCall.initial_state`.
- `reinitialize_state=True`, D-Wave's default, starts every read from the
  initial state. With `False`, every read starts where the last one ended, so
  reads depend on each other and may drift away from the initial state.

The schedule and `reinitialize_state` change the time of a call. Ocean's cost
model includes both (`leap.timing.access_time`).

References:
    - [Reverse annealing](
      https://docs.dwavequantum.com/en/latest/quantum_research/annealing.html)
    - [Solver parameters](
      https://docs.dwavequantum.com/en/latest/quantum_research/solver_parameters.html)
"""

import math

from keras_qpsbgd.backends.errors import BackendUnavailable

# The parameters that a solver with reverse annealing has.
PARAMETERS = ("anneal_schedule", "initial_state", "reinitialize_state")
# Where the anneal turns. A lower value forgets more of the initial state.
# D-Wave's documentation uses 0.45 and 0.5, `ReverseAdvanceComposite` 0.35.
TURN = 0.45
# The share of each ramp, as in the schedule of `ReverseAdvanceComposite`.
_RAMP = 0.1
# Stands for an initial state in estimates. 3 means a qubit that is not used.
ANY_STATE = {0: 3}


def schedule(properties, annealing_time=None):
    """Returns a schedule that goes back to `TURN`, pauses and returns.

    Args:
        properties: Dictionary. Properties of the sampler.
        annealing_time: Float (optional). Microseconds per anneal. Defaults to
            the solver's default.

    Returns:
        A list of points `[microseconds, s]`.

    Raises:
        BackendUnavailable: If the solver cannot ramp so fast.
    """
    time = annealing_time or properties.get("default_annealing_time", 20.0)
    # No slope may be steeper than the fastest anneal.
    fastest = properties.get("annealing_time_range", (0.0, 0.0))[0]
    ramp = max(_RAMP * time, (1 - TURN) * fastest)
    # Solvers round to 0.01 microseconds. Round up, for the slope.
    ramp = math.ceil(round(100 * ramp, 6)) / 100
    end = round(time - ramp, 2)
    if end <= ramp:
        raise BackendUnavailable(
            "`annealing_time` must be longer than "
            f"{2 * ramp:g} microseconds for reverse annealing on this solver. "
            f"Received: annealing_time={annealing_time}"
        )
    return [[0.0, 1.0], [ramp, TURN], [end, TURN], [round(time, 2), 1.0]]


def with_state(parameters, properties, initial_state=None):
    """Returns the parameters of a reverse anneal.

    Args:
        parameters: Dictionary. Parameters of a forward anneal. Its
            `anneal_schedule` and `reinitialize_state` are kept if given.
        properties: Dictionary. Properties of the sampler.
        initial_state: Dictionary from qubits to -1 or 1 (optional). Defaults to
            `ANY_STATE`, for estimates of the time.

    Returns:
        A dictionary. `annealing_time` is part of the schedule.
    """
    reverse = dict(parameters)
    time = reverse.pop("annealing_time", None)
    if "anneal_schedule" not in reverse:
        reverse["anneal_schedule"] = schedule(properties, time)
    reverse.setdefault("reinitialize_state", True)
    reverse["initial_state"] = initial_state or dict(ANY_STATE)
    return reverse


def is_reverse(parameters):
    """Returns whether parameters ask for a reverse anneal."""
    if "initial_state" in parameters:
        return True
    try:
        return parameters["anneal_schedule"][0][1] == 1
    except (KeyError, IndexError, TypeError):  # no schedule, or not a valid one
        return False


def without_state(parameters):
    """Returns the parameters of a forward anneal, where no state is known."""
    return {k: v for k, v in parameters.items() if k not in PARAMETERS}


def check(sampler, parameters, annealing_time=None):
    """Raises a `BackendUnavailable` if a solver cannot anneal in reverse.

    Args:
        sampler: A `DWaveSampler`, or a compatible sampler.
        parameters: Dictionary. Parameters of the user.
        annealing_time: Float (optional). Microseconds per anneal.
    """
    missing = sorted(set(PARAMETERS) - set(sampler.parameters))
    if missing:
        raise BackendUnavailable(
            "`warm_start` requires a solver with reverse annealing. This "
            f"solver has no {', '.join(f'`{k}`' for k in missing)}. Received: "
            "warm_start=True"
        )
    if parameters.get("fast_anneal"):
        raise BackendUnavailable(
            "`warm_start` cannot be combined with `fast_anneal`, which does "
            "not support reverse annealing. Received: fast_anneal="
            f"{parameters['fast_anneal']!r}"
        )
    if "initial_state" in parameters:
        raise BackendUnavailable(
            "`parameters` must not contain `initial_state`, which "
            "`warm_start` sets. Received: initial_state="
            f"{parameters['initial_state']!r}"
        )
    points = parameters.get("anneal_schedule")
    if points is None:
        points = schedule(sampler.properties, annealing_time)
    try:
        check_schedule(sampler, points)
        if points[0][1] != 1:
            raise ValueError("s must start at 1 for reverse annealing")
    except (RuntimeError, TypeError, ValueError) as error:
        raise BackendUnavailable(
            f"`anneal_schedule` does not fit this solver: {error}. "
            f"Received: anneal_schedule={points!r}"
        ) from error


def check_schedule(sampler, points):
    """Raises an error unless a solver accepts a schedule, as dwave-system does.

    Args:
        sampler: A `DWaveSampler`, or a sampler with the same `parameters` and
            `properties`.
        points: List of points `[microseconds, s]`.

    Raises:
        ValueError, TypeError: If the schedule breaks a rule.
        RuntimeError: If the solver has no schedules.
    """
    from dwave.system import DWaveSampler

    # The method only uses the parameters and properties.
    DWaveSampler.validate_anneal_schedule(sampler, points)
    if points[0][0] != 0:
        raise ValueError("Time t must start at 0")
    if not all(0 <= s <= 1 for _, s in points):
        raise ValueError("Anneal fraction s must be between 0 and 1")
