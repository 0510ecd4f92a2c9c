"""A few rounds against the real server; the module's main runs many."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

# What the rounds import (an HTTP and a web-socket client, MCP) comes with the host.
pytestmark = [needs.host, needs.sigkill]


@pytest.mark.crash
def test_rounds_leave_nothing_repeated_open_or_dead(tmp_path: Path) -> None:
    from .__main__ import run, table

    done, model = run(2, 7, alone=False, folder=tmp_path)
    assert not [seen for seen in done if seen.notes], table(done, model)


@pytest.mark.parametrize(
    ("times", "resolution", "repeats"),
    [(1, "happened", 0), (2, "happened", 1), (2, "retry", 0), (3, "retry", 1)],
)
def test_the_check_for_repeats_sees_one(times: int, resolution: str, repeats: int) -> None:
    """A letter was sent so many times, and the one item about it was answered so."""
    from .rounds import Round, Seen

    item = {"resolution": resolution, "data": {"recovery": {"tool_call_id": "c_r1_0"}}}
    server: Any = SimpleNamespace(
        sent=lambda: ["r1.0"] * times, get=lambda *_, **__: {"items": [item]}
    )
    played = Round.__new__(Round)
    played.name, played.seen, played.server = "r1", Seen({}), server
    played._count_repeats()
    assert played.seen.repeats == repeats
