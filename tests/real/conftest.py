"""Fixtures of the tests on the real host; every test uses `real`, which skips without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.nursery import Nursery, Real, why_not


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = Nursery(tmp_path_factory.mktemp("home"))
    yield made
    made.close()


@pytest.fixture
def real(nursery: Nursery, tmp_path: Path) -> Real:
    return Real(nursery, tmp_path)
