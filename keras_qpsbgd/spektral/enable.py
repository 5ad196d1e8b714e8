"""`enable_keras3` and the handle that it returns."""

import warnings

from keras_qpsbgd.spektral import data_fixes
from keras_qpsbgd.spektral import layer_fixes
from keras_qpsbgd.spektral.fixes import Applied
from keras_qpsbgd.spektral.fixes import table

FIXES = (
    *data_fixes.FIXES_OF_NAMES,
    *data_fixes.FIXES_OF_LOADERS,
    *layer_fixes.FIXES,
)
KNOWN = "1.3."

_applied = Applied()
_handles: set = set()


class Fixes:
    """Handle for the fixes applied by `enable_keras3`.

    `print(fixes)` shows what was replaced and why. The handle is also a
    context manager that disables the fixes on exit.
    """

    def __init__(self, applied: list) -> None:
        self._fixes = tuple(applied)

    @property
    def applied(self) -> tuple[str, ...]:
        """Names of the applied fixes."""
        return tuple(fix.name for fix in self._fixes)

    def disable(self) -> None:
        """Restores Spektral when no other handle is enabled."""
        if self in _handles:
            _handles.remove(self)
            if not _handles:
                _applied.restore()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.disable()

    def __str__(self):
        if not self._fixes:
            return "Spektral is not changed, because nothing needs a fix."
        text = table(self._fixes)
        return text if self in _handles else f"(disabled)\n{text}"

    def __repr__(self):
        state = "" if self in _handles else ", disabled"
        return f"Fixes(applied={list(self.applied)}{state})"


def enable_keras3() -> Fixes:
    """Makes Spektral 1.3 work with Keras 3 and recent versions of SciPy.

    Replaces those functions and attributes of Spektral that fail with the
    installed versions of Keras, SciPy and Spektral. Under legacy Keras with an
    old SciPy, nothing is replaced. Call this function before you create layers
    and models.

    The function can be called again while the fixes are enabled. Nothing is
    replaced twice, and Spektral is restored when the last handle is disabled.

    Returns:
        A handle. Print it to see what was replaced. `handle.disable()`, or
        leaving a `with enable_keras3():` block, restores the original objects.

    Raises:
        ImportError: If Spektral is not installed.
        RuntimeError: If the installed Spektral lacks an attribute that a fix
            replaces.

    Example:
        ```python
        with keras_qpsbgd.spektral.enable_keras3() as fixes:
            model = spektral.models.GCN(n_labels=2)
            model.compile("adam", "categorical_crossentropy")
            model.fit(loader.load(), steps_per_epoch=1)
        ```
    """
    try:
        import spektral
    except ImportError as error:
        raise ImportError(
            "`enable_keras3` changes Spektral, which cannot be imported. "
            'Install it with `pip install "spektral==1.3.1"`. '
            f"Received: {error}"
        ) from error
    if not _handles:
        if not spektral.__version__.startswith(KNOWN):
            warnings.warn(
                "`enable_keras3` was written for Spektral 1.3. The code that "
                "it replaces may have changed. Received: spektral "
                f"{spektral.__version__}",
                stacklevel=2,
            )
        try:
            for fix in FIXES:
                if fix.needed():
                    _applied.apply(fix)
        except BaseException:
            _applied.restore()
            raise
    handle = Fixes(_applied.fixes)
    _handles.add(handle)
    return handle
