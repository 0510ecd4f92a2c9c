"""The laboratory fixture of the session tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.host.harness import Lab, laboratory


@pytest_asyncio.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path) as made:
        yield made
