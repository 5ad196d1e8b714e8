"""Fixtures of the tests of the report page."""

import pytest
import recorded


@pytest.fixture
def run():
    return recorded.make_run()
