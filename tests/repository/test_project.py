"""The package as a whole: type hints, imports of Keras, and its version."""

import configparser
import inspect
import pathlib
import re

import pytest
import yaml

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]


def public(module, name):
    """Yields the name and function of everything in the public API."""
    for attribute in getattr(module, "__all__", ()):
        value = getattr(module, attribute)
        path = f"{name}.{attribute}"
        if inspect.ismodule(value):
            yield from public(value, path)
        elif inspect.isclass(value):
            for key, member in vars(value).items():
                function = getattr(member, "fget", None) or getattr(
                    member, "__func__", member
                )
                hidden = key.startswith("_") and key != "__init__"
                if inspect.isfunction(function) and not hidden:
                    yield f"{path}.{key}", function
        elif inspect.isfunction(value):
            yield path, value


def test_public_functions_have_type_hints():
    import keras_qpsbgd

    functions = dict(public(keras_qpsbgd, "kq"))
    assert len(functions) > 100
    without = []
    for name, function in functions.items():
        signature = inspect.signature(function)
        for parameter in signature.parameters.values():
            if parameter.name in ("self", "cls"):
                continue
            if parameter.annotation is parameter.empty:
                without.append(f"{name}({parameter.name})")
        if signature.return_annotation is signature.empty:
            without.append(f"{name} ->")
    assert not without


def test_keras_is_imported_from_tensorflow():
    for path in (ROOT / "keras_qpsbgd").rglob("*.py"):
        text = path.read_text()
        found = re.search(r"^\s*(import keras\b|from keras\b)", text, re.M)
        assert not found, path


def test_versions_agree():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    version = settings["metadata"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    entries = re.findall(
        r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert entries[0] == version
