"""A connector's own tool can be put through the kit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import current_execution
from openworker_durable.hosts.reference import tool
from openworker_durable.testing import (
    ACTS,
    CRASH_POINTS,
    CrashLab,
    EffectService,
    Kill,
    Tools,
    check_invariants,
    one_turn,
    reply,
)

pytestmark = pytest.mark.crash

REPLIES = (reply(("c", "publish", {"page": "home", "key": "k"})), "done")


def make_tools(tools: Tools) -> list[Any]:
    def publish(page: str, key: str) -> dict[str, Any]:
        """Publish a page under the execution's own idempotency key."""
        now = current_execution()
        own = now.idempotency_key if now else ""
        return tools.act("publish", key, page=page, idempotency_key=own)

    return [tool(publish, metadata=ACTS)]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[CrashLab]:
    with EffectService() as service:
        yield CrashLab(tmp_path, service)


@pytest.mark.parametrize("place", CRASH_POINTS)
@pytest.mark.parametrize("by", ["prompt", "grant"])
def test_a_tool_of_ones_own(lab: CrashLab, by: str, place: str) -> None:
    scenario = one_turn(
        lab.folder(), REPLIES, authorised_by=by, tools=f"{__name__}:make_tools", kill=Kill(place)
    )
    assert lab.run(scenario).killed
    outcome = lab.run(scenario.then())
    assert check_invariants(outcome) == []
    assert outcome.count("k") == (place != "in_tool_before_effect")
    keys = {e.body["idempotency_key"] for e in outcome.effects}
    assert keys == {r.execution_id for r in outcome.rows if outcome.effects}
