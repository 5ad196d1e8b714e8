"""The solver parameters of a QPU call, and their limits."""

import numpy as np

from keras_qpsbgd.backends.dwave.chip import ranges
from keras_qpsbgd.backends.dwave.leap import timing
from keras_qpsbgd.backends.errors import BackendUnavailable


def of_call(backend):
    """Returns the solver parameters of a call of a `DWaveBackend`."""
    sampler = backend.open().sampler
    given = {"num_reads": backend.num_reads, **backend.parameters}
    if backend.annealing_time is not None:
        given["annealing_time"] = backend.annealing_time
    # Return every read, and show a label in Leap's list of problems.
    defaults = {"answer_mode": "raw", **ranges.PARAMETERS}
    if backend.problem_label is not None:
        defaults["label"] = backend.problem_label
    for name, value in defaults.items():
        if name in sampler.parameters:
            given.setdefault(name, value)
    return given


def check(backend):
    """Raises a `BackendUnavailable` if the solver rejects the parameters."""
    sampler = backend.open().sampler
    unknown = sorted(set(backend.parameters) - set(sampler.parameters))
    if unknown:
        raise BackendUnavailable(
            "`parameters` must be parameters of this solver: "
            f"{sorted(sampler.parameters)}. Received: {unknown}"
        )
    ranges.check_fast_anneal(backend.parameters)
    if _is_reverse(backend.parameters):
        raise BackendUnavailable(
            "`parameters` must not contain `initial_state` or an "
            "`anneal_schedule` that starts at s = 1, because reverse annealing "
            f"is not supported. Received: parameters={backend.parameters!r}"
        )
    limits = timing.parameter_ranges(sampler.properties, backend.parameters)
    for name, value in of_call(backend).items():
        low, high = limits.get(name, (-np.inf, np.inf))
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise BackendUnavailable(
                f"`{name}` must be between {low:g} and {high:g} on this "
                f"solver. Received: {name}={value}"
            )


def _is_reverse(parameters):
    if "initial_state" in parameters:
        return True
    try:
        return parameters["anneal_schedule"][0][1] == 1
    except (KeyError, IndexError, TypeError):  # no schedule, or not a valid one
        return False


def check_duration(backend, packing):
    """Raises a `BackendUnavailable` if a call takes longer than allowed."""
    limits = backend.open().sampler.properties.get("problem_run_duration_range")
    qubits = max(call.num_qubits for call in packing.calls)
    try:  # without the programming time, which does not count
        seconds = backend.call_seconds(qubits)
        seconds -= backend.call_seconds(qubits, num_reads=0)
    except BackendUnavailable:
        return
    if limits and seconds > 1e-6 * limits[1]:
        raise BackendUnavailable(
            f"A call would take {seconds:.3g} s, but this solver allows at "
            f"most {1e-6 * limits[1]:g} s. Lower `num_reads` or "
            f"`annealing_time`. Received: num_reads={backend.num_reads}, "
            f"annealing_time={backend.annealing_time}"
        )
