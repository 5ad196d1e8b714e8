"""`python -m keras_qpsbgd report`."""

import pytest
import recorded

from keras_qpsbgd import cli
from keras_qpsbgd.analysis.run import HEADER

pytestmark = pytest.mark.once


def error_line(capsys):
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    return captured.err


def test_report(run, tmp_path, capsys):
    path = recorded.save(run, tmp_path / "wine.run")
    assert cli.main(["report", str(path)]) == 0
    page = tmp_path / "wine.html"
    assert str(page) in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "wine.run" in text
    out = tmp_path / "new" / "other.html"
    assert cli.main(["report", str(path), "--output", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == text


def test_report_of_a_cut_file(run, tmp_path):
    path = recorded.save(run, tmp_path / "wine.run")
    path.write_bytes(path.read_bytes()[:-50])
    assert cli.main(["report", str(path)]) == 0
    text = path.with_suffix(".html").read_text(encoding="utf-8")
    assert "This run is incomplete" in text


@pytest.mark.parametrize("kind", ["folder", "other", "damaged"])
def test_bad_files(kind, tmp_path, capsys):
    path = tmp_path / "a.run"
    if kind == "folder":
        path.mkdir()
    elif kind == "other":
        path.write_bytes(b"something else")
    elif kind == "damaged":  # valid checksums, but not our records
        import struct
        import zlib

        frame = struct.pack("<QI", 3, zlib.crc32(b"abc"))
        path.write_bytes(HEADER + frame + b"abc")
    assert cli.main(["report", str(path)]) == 1
    assert "`RUN` must be a file" in (line := error_line(capsys))
    assert str(path) in line
    assert not path.with_suffix(".html").exists()


def test_page_does_not_replace_the_run(run, tmp_path, capsys):
    path = recorded.save(run, tmp_path / "wine.html")
    before = path.read_bytes()
    assert cli.main(["report", str(path)]) == 1
    assert "`--output` must be another file" in error_line(capsys)
    assert path.read_bytes() == before


def test_page_that_cannot_be_written(run, tmp_path, capsys):
    path = recorded.save(run, tmp_path / "wine.run")
    blocked = path / "page.html"  # a file is not a folder
    with pytest.raises(SystemExit):
        cli.main(["report", str(path), "--output", str(blocked)])
    assert str(blocked) in capsys.readouterr().err
