"""Checks the arguments of the QPU backend."""

import numpy as np

from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.errors import reject_secrets


def check(
    solver,
    topology,
    mock,
    num_reads,
    annealing_time,
    chain_strength,
    parameters,
    qpu_budget_seconds,
    gauge,
    problem_label,
):
    """Raises a `ValueError` if an argument of `DWaveBackend` is invalid."""
    _check_solver(solver, topology, mock)
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
        check_number("chain_strength", chain_strength, above=0, optional=True)
    check_number("num_reads", num_reads, at_least=1, whole=True)
    check_number("annealing_time", annealing_time, above=0, optional=True)
    check_number(
        "qpu_budget_seconds", qpu_budget_seconds, at_least=0, optional=True
    )
    if not isinstance(gauge, (bool, np.bool_)):
        raise ValueError(
            f"`gauge` must be True or False. Received: gauge={gauge!r}"
        )
    if not isinstance(problem_label, (str, type(None))):
        raise ValueError(
            "`problem_label` must be a string or None. Received: "
            f"problem_label={problem_label!r}"
        )


def _check_solver(solver, topology, mock):
    if topology not in (None, "pegasus", "zephyr"):
        raise ValueError(
            '`topology` must be "pegasus", "zephyr" or None. Received: '
            f"topology={topology!r}"
        )
    solvers = solver if isinstance(solver, (list, tuple)) else [solver]
    kinds = (str, dict) if solvers is solver else (str, dict, type(None))
    if not solvers or not all(isinstance(s, kinds) for s in solvers):
        raise ValueError(
            "`solver` must be a string, a dictionary of features, a list of "
            f"these or None. Received: solver={solver!r}"
        )
    if solver is not None and (topology is not None or mock):
        raise ValueError(
            "`solver` cannot be combined with `topology` or `mock`, which "
            "choose the chip themselves. Remove one of them. "
            f"Received: solver={solver!r}, topology={topology!r}, "
            f"mock={mock!r}"
        )
