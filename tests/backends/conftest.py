"""Fixtures for the tests of the backends."""

import collections

import pytest

from keras_qpsbgd.backends.graph import gpu_batches
from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph import relaxed


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Hides what other tests have compiled, as in a new process."""
    for owner in (native.NativeBackend, relaxed.RidgeBackend):
        monkeypatch.setattr(
            owner, "_compiled", collections.OrderedDict(), raising=False
        )


@pytest.fixture
def few_slices(monkeypatch, nothing_compiled):
    """Compiles faster. Only the energies depend on the number of slices."""
    monkeypatch.setattr(gpu_batches, "SLICES", 3)
    monkeypatch.setattr(local_search, "BLOCK", 4)


@pytest.fixture(autouse=True)
def few_slices_in_variants(request):
    """Uses few slices in variants of tests with `search="parallel"`."""
    _, _, variant = request.node.name.partition("[")
    if "parallel" in variant:
        request.getfixturevalue("few_slices")
