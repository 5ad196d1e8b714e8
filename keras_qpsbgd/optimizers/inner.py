"""The inner optimizer, which updates the variables that are not binary."""

from typing import Any

from keras_qpsbgd import _keras

CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
# Arguments that apply to real variables only.
REAL_ONLY = ("weight_decay", *CLIPPING)


def delegated(owner: str, name: str) -> property:
    """Returns a property that forwards to an attribute of another object.

    Args:
        owner: String. The attribute that holds the object.
        name: String. The name of the property and of the attribute.
    """

    def read(self) -> Any:
        return getattr(getattr(self, owner), name, None)

    def write(self, value):
        # Keras sets it before the inner optimizer exists.
        if getattr(self, owner) is not None:
            setattr(getattr(self, owner), name, value)

    return property(read, write, doc=f"`{owner}.{name}`.")


def inner_optimizer(outer, real_optimizer, real_only):
    """Creates the inner optimizer and configures it for the outer one.

    Args:
        outer: The `BinaryOptimizer`.
        real_optimizer: A Keras optimizer, its name or its configuration.
        real_only: Dictionary with the values that `outer` received for
            `REAL_ONLY`.

    Raises:
        ValueError: If the inner optimizer has a rule for binary kernels, uses
            `use_ema`, or already has another value for an argument, or if more
            than one kind of gradient clipping is set.
    """
    inner = _keras.get_optimizer(real_optimizer)
    # Only a `BinaryOptimizer` has this attribute.
    if hasattr(inner, "real_optimizer"):
        raise ValueError(
            "`real_optimizer` updates the variables that are not binary and "
            f"cannot be a `{type(inner).__name__}`. "
            f"Received: real_optimizer={real_optimizer}"
        )
    if getattr(inner, "use_ema", False):
        raise ValueError(
            f"Pass `use_ema` to `{type(outer).__name__}`, which averages all "
            "variables, and not to `real_optimizer`. Received: "
            f"real_optimizer={real_optimizer}"
        )
    if inner is real_optimizer:
        inner = _keras.copy_optimizer(inner)
    steps = getattr(outer, "gradient_accumulation_steps", None)
    settings = {**real_only, "gradient_accumulation_steps": steps}
    for key, value in settings.items():
        if value is None:
            continue
        present = getattr(inner, key, None)
        if present is not None and present != value:
            raise ValueError(
                f"`{key}` of `real_optimizer` is already set to {present}. "
                f"Received: {key}={value}"
            )
        setattr(inner, key, value)
    clipping = {
        key: getattr(inner, key)
        for key in CLIPPING
        if getattr(inner, key, None) is not None
    }
    if len(clipping) > 1:
        raise ValueError(
            f"At most one of {CLIPPING} can be set. Received: {clipping}"
        )
    # The outer optimizer saves and loads this state. Keras would otherwise do
    # so twice, the second time after `load_own_variables` of the outer
    # optimizer has discarded a partial accumulation.
    inner.save_own_variables = lambda store: None
    inner.load_own_variables = lambda store: None
    return inner
