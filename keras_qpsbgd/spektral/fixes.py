"""Fixes for Spektral: attributes that are replaced and can be restored."""

import importlib
from typing import NamedTuple

ABSENT = object()


class Fix(NamedTuple):
    """A fix for one problem, which replaces or adds attributes.

    Args:
        name: String. The name in `Fixes.applied`.
        why: String. One sentence about the problem.
        replace: Dictionary from targets to functions. A target is written
            `"module.path:Class.attribute"`, with the module relative to
            `spektral`. The function receives the original attribute and returns
            the replacement.
        add: Dictionary like `replace`, for attributes that the owner does not
            define itself. The function receives the inherited attribute, or
            `None`.
        needs_keras_3: Boolean. Whether only Keras 3 has the problem. Defaults
            to `True`.
    """

    name: str
    why: str
    replace: dict
    add: dict = {}
    needs_keras_3: bool = True

    def targets(self):
        return [*self.replace, *self.add]


class ModuleProxy:
    """A module with some of its names replaced."""

    def __init__(self, module, **names):
        vars(self).update(names, _module=module)

    def __getattr__(self, name):
        return getattr(self._module, name)


def find(target, must_exist=False):
    """Returns the owner and the name of the attribute in `target`.

    Raises:
        RuntimeError: If the installed Spektral lacks the attribute.
    """
    module, _, path = target.partition(":")
    *path, attribute = path.split(".")
    try:
        owner = importlib.import_module(f"spektral.{module}")
        for name in path:
            owner = getattr(owner, name)
        if must_exist:
            getattr(owner, attribute)
    except (ImportError, AttributeError) as error:
        import spektral

        raise RuntimeError(
            f"`enable_keras3` cannot find `spektral.{target}`, which it "
            "replaces. Install a supported version of Spektral with "
            '`pip install "spektral==1.3.1"`. '
            f"Received: spektral {spektral.__version__}, {error}"
        ) from error
    return owner, attribute


def apply(fix):
    """Applies a fix.

    Yields:
        Functions that restore an attribute, to be called in reverse order.
    """
    for target, make in fix.replace.items():
        yield _put(make, *find(target, must_exist=True))
    for target, make in fix.add.items():
        yield _put(make, *find(target))


def _put(make, owner, attribute):
    new = make(getattr(owner, attribute, None))
    # Read it from `vars`, to store a property or static method itself.
    stored = vars(owner).get(attribute, ABSENT)
    setattr(owner, attribute, new)
    if stored is ABSENT:
        return lambda: delattr(owner, attribute)
    return lambda: setattr(owner, attribute, stored)
