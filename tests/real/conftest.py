"""Fixtures of the tests on the real host; every test uses `real`, which skips without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.real.nursery import Nursery, Real


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    needs.need_host("coworker")
    needs.need(hasattr(os, "fork"), "forks and kills processes, as POSIX systems can")
    made = Nursery(tmp_path_factory.mktemp("home"))
    yield made
    made.close()


@pytest.fixture
def real(nursery: Nursery, tmp_path: Path) -> Real:
    return Real(nursery, tmp_path)
