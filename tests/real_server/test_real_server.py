"""A few rounds against the real server; the module's main runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("coworker", reason="the real host is not installed here")
pytest.importorskip("mcp", reason="the MCP package is not installed here")
pytest.importorskip("websockets", reason="the web-socket client is not installed here")

from .__main__ import run, table  # after the checks above: it imports what they look for


@pytest.mark.crash
def test_rounds_leave_nothing_repeated_open_or_dead(tmp_path: Path) -> None:
    done, model = run(2, 7, alone=False, folder=tmp_path)
    assert not [seen for seen in done if seen.notes], table(done, model)
