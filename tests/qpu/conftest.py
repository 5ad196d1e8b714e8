"""Makes the tests on a real QPU opt-in, because they use paid QPU time."""

import os

import pytest

VARIABLE = "KERAS_QPSBGD_QPU_TESTS"


@pytest.fixture(scope="session", autouse=True)
def opt_in():
    if os.environ.get(VARIABLE) != "1":
        pytest.skip(f"uses paid QPU time; set {VARIABLE}=1 to run it")
