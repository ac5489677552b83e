"""Fixtures of the tests with real processes."""

from collections.abc import Iterator

import pytest

from tests.support.processes import Forge


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    forge = Forge()
    yield forge
    forge.close()
