"""The chip of these tests: a mock, or your QPU if you ask for it.

With `KERAS_QPSBGD_QPU_TESTS=1`, the tests use paid QPU time, about 0.5 s and at
most `BUDGET_SECONDS`. D-Wave's configuration chooses the QPU. A table of the
answers is printed at the end.
"""

import importlib.metadata
import os

import offline
import pytest

import keras_qpsbgd as kq

VARIABLE = "KERAS_QPSBGD_QPU_TESTS"
BUDGET_SECONDS = 5.0
IS_LIVE = os.environ.get(VARIABLE) == "1"

_table = []


class Chip:
    """A sampler that records its calls, with one budget for all tests.

    Attributes:
        calls: List of tuples `(bqm, parameters)`.
        rows: List of tuples of strings, the rows of the table at the end.
    """

    def __init__(self, sampler):
        from keras_qpsbgd.backends.dwave.cost import Budget

        self._sampler = sampler
        self._open = offline.qpu(self).open()
        self.budget = Budget(BUDGET_SECONDS)
        self.calls = []
        self.rows = _table

    def __getattr__(self, name):
        return getattr(self._sampler, name)

    def sample(self, bqm, **parameters):
        self.calls.append((bqm.copy(), parameters))
        return self._sampler.sample(bqm, **parameters)

    def backend(self, **options):
        """Returns a backend that uses the budget and the known embeddings."""
        backend = offline.qpu(
            self,
            retries=0,
            qpu_budget_seconds=BUDGET_SECONDS,
            **{"num_reads": 100, **options},
        )
        backend.budget, backend._handle = self.budget, self._open
        return backend


def connect(name):
    """Returns the sampler of a backend, or skips the test."""
    backend = kq.backends.get(name)
    try:
        return backend.open()
    except kq.backends.BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def chip():
    pytest.importorskip("dwave.system")
    if IS_LIVE:
        sampler = connect("dwave").sampler
    else:
        from keras_qpsbgd.backends.dwave.mock import MockQPU

        sampler = MockQPU("pegasus", shape=[7], num_sweeps=30)
    solver = sampler.properties.get("chip_id") or type(sampler).__name__
    _table.append((f"{solver}, {len(sampler.nodelist)} qubits",))
    return Chip(sampler)


@pytest.fixture(scope="session")
def hybrid():
    pytest.importorskip("dwave.system")
    if IS_LIVE:
        return kq.backends.get("leap_hybrid", sampler=connect("leap_hybrid"))
    return offline.hybrid()


def pytest_terminal_summary(terminalreporter):
    """Prints what the chip answered, to post in an issue."""
    if not _table or not IS_LIVE:
        return
    names = ("keras_qpsbgd", "dwave-system", "dwave-cloud-client", "numpy")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    terminalreporter.section("QPU")
    terminalreporter.write_line(", ".join(versions))
    for row in _table:
        terminalreporter.write_line(" | ".join(row))
