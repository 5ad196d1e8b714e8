"""Replacing attributes of Spektral, so that it can be undone."""

import importlib
import textwrap
from collections.abc import Callable
from typing import NamedTuple

from keras_qpsbgd import _keras

ABSENT = object()
# Widths of the printed table.
NAME, REPLACES, WHY = 14, 32, 30


class Patch(NamedTuple):
    """One thing that does not work, and what is put in its place.

    Args:
        name: what `Patches.applied` calls it.
        why: one sentence on what would happen without.
        needed: a function without arguments: whether Spektral needs it here.
        replace: for each target, written `"module.path:Class.attribute"` with
            the module relative to Spektral, a function that is given what is
            there and returns what comes instead.
        add: likewise, for attributes that the owner has not got itself; the
            function is given what the owner inherits, or `None`.
    """

    name: str
    why: str
    needed: Callable
    replace: dict
    add: dict = {}

    def targets(self):
        return [*self.replace, *self.add]


class Instead:
    """A module, apart from some names."""

    def __init__(self, module, **names):
        vars(self).update(names, _module=module)

    def __getattr__(self, name):
        return getattr(self._module, name)


def find(target, must_exist=False):
    """The owner and the name of the attribute that `target` points to."""
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
            f"`enable_keras3` expected to find `spektral.{target}`, which it "
            "patches. Install a version of Spektral that it knows: "
            '`pip install "spektral==1.3.1"`. '
            f"Received: spektral {spektral.__version__}, {error}"
        ) from error
    return owner, attribute


def keras3():
    return _keras.KERAS_3


def lacking(*targets):
    """A test: Keras 3, and Spektral has not got one of these itself."""

    def needed():
        return _keras.KERAS_3 and any(
            attribute not in vars(owner)
            for owner, attribute in map(find, targets)
        )

    return needed


class Applied:
    """Patches in force, with what is needed to take them back."""

    def __init__(self):
        self.patches = []
        self._undo = []

    def apply(self, patch):
        for target, make in patch.replace.items():
            self._put(make, *find(target, must_exist=True))
        for target, make in patch.add.items():
            self._put(make, *find(target))
        self.patches.append(patch)

    def _put(self, make, owner, attribute):
        new = make(getattr(owner, attribute, None))
        # As it is stored: a property or static method, not what it gives.
        stored = vars(owner).get(attribute, ABSENT)
        self._undo.append((owner, attribute, stored))
        setattr(owner, attribute, new)

    def restore(self):
        while self._undo:
            owner, attribute, original = self._undo.pop()
            if original is ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)
        self.patches = []


def short(target):
    """As much of a target's path as fits into the table."""
    module, _, path = target.partition(":")
    if "." in path:
        return path
    parts = f"{module}.{path}".split(".")
    while len(".".join(parts)) > REPLACES:
        del parts[0]
    return ".".join(parts)


def table(patches):
    """A table of 80 columns at most."""
    lines = [f"{'patch':{NAME}}  {'replaces':{REPLACES}}  why", "-" * 80]
    for patch in patches:
        shown = [short(target) for target in patch.targets()]
        why = textwrap.wrap(patch.why, WHY)
        for row in range(max(len(shown), len(why))):
            cells = [
                column[row] if row < len(column) else ""
                for column in ([patch.name], shown, why)
            ]
            line = f"{cells[0]:{NAME}}  {cells[1]:{REPLACES}}  {cells[2]}"
            lines.append(line.rstrip())
    return "\n".join(lines)
