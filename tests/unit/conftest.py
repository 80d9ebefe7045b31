"""How thorough properties are: 10 examples each in every run, 1,000 with HYPOTHESIS_PROFILE=thorough.

``make unit`` sets HYPOTHESIS_PROFILE=loop, see examples.py.
"""

from __future__ import annotations

import logging

import pytest
from hypothesis import settings

from tests.unit.examples import PROFILE

settings.register_profile("quick", max_examples=10, deadline=None)
settings.register_profile("loop", parent=settings.get_profile("quick"))
settings.register_profile("thorough", max_examples=1_000, deadline=None)
settings.load_profile(PROFILE)


@pytest.fixture(scope="session")
def broker():
    """Unit tests run without one: a test that needs it belongs to tests/broker or tests/worker."""
    pytest.fail("tests/unit has no broker", pytrace=False)


@pytest.fixture(autouse=True)
def _pythons_log_level():
    """An in-process worker of another test, in the same process, sets the level of the root logger to ERROR."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.WARNING)
    yield
    root.setLevel(level)
