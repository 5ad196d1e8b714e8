"""Fixtures for the tests of the backends."""

import collections

import pytest

from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph import relaxed


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Hides what other tests have compiled, as in a new process."""
    for owner in (native.NativeBackend, relaxed.RidgeBackend):
        monkeypatch.setattr(
            owner, "_compiled", collections.OrderedDict(), raising=False
        )
