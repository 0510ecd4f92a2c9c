"""The fixtures of the session tests: the laboratory, and either host with the plugin attached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from openworker_durable.hosts.attach import attach
from openworker_durable.hosts.names import REFERENCE, HostNames
from openworker_durable.hosts.openworker import OPENWORKER
from tests import needs
from tests.host.harness import Lab, laboratory

HOSTS = [
    pytest.param(REFERENCE, id="reference"),
    pytest.param(OPENWORKER, id="openworker", marks=needs.host),
]


@pytest_asyncio.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path) as made:
        yield made


@pytest.fixture(params=HOSTS)
def host(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HostNames]:
    """Yield the names of each host, attached, which takes nothing from this machine's person."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COWORKER_STATE_DIR", str(tmp_path / "person"))
    monkeypatch.setenv("COWORKER_SCRATCH_BASE", str(tmp_path / "scratch"))
    attachment = attach(request.param)
    yield request.param
    attachment.detach()
