"""`enable_keras3` and the handle that it returns."""

import warnings

from keras_qpsbgd.spektral import building
from keras_qpsbgd.spektral import loading
from keras_qpsbgd.spektral import masks
from keras_qpsbgd.spektral import scipy_mending
from keras_qpsbgd.spektral.patches import Applied
from keras_qpsbgd.spektral.patches import table

PATCHES = (
    *scipy_mending.PATCHES,
    *masks.PATCHES,
    *loading.PATCHES,
    *building.PATCHES,
)
KNOWN = "1.3."

_applied = Applied()
_handles: set = set()


class Patches:
    """What `enable_keras3` did to Spektral, and the way back.

    `print(patches)` shows a table; `patches.applied` holds the names.
    """

    def __init__(self, applied: list) -> None:
        self._patches = tuple(applied)

    @property
    def applied(self) -> tuple[str, ...]:
        return tuple(patch.name for patch in self._patches)

    def disable(self) -> None:
        """Makes Spektral what it was, once no other handle is enabled."""
        if self in _handles:
            _handles.remove(self)
            if not _handles:
                _applied.restore()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.disable()

    def __str__(self):
        if not self._patches:
            return "Spektral is not patched: nothing needs it."
        text = table(self._patches)
        return text if self in _handles else f"(disabled)\n{text}"

    def __repr__(self):
        state = "" if self in _handles else ", disabled"
        return f"Patches(applied={list(self.applied)}{state})"


def enable_keras3() -> Patches:
    """Makes Spektral 1.3 work with Keras 3 and with recent SciPy.

    It replaces functions and attributes of Spektral, and only those that fail
    with the Keras, SciPy and Spektral that are installed: none at all under
    legacy Keras with old SciPy. Call it before layers and models are made.

    It may be called again while it is in force: nothing is patched twice, and
    Spektral is restored when the last of the handles has been disabled.

    Returns:
        A handle. Print it to see what was replaced; `handle.disable()`, or the
        end of `with enable_keras3():`, restores the very objects that were
        there.

    Raises:
        ImportError: Spektral is not installed.
        RuntimeError: Spektral lacks something that a patch replaces.

    Example:

    >>> with keras_qpsbgd.spektral.enable_keras3() as patches:
    ...     model = spektral.models.GCN(n_labels=2)
    ...     model.compile("adam", "categorical_crossentropy")
    ...     model.fit(loader.load(), steps_per_epoch=1)
    """
    try:
        import spektral
    except ImportError as error:
        raise ImportError(
            "`enable_keras3` patches Spektral, which cannot be imported. "
            'Install it with `pip install "spektral==1.3.1"`. '
            f"Received: {error}"
        ) from error
    if not _handles:
        if not spektral.__version__.startswith(KNOWN):
            warnings.warn(
                "`enable_keras3` was written for Spektral 1.3; what it patches "
                "may have changed. Received: spektral "
                f"{spektral.__version__}",
                stacklevel=2,
            )
        try:
            for patch in PATCHES:
                if patch.needed():
                    _applied.apply(patch)
        except BaseException:
            _applied.restore()
            raise
    handle = Patches(_applied.patches)
    _handles.add(handle)
    return handle
