"""Chooses the update rule from the arguments of `QPSBGD`."""

import numbers

from keras_qpsbgd.optimizers.rules.gradient import GradientRule
from keras_qpsbgd.optimizers.rules.newton import NewtonRule

UPDATES = ("gradient", "newton")
# Arguments that only one of the rules has, and their defaults.
OF_GRADIENT = {"gradient_scale": "max", "kappa": None}
OF_NEWTON = {
    "latent": "average",
    "damping": 1.0,
    "curvature": "fisher",
    "mean_curvature": False,
}


def create(update, momentum, arguments):
    """Returns the update rule.

    Args:
        update: String. One of `UPDATES`.
        momentum: Float.
        arguments: Dictionary of the arguments that only one of the rules has.

    Raises:
        ValueError: If an argument is invalid, or if an argument of the other
            rule differs from its default.
    """
    if update not in UPDATES:
        raise ValueError(
            f"`update` must be one of {UPDATES}. Received: update={update!r}"
        )
    is_newton = update == "newton"
    others = OF_GRADIENT if is_newton else OF_NEWTON
    for name, default in others.items():
        if arguments[name] != default:
            other = "gradient" if is_newton else "newton"
            raise ValueError(
                f'`{name}` requires update="{other}". Received: '
                f"update={update!r}, {name}={arguments[name]!r}"
            )
    own = OF_NEWTON if is_newton else OF_GRADIENT
    chosen = {name: arguments[name] for name in own}
    if is_newton:
        return NewtonRule(**chosen)
    return GradientRule(**chosen, has_momentum=momentum > 0)


def check_share(name, value, below_one):
    """Raises a `ValueError` unless a value is in its range from 0 to 1."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1 or (below_one and value == 1):
        most = "below 1" if below_one else "at most 1"
        raise ValueError(
            f"`{name}` must be a number of at least 0 and {most}. "
            f"Received: {name}={value!r}"
        )
