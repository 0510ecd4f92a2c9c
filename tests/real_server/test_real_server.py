"""A few rounds against the real server; the module's main runs many."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("kills process groups, as POSIX systems have them", allow_module_level=True)
pytest.importorskip("coworker", reason="the real host is not installed here")
pytest.importorskip("mcp", reason="the MCP package is not installed here")
pytest.importorskip("websockets", reason="the web-socket client is not installed here")

from .__main__ import run, table  # after the checks above: it imports what they look for
from .rounds import Round, Seen


@pytest.mark.crash
def test_rounds_leave_nothing_repeated_open_or_dead(tmp_path: Path) -> None:
    done, model = run(2, 7, alone=False, folder=tmp_path)
    assert not [seen for seen in done if seen.notes], table(done, model)


def _round(sent: list[str], resolution: str) -> Round:
    """Return a round whose server did `sent`, and whose person answered its one item."""
    item: dict[str, Any] = {
        "resolution": resolution, "data": {"recovery": {"tool_call_id": "c_r1_0"}},
    }  # fmt: skip
    played = Round.__new__(Round)
    played.name, played.seen = "r1", Seen({})
    played.server = SimpleNamespace(sent=lambda: sent, get=lambda *_, **__: {"items": [item]})  # type: ignore[assignment]  # two answers are all it is asked for
    return played


@pytest.mark.parametrize(
    ("sent", "resolution", "repeats"),
    [
        (["r1.0"], "happened", 0), (["r1.0"] * 2, "happened", 1), (["r1.0"] * 2, "retry", 0),
        (["r1.0"] * 3, "retry", 1),
    ],
)  # fmt: skip
def test_the_check_for_repeats_sees_one(sent: list[str], resolution: str, repeats: int) -> None:
    played = _round(sent, resolution)
    played._count_repeats()
    assert played.seen.repeats == repeats, Counter(sent)
