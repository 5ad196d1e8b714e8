"""Backends by name.

Three ways in: the table below, `register` at run time, and the entry-point
group `keras_qpsbgd.backends` of an installed package,

```ini
[options.entry_points]
keras_qpsbgd.backends =
    my_solver = my_package.solver:MySolverBackend
```

A backend's module is imported when the backend is first asked for, so that
`import keras_qpsbgd` needs none of the solvers.
"""

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
from typing import Any
from typing import NamedTuple

import dimod

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import refuse_secrets
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.backends.host.parallel import check_executor

ENTRY_POINTS = "keras_qpsbgd.backends"
_HERE = "keras_qpsbgd.backends"


class _Entry(NamedTuple):
    load: object  # () -> subclass of Backend
    summary: str = ""
    requires: tuple = ()  # importable packages
    install: str = ""  # what to tell pip


def _builtin(module, name):
    return lambda: getattr(importlib.import_module(f"{_HERE}.{module}"), name)


_SAMPLERS: dict[str, Any] = {
    "requires": ("dwave.samplers",),
    "install": "keras_qpsbgd[dwave]",
}
_entries = {
    "native": _Entry(
        _builtin("graph.native", "NativeBackend"),
        "exact up to 16 inputs, local search and sweeps above; in the graph",
    ),
    "exact": _Entry(
        _builtin("graph.exact", "ExactBackend"),
        "all states of up to 20 inputs; in the graph",
    ),
    "ridge": _Entry(
        _builtin("graph.relaxed", "RidgeBackend"),
        "the QUBO relaxed and rounded; in the graph",
    ),
    "sign": _Entry(
        _builtin("graph.relaxed", "SignBackend"),
        "the linear part alone; in the graph",
    ),
    "simulated_annealing": _Entry(
        _builtin("host.samplers", "SimulatedAnnealingBackend"),
        "dwave-samplers simulated annealing; on the host",
        **_SAMPLERS,
    ),
    "tabu": _Entry(
        _builtin("host.samplers", "TabuBackend"),
        "dwave-samplers tabu search; on the host",
        **_SAMPLERS,
    ),
    "gurobi": _Entry(
        _builtin("host.gurobi", "GurobiBackend"),
        "Gurobi, exact where it has the time; on the host",
        ("gurobipy",),
        "keras_qpsbgd[gurobi]",
    ),
    "dwave": _Entry(
        _builtin("dwave.qpu", "DWaveBackend"),
        "a D-Wave quantum annealer, all columns of a layer in one call",
        ("dwave.system",),
        "keras_qpsbgd[dwave]",
    ),
    "leap_hybrid": _Entry(
        _builtin("dwave.hybrid", "LeapHybridBackend"),
        "D-Wave's hybrid solver, all columns of a layer in one call",
        ("dwave.system",),
        "keras_qpsbgd[dwave]",
    ),
}


class Availability(NamedTuple):
    """Whether a backend can run here."""

    name: str
    available: bool
    missing: str  # empty if nothing is
    summary: str


def register(name: str, backend_class: type[Backend]) -> None:
    """Makes a `Backend` subclass known under a name.

    Args:
        name: what to pass as `QPSBGD(backend=...)`.
        backend_class: subclass of `Backend`. Its arguments must be plain
            values: they are saved with the optimizer. A class of the same
            module and name replaces the one before, so that a notebook cell can
            be run again, or a module reloaded.

    Raises:
        TypeError: `backend_class` is no subclass of `Backend`.
        ValueError: `name` is no name, or another class has it.
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
            f"`name` must be a string, and not empty. Received: name={name!r}"
        )
    known = _class_of(name)
    if known is not None and not _is_same(known, backend_class):
        raise ValueError(
            f"A backend of this name exists already, {_full_name(known)}. "
            "Choose another name, one that starts with that of your package, "
            f"for example. Received: name={name!r}, "
            f"backend_class={_full_name(backend_class)}"
        )
    backend_class.name = name
    _entries[name] = _Entry(lambda: backend_class, _first_line(backend_class))


def get(identifier: BackendLike, executor: Any = None) -> Backend:
    """A backend from a name, a configuration, a `Backend` or a `dimod.Sampler`.

    Args:
        identifier: `"native"`; `{"name": "native", "preset": "fast"}`; a
            `Backend`, which is returned as it is; or any `dimod.Sampler`, which
            is called once per column.
        executor: a `concurrent.futures.Executor` through which columns and
            layers are solved in parallel. A configuration may hold it, too.

    Raises:
        ValueError: the name is unknown.
        BackendUnavailable: the backend's package is not installed.
    """
    config = {}
    if isinstance(identifier, dict):
        config = dict(identifier)
        identifier = config.pop("name", None)
        executor = config.pop("executor", executor)
    backend = _get(identifier, config)
    if executor is not None:
        check_executor(executor)
        if isinstance(backend, GraphBackend):
            raise ValueError(
                f"The backend `{backend.name}` solves in the training graph "
                "and takes no `executor`. Received: "
                f"executor={type(executor).__name__}"
            )
        backend.executor = executor
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
    entries = _all_entries()
    if identifier not in entries:
        raise ValueError(
            f"`backend` must be one of {sorted(entries)}. Import the module "
            "that registers your own backend first, also to load a model that "
            f"uses it. Received: backend={identifier!r}"
        )
    entry = entries[identifier]
    missing = _missing(entry)
    if missing:
        raise BackendUnavailable(
            f"The backend `{identifier}` cannot run here: {missing}. "
            f"Received: backend={identifier!r}"
        )
    refuse_secrets(config)
    backend_class = entry.load()
    _check_arguments(identifier, backend_class, config)
    backend = backend_class.from_config(config)
    backend.name = identifier
    return backend


def _check_arguments(name, backend_class, config):
    """Raises a `ValueError` that names the argument meant, if one is near."""
    if backend_class.from_config.__func__ is not Backend.from_config.__func__:
        return  # it knows what to do with its configuration
    known = {}
    for cls in backend_class.__mro__:
        if "__init__" in vars(cls):
            arguments = inspect.signature(cls.__init__).parameters
            known.update(arguments)
            # `**options` hands on to the next class.
            if inspect.Parameter.VAR_KEYWORD not in [
                argument.kind for argument in arguments.values()
            ]:
                break
    kinds = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    names = [k for k, v in known.items() if v.kind in kinds and k != "self"]
    for given in config:
        if given not in names:
            near = difflib.get_close_matches(given, names, 1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ValueError(
                f"The backend `{name}` does not take `{given}`.{hint} It takes "
                f"{sorted(names)}. Received: {config}"
            )


def serialize(backend: Backend) -> str | dict[str, Any]:
    """The configuration from which `get` makes an equal backend.

    Args:
        backend: a `Backend` whose class is registered under its `name`.

    Returns:
        A dictionary: the name and what `get_config` returns.

    Raises:
        ValueError: the class is not registered, so `get` could not make one.
    """
    config = backend.get_config()
    known = _class_of(backend.name)
    if known is None or not _is_same(known, type(backend)):
        kind = type(backend).__name__
        taken = "" if known is None else f" ({_full_name(known)} has this name)"
        raise ValueError(
            f"A backend of the class `{kind}` cannot be saved with the "
            "optimizer, as it could not be loaded: the class is not registered "
            f"under the name {backend.name!r}{taken}. Call "
            f'`keras_qpsbgd.backends.register("my_name", {kind})` first. '
            f"Received: backend={backend!r}"
        )
    return {"name": backend.name, **config}


def _class_of(name):
    """The class that `get` makes for a name, `None` if there is none."""
    # Entry points are only looked up if need be: that reads files.
    entry = _entries.get(name) or _all_entries().get(name)
    return None if entry is None else entry.load()


def _is_same(first, second):
    """Whether two classes are one, perhaps defined again."""
    return first is second or _full_name(first) == _full_name(second)


def _full_name(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def available() -> list[Availability]:
    """All known backends and whether they can run here.

    Returns:
        A list of `Availability(name, available, missing, summary)`.
    """
    rows = []
    for name, entry in _all_entries().items():
        missing = _missing(entry)
        summary = entry.summary
        if not missing:
            try:
                backend_class = entry.load()
                missing = backend_class.configuration_missing()
                summary = summary or _first_line(backend_class)
            except Exception as error:  # a plug-in may fail in any way
                missing = f"cannot be imported ({error})"
        rows.append(Availability(name, not missing, missing, summary))
    return rows


def _all_entries():
    entries = dict(_entries)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        entries.setdefault(point.name, _Entry(point.load))
    return entries


def _missing(entry):
    absent = [name for name in entry.requires if not _is_installed(name)]
    if not absent:
        return ""
    return (
        f"{', '.join(absent)} is not installed "
        f'(`python -m pip install "{entry.install}"`)'
    )


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _first_line(backend_class):
    return (backend_class.__doc__ or "").strip().partition("\n")[0]
