"""Fixtures: a fresh record in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openworker_durable.ledger import DATABASE, Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the record's file is, or will be."""
    return tmp_path / DATABASE


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """An open ledger that is closed afterwards."""
    ledger = Ledger(path)
    yield ledger
    ledger.close()
