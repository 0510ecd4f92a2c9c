"""The fixtures of the MCP tests: a service for each transport, a guard, the SDK with our hook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openworker_durable.guard import Guard
from openworker_durable.hosts.mcp_hooks import MCP
from openworker_durable.hosts.patching import Patches
from openworker_durable.hosts.reference.tools import ToolRegistry
from openworker_durable.staged import record_in
from tests.mcp_service.client import TRANSPORTS, Service, service


@pytest.fixture(params=TRANSPORTS)
def mail(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path / "mail", request.param) as made:
        yield made


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    folder = tmp_path / "record"
    folder.mkdir()
    with record_in(folder) as made:
        yield made


@pytest.fixture
def hooked() -> Iterator[Patches]:
    """Attach the hook for the SDK, and take it away."""
    patches = Patches()
    MCP.attach(patches, ToolRegistry)
    yield patches
    patches.restore()
