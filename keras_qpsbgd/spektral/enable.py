"""`enable_keras3` and the handle that it returns."""

import contextlib
import warnings

from keras_qpsbgd import _keras
from keras_qpsbgd.spektral import data_fixes
from keras_qpsbgd.spektral import layer_fixes
from keras_qpsbgd.spektral.fixes import apply

FIXES = tuple(
    fix
    for fix in (*data_fixes.FIXES, *layer_fixes.FIXES)
    if _keras.KERAS_3 or not fix.needs_keras_3
)
KNOWN = "1.3."

_handles: set = set()
_undo = contextlib.ExitStack()


class Fixes:
    """Handle for the fixes applied by `enable_keras3`.

    `print(fixes)` shows what was replaced and why. The handle is also a
    context manager that disables the fixes on exit.
    """

    @property
    def applied(self) -> tuple[str, ...]:
        """Names of the applied fixes."""
        return tuple(fix.name for fix in FIXES)

    def disable(self) -> None:
        """Restores Spektral, unless another handle is still enabled."""
        if self in _handles:
            _handles.remove(self)
            if not _handles:
                _undo.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.disable()

    def __str__(self):
        lines = [] if self in _handles else ["(disabled)"]
        for fix in FIXES:
            lines.append(f"{fix.name}: {fix.why}")
            lines += [f"    spektral.{target}" for target in fix.targets()]
        return "\n".join(lines)


def enable_keras3() -> Fixes:
    """Makes Spektral 1.3 work with Keras 3 and recent versions of SciPy.

    Replaces those functions and attributes of Spektral that fail with Keras 3,
    and those that use names which SciPy and NumPy have removed. Under legacy
    Keras, only the latter are replaced. Call this function before you create
    layers and models.

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
        with contextlib.ExitStack() as stack:
            for fix in FIXES:
                for restore in apply(fix):
                    stack.callback(restore)
            _undo.push(stack.pop_all())  # nothing has failed
    handle = Fixes()
    _handles.add(handle)
    return handle
