"""Fixtures for the tests of dataset files."""

import contextlib
import hashlib
import os
import pathlib
import sys
import warnings

import pytest

from keras_qpsbgd.datasets import files

ROOT = pathlib.Path(__file__).parents[2]
REAL = pathlib.Path(
    os.environ.get("KERAS_QPSBGD_DATA") or ROOT.parent / "shared" / "data"
)


@pytest.fixture
def real():
    if not (REAL / "mnist.npz").is_file():
        pytest.skip("the real datasets are not on this machine")
    return REAL


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """Hides the data folder and the cache of the user."""
    monkeypatch.delenv("KERAS_QPSBGD_DATA", raising=False)
    monkeypatch.setenv("KERAS_QPSBGD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Returns a function that publishes a file for download."""

    def publish(place, content, address=None):
        if address is None:
            path = tmp_path / "origin" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            address = path.as_uri()
        checksum = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(files.SOURCES, place, (address, checksum))

    return publish


# --- a guard that detects executed code ---

FORBIDDEN = (
    "ctypes.",
    "exec",
    "ftplib.",
    "import",
    "os.",
    "pickle.find_class",
    "pty.",
    "shutil.",
    "socket.",
    "subprocess.",
    "urllib.",
    "webbrowser.",
)
# Events raised when a folder is read.
HARMLESS = ("os.listdir", "os.scandir", "os.walk")
_seen = None


def _hook(event, arguments):
    if _seen is None:
        return
    if event == "open":
        _, mode, flags = arguments
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
        if not (flags or 0) & writes and not set(mode or "r") & set("wax+"):
            return
    elif event in HARMLESS or not event.startswith(FORBIDDEN):
        return
    _seen.append((event, str(arguments)[:200]))
    raise PermissionError(f"{event} of a hostile file")


@pytest.fixture(scope="session")
def guard():
    """A context in which nothing may be executed, imported or written."""
    sys.addaudithook(_hook)

    @contextlib.contextmanager
    def guard():
        global _seen
        _seen = seen = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield seen
        finally:
            _seen = None

    return guard
