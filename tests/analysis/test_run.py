"""Recorded runs: what is written is read, also from a file that was cut."""

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.analysis import common
from keras_qpsbgd.analysis import run as runs

pytestmark = pytest.mark.once


def update(step, samples=True):
    qubo = kq.Qubo.from_rows(*tools.rows_and_gradients(step))
    n, m = qubo.fields.shape
    rng = np.random.default_rng(step)
    reads = rng.choice([-1, 1], (4, n, m)).astype(np.int8)
    energies = np.stack([qubo.energy(read) for read in reads])
    return kq.analysis.Update(
        step,
        "dense",
        qubo,
        reads[0],
        reads if samples else None,
        energies if samples else None,
        {"qpu_access_time": np.float64(3.5), "timing": {"a": [1, 2]}},
    )


def write(path, number=3):
    ends = []
    with open(path, "wb") as file:
        file.write(runs.HEADER)
        settings = {"version": "1", "backend": {"name": "native"}}
        runs.append(file, "settings", settings)
        for step in range(number):
            runs.append_update(file, update(step, samples=step % 2 == 0))
            ends.append(file.tell())
        runs.append(file, "epoch", {"loss": np.float32(0.5)})
        runs.append(file, "end", {})
    return ends


def assert_same(found, expected):
    assert (found.step, found.layer) == (expected.step, expected.layer)
    for name in ("states", "samples", "sample_energies"):
        one, two = getattr(found, name), getattr(expected, name)
        assert (one is None) == (two is None)
        if one is not None:
            np.testing.assert_array_equal(one, two)
    for name in ("couplings", "fields", "offset"):
        np.testing.assert_array_equal(
            getattr(found.qubo, name), getattr(expected.qubo, name)
        )
    assert found.info == {"qpu_access_time": 3.5, "timing": {"a": [1, 2]}}
    np.testing.assert_array_equal(found.energies, expected.energies)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "run"
    write(path)
    run = kq.analysis.load_run(path)
    assert run.complete and run.layers == ["dense"]
    assert run.settings == {"version": "1", "backend": {"name": "native"}}
    assert run.epochs == [{"loss": 0.5}]
    assert len(run.of_layer("dense")) == 3
    for step, found in enumerate(run.updates):
        assert_same(found, update(step, samples=step % 2 == 0))


def test_files_cut_anywhere_keep_their_complete_records(tmp_path):
    path = tmp_path / "run"
    ends = write(path)
    content = path.read_bytes()
    for length in range(len(runs.HEADER), len(content), 97):
        path.write_bytes(content[:length])
        run = kq.analysis.load_run(path)
        assert not run.complete
        assert len(run.updates) == sum(end <= length for end in ends)


def test_damaged_record_ends_the_run(tmp_path):
    path = tmp_path / "run"
    ends = write(path)
    content = bytearray(path.read_bytes())
    content[ends[0] + 200] ^= 1
    path.write_bytes(content)
    run = kq.analysis.load_run(path)
    assert len(run.updates) == 1 and not run.complete


def test_other_files_and_layers(tmp_path):
    path = tmp_path / "run"
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"QuboRecorder.*Received: path="):
        kq.analysis.load_run(path)
    with pytest.raises(FileNotFoundError):
        kq.analysis.load_run(tmp_path / "missing")
    with pytest.raises(ValueError, match="`layer` must be one of"):
        kq.analysis.Run().of_layer("dense")
    qubo = kq.Qubo(np.eye(2), np.ones((2, 1)))
    blocks = [
        kq.analysis.Update(0, name, qubo, np.ones((2, 1)))
        for name in ("wide[0]", "wide[1]", "wider")
    ]
    run = kq.analysis.Run(updates=blocks)
    with pytest.raises(ValueError, match=r"of \['wide\[0\]', 'wide\[1\]'\]"):
        run.of_layer("wide")
    assert run.of_layer("wide[1]") == blocks[1:2]


def test_missing_packages_are_named():
    with pytest.raises(ImportError, match=r"keras_qpsbgd\[analysis\]"):
        common.require("no_such_package")
