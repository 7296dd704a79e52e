"""Fixtures of several modules."""

from __future__ import annotations

from collections.abc import Iterator

import namespaces
import pytest


@pytest.fixture
def network() -> Iterator[namespaces.Network]:
    """A network without machines; the test is skipped where none can be made."""
    if why := namespaces.lacks():
        pytest.skip(why)
    with namespaces.network() as made:
        yield made
