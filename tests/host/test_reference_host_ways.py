"""The reference host alone, beyond its engine: gates, chat, MCP and listing, faults included."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.hosts.reference.interactions import buttons_for, encode
from openworker_durable.hosts.reference.listing import inbox_listing
from openworker_durable.hosts.reference.manager import SessionManager
from openworker_durable.hosts.reference.providers import (
    AssistantTurn,
    Message,
    ScriptedProvider,
    ToolCall,
)
from tests.host.surfaces import Chat, Click, Line, Source
from tests.waiting import until

TEAM = ToolCall("g1", "propose_team", {"members": [{"persona": "tester"}]})
YES = json.dumps({"approved": True})


def _manager(folder: Path, *calls: ToolCall, **more: Any) -> SessionManager:
    script = [AssistantTurn(tool_calls=[call], finish_reason="tool_calls") for call in calls]
    provider = ScriptedProvider.by_progress([*script, AssistantTurn(text="done")])
    return SessionManager(data_dir=folder, workspace=folder, provider=provider, **more)


async def _prompt(manager: SessionManager) -> Any:
    return (await until(lambda: manager.inbox.pending("s1"), "a prompt"))[0]


async def _agreed(manager: SessionManager) -> None:
    turn = asyncio.ensure_future(manager.drive_attended("s1", "go"))
    await manager.resolve_inbox((await _prompt(manager)).id, YES)
    await turn


def _teams(folder: Path) -> int:
    return len((folder / "teams.jsonl").read_text().splitlines())


def _answer(manager: SessionManager) -> Message:
    return next(m for m in manager.session_messages("s1") if m["role"] == "tool")


async def test_a_gate_does_what_a_person_agreed_to(tmp_path: Path) -> None:
    manager = _manager(tmp_path, TEAM)
    await _agreed(manager)
    assert _teams(tmp_path) == 1
    assert json.loads(_answer(manager)["content"])["approved"] is True


async def test_a_gate_is_not_available_without_a_window(tmp_path: Path) -> None:
    manager = _manager(tmp_path, TEAM)
    await manager.deliver_to_session("s1", "go")
    assert "nobody can be asked" in _answer(manager)["content"]
    assert manager.inbox.list() == []


async def test_fault_an_agreed_gate_is_forgotten_by_a_rebuilt_engine(tmp_path: Path) -> None:
    first = _manager(tmp_path, TEAM)
    turn = asyncio.ensure_future(first.drive_attended("s1", "go"))
    item = await _prompt(first)
    second = _manager(tmp_path, TEAM)  # as a new process finds it
    await second.resolve_inbox(item.id, YES)
    assert "nobody can be asked" in _answer(second)["content"]
    assert not (tmp_path / "teams.jsonl").exists()
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)


def _chatting(folder: Path, kind: str) -> tuple[SessionManager, Any]:
    manager = _manager(folder)
    manager.inbox_routing.set_binding("default", channel="slack", target="C1")
    host: Any = manager
    host.slack_approval_owner_ids = lambda team_id=None: {"U1"}
    host.gateway = Chat()
    return manager, manager.inbox.add("s1", kind, "Well?", options=["yes", "no"])


async def test_a_strangers_click_on_an_approval_is_rejected(tmp_path: Path) -> None:
    manager, item = _chatting(tmp_path, "approval")
    await manager._on_interaction(Click(encode(item.id, "allow"), user_id="U2"))
    assert item.state == "pending"
    await manager._on_interaction(Click(encode(item.id, "allow"), user_id="U1"))
    assert item.resolution == "allow"


async def test_fault_anybody_may_answer_an_item_of_another_kind(tmp_path: Path) -> None:
    manager, item = _chatting(tmp_path, "question")
    await manager._on_interaction(Click(encode(item.id, "yes"), user_id="U2"))
    assert item.resolution == "yes"


async def test_fault_a_reply_resumes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, item = _chatting(tmp_path, "approval")
    resumed: list[Any] = []
    monkeypatch.setattr(manager, "_durable_resume", resumed.append)
    assert manager._resolve_inbox_reply(Line(f"approve [ow:{item.id}]", Source()))
    assert (item.resolution, resumed) == ("allow", [])


def test_buttons_stand_for_an_items_few_choices(tmp_path: Path) -> None:
    manager, item = _chatting(tmp_path, "question")
    assert [b.label for b in buttons_for(item)] == ["yes", "no"]
    assert buttons_for(manager.inbox.add_notification("s1", "note")) == []


async def test_fault_a_delivery_caches_an_engine_without_its_mcp_tools(tmp_path: Path) -> None:
    def send(to: str = "") -> dict[str, Any]:
        return {"sent": to}

    manager = _manager(tmp_path, mcp_servers={"mail": [send]})
    await manager.deliver_to_session("s1", "hello")
    await manager.drive_attended("s1", "hello again")
    assert manager.get_engine("s1").registry.get("mcp__mail__send") is None


def test_fault_one_unreadable_conversation_stops_the_whole_listing(tmp_path: Path) -> None:
    manager = _manager(tmp_path)
    manager.persist_session("s1")
    manager.save("s1", manager.get_engine("s1"))
    manager.session_store._file("s1").write_text("{torn\n")
    manager._engines.clear()
    manager.inbox.add("s1", "approval", "Run?")
    with pytest.raises(ValueError, match=r"\w"):
        inbox_listing(manager)


def test_a_listing_closes_what_belongs_to_no_session(tmp_path: Path) -> None:
    manager = _manager(tmp_path)
    item = manager.inbox.add("gone", "approval", "Run?")
    assert inbox_listing(manager) == []
    assert item.resolution == "session deleted"
