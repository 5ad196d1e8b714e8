"""The repository itself: import layers, types, style, README, CI."""

import configparser
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted((ROOT / "keras_qpsbgd").rglob("*.py"))


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_imports_follow_the_layers():
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml")) == 0


def test_types():
    done = run("mypy")
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_style():
    for command in (["check", "."], ["format", "--check", "."]):
        done = run("ruff", *command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_keras_is_imported_from_tensorflow():
    for path in SOURCES:
        text = path.read_text()
        found = re.search(r"^\s*(import keras\b|from keras\b)", text, re.M)
        assert not found, path


def test_readme_commands():
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^python -m pip install .*$", readme, re.M)
    assert len(commands) == 2
    assert commands[0].endswith("python -m keras_qpsbgd demo")
    assert commands[1].endswith("python -m pytest -n 2")


def test_ci_runs_the_documented_commands():
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    ci = (ROOT / ".ci" / "run").read_text()
    for command in (
        "python -m pytest -n 2 research/tests",
        "python -m pytest -n 2 -m slow",
        "TF_USE_LEGACY_KERAS=1 python -m pytest -n 2",
    ):
        assert f"\n{command} " in contributing
        assert f'"{command}' in ci
    (folders,) = re.findall(r'^legacy="(.*)"$', ci, re.M)
    assert all((ROOT / folder).exists() for folder in folders.split())


def test_workflow_runs_the_same_tests_as_ci():
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    )
    commands = {
        name: [step["run"] for step in job["steps"] if "run" in step]
        for name, job in workflow["jobs"].items()
    }
    # One job per version of Python runs what a clean checkout runs here. The
    # others repeat the README's command with other versions of Keras.
    assert commands.pop("newest") == [".ci/run"]
    readme = (ROOT / "README.md").read_text()
    pattern = r"^python -m pip install .* pytest.*$"
    (command,) = re.findall(pattern, readme, re.M)
    install, tests = command.split(" && ")
    for runs in commands.values():
        assert runs[0].endswith(f" && {tests}")
        assert all(run.startswith(tests) for run in runs[1:])
        assert runs[0].startswith(install.split(" install ")[0])
    legacy = workflow["jobs"]["legacy"]["steps"]
    settings = [step["env"] for step in legacy if "run" in step]
    assert settings == [{"TF_USE_LEGACY_KERAS": "1"}] * len(settings)


def settings():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_versions_agree():
    version = settings()["metadata"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    changelog = (ROOT / "CHANGELOG.md").read_text()
    entry, date = re.findall(r"^## (\d\S+) \((.+)\)$", changelog, re.M)[0]
    assert entry == version
    assert date == str(citation["date-released"])


def test_versions_of_python_agree():
    """Those of the classifiers, the tests, and the wheels."""
    pattern = r"Python :: (3\.\d+)"
    versions = re.findall(pattern, settings()["metadata"]["classifiers"])
    assert settings()["options"]["python_requires"] == f">={versions[0]}"
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    jobs = yaml.safe_load(workflow)["jobs"]
    assert jobs["newest"]["strategy"]["matrix"]["python"] == versions
    project = (ROOT / "pyproject.toml").read_text()
    (builds,) = re.findall(r"^build = (\[.*\])$", project, re.M)
    wanted = [f"cp{version.replace('.', '')}-*" for version in versions]
    assert yaml.safe_load(builds) == wanted


def test_install_lines_work_outside_of_a_clone():
    """After the first install, extras are named with the package."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.py"), *SOURCES]
    pages += [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("docs/*/*.ipynb")]
    extras = settings()["options.extras_require"]
    in_a_clone = []
    for path in pages:
        for line in re.findall(r"pip install[^`\n]*", path.read_text()):
            in_a_clone += [path.name] * bool(re.search(r' [\\"]*\.', line))
            for names in re.findall(r"keras_qpsbgd\[([\w,]+)\]", line):
                assert all(name in extras for name in names.split(",")), line
    # The first install, the tests, and what contributors install.
    assert set(in_a_clone) == {"README.md", "index.md", "CONTRIBUTING.md"}
    assert in_a_clone.count("README.md") == 2
    assert in_a_clone.count("index.md") == 1
