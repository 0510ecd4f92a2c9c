"""The reference host's session manager: prompts, restarts, checkpoints, automations, faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.hosts.reference import (
    AssistantTurn,
    InboxItem,
    ScheduledTask,
    ScriptedProvider,
    SessionManager,
    ToolCall,
    ToolMetadata,
    tool,
)
from openworker_durable.hosts.reference.automation import TaskRun
from openworker_durable.hosts.reference.engine import PermissionRequest
from openworker_durable.hosts.reference.providers import Step
from tests.waiting import until

SID = "s"


class World:
    """What the tools did, and managers over one state folder, as many as there are restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[str] = []
        self.live: list[SessionManager] = []
        self.before_return: Callable[[], None] = lambda: None

    def send_tool(self) -> Any:
        def send(to: str) -> dict[str, str]:
            """Send something."""
            self.sent.append(to)
            self.before_return()
            return {"sent": to}

        return tool(send, metadata=ToolMetadata(risk_level="high", requires_approval=True))

    def start(self, *turns: Step) -> SessionManager:
        manager = SessionManager(
            workspace=self.folder,
            provider=ScriptedProvider.by_progress(turns),
            tools=[self.send_tool()],
        )
        self.live.append(manager)
        return manager


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def send_to(person: str, call_id: str = "call_0") -> AssistantTurn:
    return AssistantTurn(tool_calls=[ToolCall(call_id, "send", {"to": person})])


async def prompts_of(manager: SessionManager, count: int = 1) -> list[InboxItem]:
    """Wait until that many items are pending."""
    await until(lambda: len(manager.inbox.pending()) >= count, "prompts")
    return manager.inbox.pending()


async def prompt_of(manager: SessionManager) -> InboxItem:
    return (await prompts_of(manager))[0]


async def answered(manager: SessionManager, resolution: str, turn: asyncio.Task[Any]) -> None:
    item = await prompt_of(manager)
    assert await manager.resolve_inbox(item.id, resolution)
    await turn


def saved_roles(manager: SessionManager, session_id: str = SID) -> list[str]:
    record = manager.session_store.load(session_id)
    return [m["role"] for m in record.messages] if record else []


async def test_an_attended_turn_asks_inline_and_broadcasts(world: World) -> None:
    manager = world.start(send_to("ann"))
    seen: list[str] = []

    async def watch(message: dict[str, Any]) -> None:
        seen.append(message["type"])

    manager.register_session_client(SID, watch)
    turn = asyncio.create_task(manager.drive_attended(SID, "mail ann"))
    item = await prompt_of(manager)
    assert item.visibility == "inline"
    assert saved_roles(manager) == ["user", "assistant"]
    assert manager.list_sessions()[0]["attention"] == 1
    assert await manager.drive_attended(SID, "hello?") is False
    manager.resolve_pending(SID, "once")
    assert await turn is True
    assert world.sent == ["ann"]
    assert seen[0] == "turn_start"
    assert seen[-2:] == ["turn_end", "turn_done"]
    assert saved_roles(manager) == ["user", "assistant", "tool", "assistant"]
    assert not manager.is_running(SID)


async def test_fault_a_finished_tool_is_no_checkpoint(world: World) -> None:
    manager = world.start(send_to("ann"))
    at_finish: list[str] = []

    async def watch(message: dict[str, Any]) -> None:
        if message["type"] == "tool_finished":
            at_finish.extend(saved_roles(manager))

    manager.register_session_client(SID, watch)
    turn = asyncio.create_task(manager.drive_attended(SID, "mail ann"))
    await answered(manager, "allow", turn)
    assert at_finish == ["user", "assistant"]


async def test_fault_a_second_call_0_runs_unasked_on_the_old_approval(world: World) -> None:
    manager = world.start(send_to("ann"), send_to("bob"))
    turn = asyncio.create_task(manager.deliver_to_session(SID, "mail both"))
    await answered(manager, "allow", turn)
    assert world.sent == ["ann", "bob"]
    assert len(manager.inbox.list(session_id=SID)) == 1


async def test_fault_a_restart_runs_an_approved_call_again(world: World) -> None:
    first = world.start(send_to("ann"))
    copied: list[bytes] = []
    thread = first.session_store._file(SID)
    world.before_return = lambda: copied.append(thread.read_bytes())
    turn = asyncio.create_task(first.deliver_to_session(SID, "mail ann"))
    await answered(first, "allow", turn)
    thread.write_bytes(copied[0])  # what a kill inside the tool would have left

    second = world.start(send_to("ann"))
    async for _event in second.get_engine(SID).resume():
        pass
    assert world.sent == ["ann", "ann"]


async def test_an_approval_after_a_restart_resumes_the_turn(world: World) -> None:
    first = world.start(send_to("ann"))
    turn = asyncio.create_task(first.deliver_to_session(SID, "mail ann"))
    item = await prompt_of(first)
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)

    second = world.start(send_to("ann"))
    assert await second.resolve_inbox(item.id, "allow")
    assert world.sent == ["ann"]
    assert saved_roles(second) == ["user", "assistant", "tool", "assistant"]
    assert not await second.resolve_inbox(item.id, "deny")


async def test_fault_a_resolution_from_the_socket_takes_the_oldest_item(world: World) -> None:
    manager = world.start(send_to("ann"))
    older = manager.inbox.add_question(SID, "what happened?")
    turn = asyncio.create_task(manager.deliver_to_session(SID, "mail ann"))
    await prompts_of(manager, 2)
    manager.resolve_pending(SID, "once")
    assert older.resolution == "once"
    assert world.sent == []
    await answered(manager, "deny", turn)


async def test_a_grant_survives_a_restart(world: World) -> None:
    first = world.start(send_to("ann", "a"))
    turn = asyncio.create_task(first.deliver_to_session(SID, "mail ann"))
    await answered(first, "always", turn)
    second = world.start(send_to("ann"), AssistantTurn(text="-"), send_to("bob", "b"))
    await second.deliver_to_session(SID, "mail bob")
    assert world.sent == ["ann", "bob"]


async def test_compaction_survives_a_restart(world: World) -> None:
    first = world.start()
    await first.deliver_to_session(SID, "hello")
    first.get_engine(SID).compact_to(2, "they said hello")
    first.persist_session(SID)
    second = world.start()
    await second.deliver_to_session(SID, "again")
    assert isinstance(second.provider, ScriptedProvider)
    assert "they said hello" in second.provider.calls[0][0]["content"]


async def test_a_message_to_a_busy_session_steers_it(world: World) -> None:
    manager = world.start(send_to("ann"))
    turn = asyncio.create_task(manager.deliver_to_session(SID, "mail ann"))
    await prompt_of(manager)
    await manager.deliver_to_session(SID, "hurry", source={"from": "chat"})
    await answered(manager, "allow", turn)
    roles = [m["role"] for m in manager.session_messages(SID)]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


async def test_a_question_is_answered_through_the_inbox(world: World) -> None:
    ask = AssistantTurn(tool_calls=[ToolCall("q", "ask_user", {"question": "who?"})])
    manager = world.start(ask)
    turn = asyncio.create_task(manager.drive_attended(SID, "ask"))
    assert (await prompt_of(manager)).kind == "question"
    manager.resolve_pending(SID, "ann")
    await turn
    assert manager.session_messages(SID)[2]["content"] == '{"answer": "ann"}'


async def test_deleting_a_session_closes_its_prompts_and_removes_its_thread(world: World) -> None:
    manager = world.start(send_to("ann"))
    turn = asyncio.create_task(manager.drive_attended(SID, "mail ann"))
    item = await prompt_of(manager)
    assert manager.delete_session(SID) == {"ok": True, "session_id": SID}
    await turn
    assert item.resolution == "session deleted"
    assert world.sent == []


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("allow", "once"),
        ("once", "once"),
        ("always", "always_tool"),
        ("always_tool", "always_tool"),
        ("always_command", "always_command"),
        ("always_task", "once"),
        ("readonly_session", "readonly_session"),
        (" Deny", "deny"),
        ("", "deny"),
        ("session deleted", "deny"),
        ("seen", "deny"),
    ],
)
def test_only_known_words_allow(world: World, word: str, outcome: str) -> None:
    manager = world.start()
    request = PermissionRequest("send", {"to": "ann"}, None, "")
    assert manager.approval_outcome(word, request, SID).value == outcome


def due_task(world: World, **more: Any) -> ScheduledTask:
    place = str(world.folder / "task")
    return ScheduledTask("mails", "mail ann", place, next_run=1.0, every_seconds=60.0, **more)


async def test_a_due_task_is_caught_up_at_start_and_moves_on_after_its_run(world: World) -> None:
    manager = world.start(send_to("ann"))
    slots: list[float | None] = []
    task = manager.schedule(due_task(world, always_allowed_tools=["send ann"]))

    def note_slot() -> None:
        stored = manager.task_store.get(task.id)
        slots.append(stored.next_run if stored else None)

    world.before_return = note_slot
    await manager.start_gateway()
    await manager.scheduler.settle()
    await manager.aclose()
    stored = manager.task_store.get(task.id)
    assert stored is not None
    assert slots == [1.0]
    assert stored.next_run is not None
    assert stored.next_run > 1.0
    assert (stored.run_count, stored.last_status) == (1, "ok")
    assert [run.trigger for run in manager.task_store.runs(task.id)] == ["catchup"]
    assert world.sent == ["ann"]


async def test_fault_a_run_that_was_cut_off_is_started_again_in_a_new_session(
    world: World,
) -> None:
    task = due_task(world, always_allowed_tools=["send"])
    first = world.start(send_to("ann"))
    first.schedule(task)
    await first._run_scheduled_task(task, "schedule")  # killed before the slot moves on
    second = world.start(send_to("ann"))
    await second.start_gateway()
    await second.scheduler.settle()
    await second.aclose()
    assert world.sent == ["ann", "ann"]
    assert len({run.session_id for run in second.task_store.runs(task.id)}) == 2


async def test_fault_approving_a_scheduled_runs_prompt_runs_the_call_twice(world: World) -> None:
    manager = world.start(send_to("ann"))
    task = manager.schedule(due_task(world))
    run: asyncio.Task[TaskRun] = asyncio.create_task(manager._run_scheduled_task(task, "manual"))
    item = await prompt_of(manager)
    assert item.data["task_id"] == task.id
    assert not manager.is_running(item.session_id)
    await manager.resolve_inbox(item.id, "allow")
    await run
    assert world.sent == ["ann", "ann"]


async def test_allow_every_time_becomes_a_standing_rule(world: World) -> None:
    manager = world.start(send_to("ann"))
    task = manager.schedule(due_task(world))
    run = asyncio.create_task(manager._run_scheduled_task(task, "manual"))
    manager.inbox.resolve((await prompt_of(manager)).id, "always_task")
    await run
    stored = manager.task_store.get(task.id)
    assert stored is not None
    assert stored.standing_rules() == {"send": {"ann"}}
