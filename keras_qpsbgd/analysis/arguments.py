"""Checks of arguments that several tools have in common."""

from typing import Any

from keras_qpsbgd.qubo import Qubo


def check_qubo(qubo: Any) -> None:
    """Raises an error for anything but a `Qubo`, such as a recorded `Update`.

    Args:
        qubo: The argument `qubo` of a tool.

    Raises:
        ValueError: If it is not a `Qubo`.
    """
    if not isinstance(qubo, Qubo):
        hint = ""
        if isinstance(getattr(qubo, "qubo", None), Qubo):
            hint = " Pass the `qubo` of the update."
        raise ValueError(
            f"`qubo` must be a `Qubo`.{hint} Received: {type(qubo).__name__}"
        )
