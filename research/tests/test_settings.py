"""The files of settings and versions of an experiment."""

import contextlib
import json

import pytest

from keras_qpsbgd.comparison import records
from research.experiments import reproduce
from research.experiments.options import Options


def test_another_command_starts_with_other_options(tmp_path, monkeypatch):
    """It uses the folder and ends while this one prepares the data."""

    @contextlib.contextmanager
    def locked(folders):
        for folder in folders:
            reproduce.write_settings(folder, Options(quick=True))
        yield

    monkeypatch.setattr(records, "locked", locked)
    with pytest.raises(ValueError, match="other options: --quick"):
        reproduce.reproduce(["karate"], Options(methods=("native",)), tmp_path)
    settings = json.loads((tmp_path / "karate" / "settings.json").read_text())
    assert settings["quick"] is True


def test_files_that_are_not_json(tmp_path):
    for name, read in (
        ("meta.json", lambda: records.read_meta(tmp_path)),
        (
            "settings.json",
            lambda: reproduce._check_settings(tmp_path, Options()),
        ),
    ):
        (tmp_path / name).write_text("")
        with pytest.raises(ValueError, match=f"{name} is not .* Received: b''"):
            read()
