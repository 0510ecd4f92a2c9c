"""The reference host's engine: order of events and messages, and its faults."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from openworker_durable.hosts.reference import (
    ApprovalOutcome,
    AssistantTurn,
    Event,
    PermissionEngine,
    PermissionRequest,
    ScriptedProvider,
    StreamChunk,
    ToolCall,
    ToolMetadata,
    ToolRegistry,
    TurnEngine,
)
from openworker_durable.hosts.reference.providers import Step, validate_thread

NEEDS_APPROVAL = ToolMetadata(risk_level="high", requires_approval=True)


class Desk:
    """An engine with a sending tool and a reading tool, and a record of what they did."""

    def __init__(self, folder: Path, turns: list[Step], **more: Any) -> None:
        self.sent: list[str] = []
        self.asked: list[PermissionRequest] = []
        self.audit: list[dict[str, Any]] = []
        self.answer = ApprovalOutcome.ONCE
        self.provider = ScriptedProvider(turns)
        registry = ToolRegistry()
        registry.register(self.send(), metadata=NEEDS_APPROVAL)
        registry.register(self.look(), metadata=ToolMetadata())
        self.engine = TurnEngine(
            provider=self.provider,
            registry=registry,
            permissions=PermissionEngine(folder),
            model="scripted",
            approver=self.approve,
            audit_sink=self.audit.append,
            **more,
        )

    def send(self) -> Any:
        def send(to: str) -> dict[str, Any]:
            """Send something."""
            self.sent.append(to)
            return {"sent": to, "_display": {"card": to}}

        return send

    def look(self) -> Any:
        def look(what: str = "") -> str:
            """Look something up."""
            return f"saw {what}"

        return look

    async def approve(self, request: PermissionRequest) -> ApprovalOutcome:
        self.asked.append(request)
        return self.answer


def reply(*calls: ToolCall, text: str | None = None) -> AssistantTurn:
    return AssistantTurn(text=text, tool_calls=list(calls))


def send_to(person: str, call_id: str = "call_0") -> ToolCall:
    return ToolCall(call_id, "send", {"to": person})


def look_at(what: str, call_id: str) -> ToolCall:
    return ToolCall(call_id, "look", {"what": what})


async def types_of(events: AsyncIterator[Event]) -> list[str]:
    return [event.type.value async for event in events]


def roles_of(engine: TurnEngine) -> list[str]:
    return [message["role"] for message in engine.messages]


async def test_an_approved_call_goes_through_every_stage_in_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"), text="on it")], instructions="be kind")
    assert await types_of(desk.engine.run("mail ann", source={"chat": 1}, display="/mail")) == [
        "turn_start",
        "assistant_message",
        "tool_proposed",
        "permission_required",
        "tool_started",
        "tool_finished",
        "iteration_end",
        "assistant_message",
        "turn_end",
    ]
    assert roles_of(desk.engine) == ["system", "user", "assistant", "tool", "assistant"]
    stages = [(row["stage"], row.get("status")) for row in desk.audit]
    assert stages == [
        ("proposed", None),
        ("approval_requested", None),
        ("approval_resolved", "approved"),
        ("started", None),
        ("finished", "ok"),
    ]
    assert desk.sent == ["ann"]


async def test_display_only_keys_stay_in_the_thread_and_off_the_wire(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])
    await types_of(desk.engine.run("mail ann", source={"chat": 1}, display="/mail"))
    user, _, result, _ = desk.engine.messages
    assert (user["source"], user["_display"]) == ({"chat": 1}, "/mail")
    assert json.loads(result["content"]) == {"sent": "ann"}
    assert result["_display"] == {"card": "ann"}
    assert all(
        key not in m for m in desk.provider.calls[-1] for key in ("ts", "source", "_display")
    )


async def test_any_other_new_key_breaks_the_provider(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [])
    desk.engine.messages.append({"role": "user", "content": "before", "flag": 1})
    assert (await types_of(desk.engine.run("hello")))[-1] == "error"
    assert desk.engine.messages[-1]["kind"] == "error"


async def test_a_denied_call_is_answered_and_never_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])
    desk.answer = ApprovalOutcome.DENY
    assert "tool_started" not in await types_of(desk.engine.run("mail ann"))
    assert roles_of(desk.engine) == ["user", "assistant", "tool", "assistant"]
    assert desk.audit[-1]["status"] == "denied"
    assert desk.sent == []


async def test_a_session_grant_makes_later_calls_silent(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann", "a")), reply(send_to("bob", "b"))])
    desk.answer = ApprovalOutcome.ALWAYS_TOOL
    await types_of(desk.engine.run("mail both"))
    assert len(desk.asked) == 1
    assert desk.sent == ["ann", "bob"]


async def test_a_standing_rule_is_named_in_the_audit_and_on_the_card(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])
    desk.engine.permissions.task_rules = {"send": {"ann"}}
    events = [event async for event in desk.engine.run("mail ann")]
    finished = next(e for e in events if e.type.value == "tool_finished")
    assert finished.data["standing_rule"] == "send → ann"
    stages = [row["stage"] for row in desk.audit]
    assert stages == ["proposed", "auto_allowed", "started", "finished"]


async def test_every_exception_of_a_tool_becomes_a_result(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(ToolCall("x", "send", {"wrong": 1}))])
    await types_of(desk.engine.run("mail"))
    result = json.loads(desk.engine.messages[2]["content"])
    assert result["error_type"] == "TypeError"
    assert desk.audit[-1]["status"] == "error"


async def test_low_risk_calls_of_one_reply_run_side_by_side(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=30)
    desk = Desk(tmp_path, [reply(look_at("a", "1"), send_to("ann", "2"), look_at("b", "3"))])

    def look(what: str) -> str:
        both.wait()
        return what

    desk.engine.registry.register(look, metadata=ToolMetadata())
    await types_of(desk.engine.run("look twice"))
    answered = [m["tool_call_id"] for m in desk.engine.messages if m["role"] == "tool"]
    assert answered == ["1", "3", "2"]


async def test_an_unknown_tool_is_answered_without_asking(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(ToolCall("x", "fly", {}))])
    events = [event async for event in desk.engine.run("fly")]
    assert [e.data["status"] for e in events if e.type.value == "tool_finished"] == ["error"]
    assert desk.asked == []


async def test_unreadable_arguments_are_answered_and_kept_short(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(ToolCall("x", "send", {"_raw": "{" * 900}))])
    await types_of(desk.engine.run("mail"))
    assert desk.sent == []
    assert len(desk.engine.messages[1]["tool_calls"][0]["function"]["arguments"]) < 300


async def test_stop_while_the_person_is_asked_answers_every_call(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann", "a"), send_to("bob", "b"))])

    async def never(_request: PermissionRequest) -> ApprovalOutcome:
        desk.engine.request_interrupt()
        await asyncio.Event().wait()
        return ApprovalOutcome.ONCE

    desk.engine.approver = never
    assert (await types_of(desk.engine.run("mail both")))[-1] == "interrupted"
    assert roles_of(desk.engine) == ["user", "assistant", "tool", "tool", "notice"]
    validate_thread(desk.engine._outbound_messages())
    assert desk.sent == []


async def test_stop_does_not_reach_a_call_inside_its_thread(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])

    def send(to: str) -> str:
        desk.engine.request_interrupt()
        return "sent anyway"

    desk.engine.registry.register(send, metadata=NEEDS_APPROVAL)
    assert (await types_of(desk.engine.run("mail")))[-1] == "interrupted"
    assert desk.engine.messages[2]["content"] == "sent anyway"


async def test_stop_keeps_the_text_that_had_arrived(tmp_path: Path) -> None:
    class Slow(ScriptedProvider):
        def stream(self, **_kwargs: Any) -> Any:
            yield StreamChunk(text_delta="half a")
            yield StreamChunk(text_delta=" sentence")

    desk = Desk(tmp_path, [])
    desk.engine.provider = Slow()
    async for event in desk.engine.run("talk"):
        if event.type.value == "assistant_delta":
            desk.engine.request_interrupt()
    assert desk.engine.messages[1]["content"] == "half a"
    assert desk.engine.messages[-1]["kind"] == "interrupted"


async def test_steering_waits_for_the_end_of_the_iteration(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(look_at("a", "1")), reply(text="fine"), reply(text="bye")])
    desk.engine.queue_steering("and quickly")
    await types_of(desk.engine.run("look"))
    assert roles_of(desk.engine) == ["user", "assistant", "tool", "user", "assistant"]


async def test_steering_after_the_last_reply_asks_the_model_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(text="fine")])
    desk.engine.queue_steering("one more thing")
    await types_of(desk.engine.run("hello"))
    assert roles_of(desk.engine) == ["user", "assistant", "user", "assistant"]


async def test_a_turn_gives_up_after_its_iterations(tmp_path: Path) -> None:
    turns: list[Step] = [reply(look_at("a", str(n))) for n in range(3)]
    desk = Desk(tmp_path, turns, max_iterations=2)
    events = [event async for event in desk.engine.run("look")]
    assert events[-1].data == {"status": "max_iterations_exceeded", "iterations": 2}


async def test_retry_works_only_on_a_thread_that_ends_in_an_error(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann")), RuntimeError("500"), reply(text="sent")])
    assert (await types_of(desk.engine.run("mail ann")))[-1] == "error"
    assert (await types_of(desk.engine.retry()))[-1] == "turn_end"
    assert await types_of(desk.engine.retry()) == []
    assert desk.sent == ["ann"]


async def test_fault_resume_runs_an_approved_call_again_when_its_result_was_lost(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])
    await types_of(desk.engine.run("mail ann"))
    desk.engine.messages = desk.engine.messages[:2]
    assert "tool_started" in await types_of(desk.engine.resume())
    assert desk.sent == ["ann", "ann"]


async def test_fault_resume_does_nothing_after_a_user_line_or_when_all_is_answered(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])
    await types_of(desk.engine.run("mail ann"))
    answered = desk.engine.messages[:3]
    desk.engine.messages = list(answered)
    assert await types_of(desk.engine.resume()) == []
    desk.engine.messages = [*answered[:2], {"role": "user", "content": "and?"}]
    assert await types_of(desk.engine.resume()) == []


async def test_fault_a_used_call_id_counts_as_answered(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann")), reply(send_to("bob"))])
    await types_of(desk.engine.run("mail both"))
    desk.engine.messages = desk.engine.messages[:4]
    assert desk.engine._unanswered_trailing_tool_calls() == []


async def test_fault_torn_arguments_resume_as_none_at_all(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])
    await types_of(desk.engine.run("mail ann"))
    desk.engine.messages = desk.engine.messages[:2]
    desk.engine.messages[1]["tool_calls"][0]["function"]["arguments"] = '{"to": "an'
    assert [c.arguments for c in desk.engine._unanswered_trailing_tool_calls()] == [{}]


async def test_fault_an_unanswered_call_kills_the_session(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])
    await types_of(desk.engine.run("mail ann"))
    desk.engine.messages = desk.engine.messages[:2]
    assert await types_of(desk.engine.run("and now?")) == ["turn_start", "error"]


async def test_the_person_is_asked_through_the_asker_and_never_the_registry(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, [reply(ToolCall("q", "ask_user", {"question": "why?"}))])

    async def asker(args: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        return {"answer": f"{args['question']} {call_id}"}

    desk.engine.question_asker = asker
    events = await types_of(desk.engine.run("ask me"))
    assert "tool_started" not in events
    assert json.loads(desk.engine.messages[2]["content"]) == {"answer": "why? q"}
    stages = [row["stage"] for row in desk.audit]
    assert stages == ["proposed", "question_requested", "finished"]


async def test_a_failing_audit_is_not_noticed(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))])

    def broken(_event: dict[str, Any]) -> None:
        raise OSError("disk full")

    desk.engine.audit_sink = broken
    assert (await types_of(desk.engine.run("mail ann")))[-1] == "turn_end"
    assert desk.sent == ["ann"]


async def test_compaction_hides_messages_from_the_provider_only(tmp_path: Path) -> None:
    desk = Desk(tmp_path, [reply(send_to("ann"))], instructions="be kind")
    await types_of(desk.engine.run("mail ann"))
    desk.engine.compact_to(5, "a mail was sent")
    await types_of(desk.engine.run("thanks"))
    seen = desk.provider.calls[-1]
    assert [m["role"] for m in seen] == ["system", "user", "user"]
    assert "a mail was sent" in seen[1]["content"]
    assert len(desk.engine.messages) == 8
