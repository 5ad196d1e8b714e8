"""Sources of files: folders, the cache, downloads."""

import hashlib
import http.server
import sys
import threading

import planetoid
import pytest

from keras_qpsbgd import datasets
from keras_qpsbgd.datasets import files

pytestmark = pytest.mark.once


def test_missing_file(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        datasets.citation("cora", tmp_path)
    message = str(error.value)
    for expected in (
        "ind.cora.x",
        str(tmp_path / "Citation" / "cora" / "ind.cora.x"),
        f"{tmp_path / 'cora'}, {tmp_path}",
        "`download=True`",
        "https://",
        "KERAS_QPSBGD_DATA",
        "Received: ",
    ):
        assert expected in message
    with pytest.raises(datasets.MissingFile, match="a1a or a1a.gz"):
        datasets.adult(tmp_path)
    cache = tmp_path / "cache" / "datasets"
    with pytest.raises(datasets.MissingFile, match=str(cache)):
        datasets.mnist()
    with pytest.raises(datasets.MissingFile, match="cannot be downloaded"):
        datasets.citation("tiny", tmp_path, download=True)
    assert not list(tmp_path.iterdir())


def test_cache_without_platformdirs(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_QPSBGD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert files.folder().parent.name == "keras_qpsbgd"
    assert files.folder().name == "datasets"


def test_damaged_file_is_reported_and_kept(tmp_path):
    planetoid.write(tmp_path, name="cora")
    path = tmp_path / "ind.cora.x"
    before = path.read_bytes()
    with pytest.raises(datasets.DamagedFile) as error:
        datasets.citation("Cora", tmp_path, download=True)
    message = str(error.value)
    assert str(path) in message and "delete it" in message
    place = "Citation/cora/ind.cora.x"
    assert files.SOURCES[place][1] in message
    assert message.endswith(hashlib.sha256(before).hexdigest())
    assert path.read_bytes() == before


def publish_tiny(source, folder):
    planetoid.write(folder)
    for path in folder.iterdir():
        source(f"Citation/tiny/{path.name}", path.read_bytes())


def test_download_to_cache_and_folder(tmp_path, source, monkeypatch):
    publish_tiny(source, tmp_path / "published")
    data = datasets.citation("tiny", download=True)
    assert data.num_nodes == planetoid.NODES
    folder = tmp_path / "cache" / "datasets" / "Citation" / "tiny"
    names = {f"ind.tiny.{part}" for part in files.PARTS}
    assert {path.name for path in folder.iterdir()} == names
    # The files exist now, so nothing is downloaded again.
    monkeypatch.setattr(files, "_download", None)
    datasets.citation("tiny", download=True)
    datasets.citation("tiny")
    monkeypatch.undo()

    publish_tiny(source, tmp_path / "published")
    own = tmp_path / "own"
    monkeypatch.setenv("KERAS_QPSBGD_DATA", str(own))
    with pytest.raises(datasets.MissingFile):
        datasets.citation("tiny")
    datasets.citation("tiny", download=True)
    assert (own / "Citation" / "tiny" / "ind.tiny.graph").is_file()


class HalfAnswer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"half")

    def log_message(self, *_):
        pass


def test_failed_downloads_leave_no_files(tmp_path, source):
    server = http.server.HTTPServer(("127.0.0.1", 0), HalfAnswer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}/a1a"
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"something else")
    missing = tmp_path / "no such file"
    try:
        for address in (here, wrong.as_uri(), missing.as_uri()):
            source("adult/a1a", b"+1 1:1\n", address)
            with pytest.raises(datasets.DownloadFailed) as error:
                datasets.adult(tmp_path / "data", download=True)
            assert address in str(error.value)
            assert "Received: " in str(error.value)
            assert not list((tmp_path / "data" / "adult").iterdir())
    finally:
        server.shutdown()
        server.server_close()


def test_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_QPSBGD_CACHE", "~/here")
    assert files.folder() == tmp_path / "here" / "datasets"


def test_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(datasets.DownloadFailed, match="manually.*Received"):
        datasets.adult(tmp_path / "file", download=True)
