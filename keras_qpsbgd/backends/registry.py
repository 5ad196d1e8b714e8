"""Registry of backends by name.

A backend is known if it is in the table below, if `register` was called for it,
or if an installed package declares it in the entry-point group
`keras_qpsbgd.backends`:

```ini
[options.entry_points]
keras_qpsbgd.backends =
    my_solver = my_package.solver:MySolverBackend
```

The module of a backend is imported on first use, so that `import keras_qpsbgd`
does not need any of the solvers.
"""

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import dimod

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import reject_secrets

ENTRY_POINTS = "keras_qpsbgd.backends"
# Suggests "simulated_annealing" for "annealing", but not "sign" for "ignore".
SIMILARITY = 0.62


# The module in `keras_qpsbgd.backends` and the class of each backend.
_BUILT_IN = {
    "native": ("graph.native", "NativeBackend"),
    "exact": ("graph.exact", "ExactBackend"),
    "ridge": ("graph.relaxed", "RidgeBackend"),
    "sign": ("graph.relaxed", "SignBackend"),
    "simulated_annealing": ("host.samplers", "SimulatedAnnealingBackend"),
    "tabu": ("host.samplers", "TabuBackend"),
    "gurobi": ("host.gurobi", "GurobiBackend"),
    "dwave": ("dwave.qpu", "DWaveBackend"),
    "leap_hybrid": ("dwave.hybrid", "LeapHybridBackend"),
}
# Classes that were passed to `register`.
_registered: dict[str, type[Backend]] = {}


class Availability(NamedTuple):
    """Availability of a backend on this machine.

    Attributes:
        name: String. Name of the backend.
        available: Boolean. True if the backend can run here.
        missing: String. What is missing, or `""`.
        summary: String. Short description of the backend.
    """

    name: str
    available: bool
    missing: str
    summary: str


def register(name: str, backend_class: type[Backend]) -> None:
    """Registers a `Backend` subclass under a name.

    A class with the same module and name replaces the previous one, so that you
    can run a notebook cell again or reload a module.

    Args:
        name: String. The name to pass as `QPSBGD(backend=...)`.
        backend_class: Subclass of `Backend`. Its arguments must be plain
            values, because they are saved with the optimizer.

    Raises:
        TypeError: If `backend_class` is not a subclass of `Backend`.
        ValueError: If `name` is not a string, is empty or belongs to another
            class.

    Example:
        ```python
        kq.backends.register("my_solver", MySolver)
        optimizer = kq.QPSBGD(backend="my_solver")
        ```
    """
    if not (
        isinstance(backend_class, type) and issubclass(backend_class, Backend)
    ):
        raise TypeError(
            "`backend_class` must be a subclass of `Backend`. "
            f"Received: backend_class={backend_class!r}"
        )
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"`name` must be a non-empty string. Received: name={name!r}"
        )
    known = _class_of(name)
    if known is not None and not _is_same(known, backend_class):
        raise ValueError(
            f"`name` already belongs to the backend {_full_name(known)}. "
            "Choose another name, for example one that starts with the name of "
            f"your package. Received: name={name!r}, "
            f"backend_class={_full_name(backend_class)}"
        )
    backend_class.name = name
    _registered[name] = backend_class


def get(identifier: BackendLike, executor: Any = None) -> Backend:
    """Retrieves a backend.

    Args:
        identifier: The name of a backend, such as `"native"`; a configuration,
            such as `{"name": "native", "preset": "fast"}`; a `Backend`, which
            is returned unchanged; or any `dimod.Sampler`, which is called once
            per column. To pass arguments with a sampler, wrap it in a
            `SamplerBackend`.
        executor: `concurrent.futures.Executor` (optional). Solves columns and
            layers in parallel. A configuration may also contain an `executor`.
            Defaults to `None`.

    Returns:
        A `Backend`.

    Raises:
        TypeError: If `executor` is not an executor.
        ValueError: If the name or an argument is unknown or invalid, or if the
            backend does not accept an `executor`.
        BackendUnavailable: If a package of the backend is not installed.

    Example:
        ```python
        backend = kq.backends.get({"name": "native", "preset": "once"})
        ```
    """
    config = {}
    if isinstance(identifier, dict):
        reject_secrets(identifier)  # messages show the configuration
        if identifier.get("name") is None:
            raise ValueError(
                "`backend` must be a name, or a configuration with the `name` "
                f"of a backend.{_hint_for_name(identifier)} "
                f"Received: backend={identifier!r}"
            )
        config = dict(identifier)
        identifier = config.pop("name")
        executor = config.pop("executor", executor)
    if config and isinstance(identifier, (Backend, dimod.Sampler)):
        raise ValueError(
            "A configuration must have the name of a backend as its `name`. To "
            "pass arguments with a sampler, use `SamplerBackend(sampler, "
            f"...)`. Received: name={identifier!r}, {sorted(config)}"
        )
    backend = _get(identifier, config)
    if executor is not None:
        backend.use_executor(executor)
    return backend


def _get(identifier, config):
    if isinstance(identifier, Backend):
        return identifier
    if isinstance(identifier, dimod.Sampler):
        from keras_qpsbgd.backends.host.samplers import SamplerBackend

        return SamplerBackend(identifier)
    if not isinstance(identifier, str):
        raise ValueError(
            "`backend` must be a name, a configuration with a `name`, a "
            f"`Backend` or a `dimod.Sampler`. Received: backend={identifier!r}"
        )
    backend_class = _class_of(identifier)
    if backend_class is None:
        names = [*_loaders()]
        raise ValueError(
            f"`backend` must be one of {sorted(names)}."
            f"{_hint(identifier.lower(), names)} Import the module that "
            "registers a custom backend before you use it or load a model that "
            f"uses it. Received: backend={identifier!r}"
        )
    missing = _missing_package(backend_class)
    if missing:
        raise BackendUnavailable(
            f"The backend `{identifier}` cannot run here: {missing}. "
            f"Received: backend={identifier!r}"
        )
    # A custom `from_config` may accept anything.
    if backend_class.from_config.__func__ is Backend.from_config.__func__:
        _check_arguments(identifier, backend_class, config)
    backend = backend_class.from_config(config)
    backend.name = identifier
    return backend


def _check_arguments(name, backend_class, config):
    """Raises a `ValueError` for an unknown argument, with a suggestion."""
    names = _argument_names(backend_class)
    for argument in config:
        if argument not in names:
            raise ValueError(
                f"The backend `{name}` does not accept `{argument}`."
                f"{_hint(argument, names)} It accepts {sorted(names)}. "
                f"Received: {config}"
            )


def _argument_names(backend_class):
    names = []
    for cls in backend_class.__mro__:
        if "__init__" in vars(cls):
            arguments = inspect.signature(cls).parameters.values()
            names += [
                argument.name
                for argument in arguments
                if argument.kind
                in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
            ]
            # `**options` are passed to the next class.
            if all(a.kind is not a.VAR_KEYWORD for a in arguments):
                break
    return names


def _hint(name, known):
    """Returns a "Did you mean" question about a similar name, or ""."""
    similar = difflib.get_close_matches(name, known, 1, cutoff=SIMILARITY)
    return f" Did you mean `{similar[0]}`?" if similar else ""


def _hint_for_name(config):
    """Returns a "Did you mean" question if a key is similar to `name`."""
    hints = [_hint(key, ["name"]) for key in map(str, config) if key != "name"]
    return next(filter(None, hints), "")


def serialize(backend: Backend) -> str | dict[str, Any]:
    """Returns the configuration from which `get` creates the same backend.

    Args:
        backend: `Backend`. Its class must be registered under its `name`.

    Returns:
        A dictionary with the `name` and the result of `backend.get_config()`.

    Raises:
        ValueError: If the class is not registered, so that `get` could not
            create the backend.
    """
    config = backend.get_config()
    known = _class_of(backend.name)
    if known is None or not _is_same(known, type(backend)):
        kind = type(backend).__name__
        owner = (
            ""
            if known is None
            else f" (the name belongs to {_full_name(known)})"
        )
        raise ValueError(
            f"A backend of class `{kind}` cannot be saved with the optimizer, "
            "because it could not be loaded. The class is not registered under "
            f"the name {backend.name!r}{owner}. Call "
            f'`keras_qpsbgd.backends.register("my_name", {kind})` first. '
            f"Received: backend={backend!r}"
        )
    return {"name": backend.name, **config}


def _class_of(name):
    """Returns the class that is registered under a name, or `None`."""
    loader = _loaders().get(name)
    return None if loader is None else loader()


def _loaders():
    """Maps all names to functions that return the class."""
    loaders: dict[str, Callable[[], Any]] = {
        name: functools.partial(_load, *place)
        for name, place in _BUILT_IN.items()
    }
    for name, backend_class in _registered.items():
        loaders[name] = lambda backend_class=backend_class: backend_class
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        loaders.setdefault(entry_point.name, entry_point.load)
    return loaders


def _load(module, name):
    module = importlib.import_module(f"keras_qpsbgd.backends.{module}")
    return getattr(module, name)


def _is_same(first, second):
    """Returns whether one class is the other or a redefinition of it."""
    return first is second or _full_name(first) == _full_name(second)


def _full_name(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def available() -> list[Availability]:
    """Lists all known backends and whether they can run here.

    Returns:
        A list of `Availability(name, available, missing, summary)`.

    Example:
        ```python
        for row in kq.backends.available():
            print(row.name, "ready" if row.available else row.missing)
        ```
    """
    rows = []
    for name, load in _loaders().items():
        try:
            backend_class = load()
            missing = _missing_package(backend_class)
            missing = missing or backend_class.unconfigured()
            summary = (backend_class.__doc__ or "").strip().partition("\n")[0]
        except Exception as error:  # a plug-in may raise anything
            missing, summary = f"cannot be imported ({error})", ""
        rows.append(Availability(name, not missing, missing, summary))
    return rows


def _missing_package(backend_class):
    package = backend_class.package
    if not package or _is_installed(package):
        return ""
    return (
        f"{package} is not installed "
        f'(`python -m pip install "{backend_class.install}"`)'
    )


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
