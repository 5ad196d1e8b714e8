"""The inner optimizer, which updates everything but binary kernels."""

from keras_qpsbgd import _keras

CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
# Arguments that concern real variables only: the inner optimizer's business.
ARGUMENTS = ("weight_decay", *CLIPPING)


def delegated(name):
    """A property that reads and writes that of `real_optimizer`."""

    def read(self):
        return getattr(self.real_optimizer, name, None)

    def write(self, value):
        # Keras sets it before there is an inner optimizer.
        if self.real_optimizer is not None:
            setattr(self.real_optimizer, name, value)

    return property(read, write, doc=f"`real_optimizer.{name}`.")


def create(outer, real_optimizer, real_only):
    """The inner optimizer, set up for its outer one.

    Args:
        outer: a `BinaryOptimizer`.
        real_optimizer: a Keras optimizer, its name or configuration.
        real_only: dictionary of those of `ARGUMENTS` that `outer` was given.

    Raises:
        ValueError: it has a rule for binary kernels, averages variables, or
            has another value of an argument already.
    """
    inner = _keras.get_optimizer(real_optimizer)
    # Only a `BinaryOptimizer` has one.
    if hasattr(inner, "real_optimizer"):
        raise ValueError(
            "`real_optimizer` updates what is not binary and cannot be "
            f"{type(inner).__name__}. "
            f"Received: real_optimizer={real_optimizer}"
        )
    if getattr(inner, "use_ema", False):
        raise ValueError(
            f"Give `use_ema` to {type(outer).__name__}, not to "
            "`real_optimizer`: it averages all variables. Received: "
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
                f"`{key}` is set on `real_optimizer` already, to "
                f"{present}. Received: {key}={value}"
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
    # Its state is part of ours; Keras would save and load it twice, the
    # second time after `load_own_variables` has put things in order.
    inner.save_own_variables = lambda store: None
    inner.load_own_variables = lambda store: None
    return inner
