"""Field cases about calls, ids, intents and errors (C01-C03, C07, C11, C13, C25, C29, C32)."""

from __future__ import annotations

import datetime
import decimal
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import thread
from openworker_durable.hosts.reference.providers import AssistantTurn, ToolCall
from tests.host.harness import SESSION, Lab, World, call, reply


async def test_c01_two_done_one_killed_inside(lab: Lab) -> None:
    world = lab.world(
        reply(call("charge", "k1"), call("mark", "k2"), call("notify", "k3", what="n"))
    )
    copies = lab.copies_at(world, "effect.before")
    await world.say("go", "charge", "mark", "notify")
    lab.hook = None
    lab.outside.effects[:] = lab.outside.effects[:2]
    again = await world.reopen(copies[2]).restart()
    assert [i.data["recovery"]["tool"] for i in again.items()] == ["notify"]
    assert again.answer("k1") == world.answer("k1")
    assert again.answer("k2") == world.answer("k2")
    assert lab.outside.effects == [("charge", ""), ("mark", "")]
    again.valid()


async def test_c02_second_call_0_asks_for_itself(lab: Lab) -> None:
    world = lab.world(
        reply(call("send", "call_0", what="a")), reply(call("delete", "call_0", what="b"))
    )
    task = world.start()
    await world.allow("send")
    item = await world.prompt("delete")
    assert lab.outside.effects == [("send", "a")]
    await world.manager.resolve_inbox(item.id, "deny")
    await task
    await world.quiet()
    assert lab.outside.effects == [("send", "a")]
    assert len({r.execution_id for r in world.rows()}) == 1
    world.valid()


async def test_c02_across_a_restart_while_the_second_prompt_waits(lab: Lab) -> None:
    world = lab.world(
        reply(call("send", "call_0", what="a")), reply(call("delete", "call_0", what="b"))
    )
    world.start()
    await world.allow("send")
    await world.prompt("delete")
    again = await world.crash().restart()
    assert lab.outside.effects == [("send", "a")]
    await again.allow("delete")
    await again.quiet()
    assert lab.outside.effects == [("send", "a"), ("delete", "b")]
    assert again.states() == ["succeeded", "succeeded"]
    again.valid()


@pytest.mark.parametrize("call_id", ["same", ""])
async def test_c03_two_calls_share_an_id_or_have_none(lab: Lab, call_id: str) -> None:
    script = reply(
        ToolCall(call_id, "send", {"what": "a"}), ToolCall(call_id, "send", {"what": "b"})
    )
    world = lab.world(script)
    await world.say("go", "send", "send")
    assert lab.outside.effects == [("send", "a"), ("send", "b")]
    assert len({r.execution_id for r in world.rows()}) == 2
    assert len({r.authority_ref for r in world.rows()}) == 2
    world.valid()


async def test_honest_identical_calls_are_two_executions(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a"), call("send", "k2", what="a")))
    await world.say("go", "send", "send")
    assert lab.outside.count("send", "a") == 2
    assert world.states() == ["succeeded", "succeeded"]


async def test_ids_are_rewritten_in_the_providers_own_copy(lab: Lab) -> None:
    first = reply(call("send", "call_0", what="a"))
    second = reply(call("send", "call_0", what="b"))
    second.extras = {"_openai": {"items": [{"type": "function_call", "call_id": "call_0"}]}}
    world = lab.world(first, second)
    await world.say("go", "send", "send")
    replies = [m for m in world.messages() if m.get("tool_calls")]
    fresh = replies[1]["tool_calls"][0]["id"]
    assert fresh != "call_0"
    assert replies[1]["_openai"]["items"][0]["call_id"] == fresh


def _rewrite_call(folder: Path, change: Any) -> None:
    path = folder / "conversations" / f"{SESSION}.jsonl"
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    for message in lines:
        for made in message.get("tool_calls") or []:
            change(made["function"])
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))


CHANGES = {
    "amount": lambda f: f.update(arguments='{"what": "10000"}'),
    "tool": lambda f: f.update(name="delete"),
    "torn": lambda f: f.update(arguments='{"what": "1'),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_c07_a_changed_call_never_runs(lab: Lab, change: str) -> None:
    world = lab.world(reply(call("pay", "k1", what="10")))
    copies = lab.copies_at(world, "call.allowed")
    await world.say("go", "pay")
    lab.hook = None
    lab.outside.effects.clear()
    _rewrite_call(copies[0], CHANGES[change])
    again = await world.reopen(copies[0]).restart()
    await again.resume()
    assert lab.outside.effects == []
    assert again.states() == ["unknown"]
    assert again.rows()[0].reason == "changed"
    item = again.items()[0]
    assert "retry" not in item.data["recovery"]["decisions"]
    assert not await again.manager.resolve_inbox(item.id, "retry")
    assert again.manager.inbox.for_tool_call(SESSION, "k1") is None
    assert await again.manager.resolve_inbox(item.id, "drop")
    await again.quiet()
    assert lab.outside.effects == []
    again.valid()


async def test_c07_a_known_result_of_another_intent_is_not_rebuilt(lab: Lab) -> None:
    world = lab.world(reply(call("pay", "k1", what="10")))
    copies = lab.copies_at(world, "commit.after:finish")
    await world.say("go", "pay")
    lab.hook = None
    _rewrite_call(copies[0], CHANGES["amount"])
    again = await world.reopen(copies[0]).restart()
    await again.resume()
    assert lab.outside.count("pay") == 1
    assert again.states() == ["succeeded"]
    assert "differs" in again.answer("k1")
    again.valid()


def _cycle() -> Any:
    ring: dict[str, Any] = {"a": 1}
    ring["self"] = ring
    return ring


ODD = {
    "cycle": _cycle(),
    "bytes": {"b": b"\x00\xff"},
    "datetime": {"at": datetime.datetime(2026, 1, 2)},
    "decimal": decimal.Decimal("1.10"),
    "nan": {"x": float("nan")},
    "surrogate": "lone \udc80 surrogate",
    "nul": "a\x00b",
    "tuple key": {(1, 2): 3},
    "20 MB": "x" * 20_000_000,
    "display": {"text": "t", "_display": {"hidden_by_filters": 2}},
}


@pytest.mark.parametrize("kind", ODD)
async def test_c11_odd_results_are_recorded_and_rebuilt(lab: Lab, kind: str) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    lab.outside.returns["send"] = ODD[kind]
    copies = lab.copies_at(world, "commit.after:finish")
    await world.say("go", "send")
    lab.hook = None
    assert world.states() == ["succeeded"]
    assert world.rows()[0].lossy == (kind in ("cycle", "tuple key"))
    again = await world.reopen(copies[0]).restart()
    assert again.answer("k1") == world.answer("k1")
    live = next(m for m in world.messages() if m.get("tool_call_id") == "k1")
    built = next(m for m in again.messages() if m.get("tool_call_id") == "k1")
    assert built.get("_display") == live.get("_display")
    assert lab.outside.count("send") == 1


async def test_c13_the_model_fails_and_retry_is_pressed_twice(lab: Lab) -> None:
    world = lab.world(
        reply(call("send", "k1", what="a")), RuntimeError("500"), AssistantTurn(text="x")
    )
    await world.say("go", "send")
    await world.manager.drive_attended(SESSION, retry=True)
    await world.manager.drive_attended(SESSION, retry=True)
    await world.quiet()
    assert lab.outside.count("send") == 1
    assert thread.pairing_faults(world.messages()) == []


@pytest.mark.parametrize("then", ["resume", "message"])
async def test_c25_only_the_write_asks(lab: Lab, then: str) -> None:
    world = lab.world(reply(call("lookup", "r1", what="q"), call("send", "k1", what="a")))
    copies = lab.copies_at(world, "effect.after")
    await world.say("go", "send")
    lab.hook = None
    again = await world.reopen(copies[0]).restart()
    if then == "message":
        await again.say("and now?")
    assert [i.data["recovery"]["tool"] for i in again.items()] == ["send"]
    assert lab.outside.count("send") == 1
    if then == "resume":
        assert await again.decide("send", "happened")
    again.valid()
    assert again.messages()[-1]["content"] == "done"


PLAIN = {
    "invalid": ValueError("invalid argument"),
    "permission": PermissionError("permission denied"),
    "refused": ConnectionRefusedError("refused"),
    "dns": socket.gaierror(-2, "Name or service not known"),
}


@pytest.mark.parametrize("kind", PLAIN)
async def test_c29_errors_that_prove_nothing_began(lab: Lab, kind: str) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    lab.outside.raises["send:before"] = PLAIN[kind]
    await world.say("go", "send")
    assert world.states() == ["failed"]
    assert world.items() == []
    assert json.loads(world.answer("k1"))["error_type"] == type(PLAIN[kind]).__name__
    world.valid()


async def test_c29_unknown_tool_and_bad_arguments_have_no_row(lab: Lab) -> None:
    world = lab.world(
        reply(ToolCall("k1", "send", {"nonsense": 1})), reply(ToolCall("k2", "nope", {}))
    )
    task = world.start()
    await world.allow("send")
    await world.until(lambda: task.done() or world.manager.inbox.pending(SESSION))
    await task
    assert world.rows() == []
    assert world.items() == []
    world.valid()


async def test_c04_a_timeout_after_the_effect_halts_the_live_turn(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    lab.outside.raises["send"] = TimeoutError("timed out")
    await world.say("go", "send")
    assert world.states() == ["unknown"]
    assert len(world.items()) == 1
    assert "may have happened" in world.answer("k1")
    assert "timed out" not in json.dumps(world.messages())
    world.valid()


async def _second_waits(lab: Lab) -> World:
    world = lab.world(reply(call("send", "k1", what="a"), call("send", "k2", what="b")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send", "send")
    assert lab.outside.effects == [("send", "a")]
    return world


async def test_c32_the_second_send_waits_for_the_decision(lab: Lab) -> None:
    world = await _second_waits(lab)
    assert await world.decide("send", "happened")
    assert lab.outside.effects == [("send", "a"), ("send", "b")]
    assert world.manager.inbox.pending(SESSION) == []
    world.valid()


async def test_c32_or_is_answered_not_started_by_a_new_message(lab: Lab) -> None:
    world = await _second_waits(lab)
    await world.say("leave it")
    assert "not started" in world.answer("k2")
    assert await world.decide("send", "happened")
    assert lab.outside.effects == [("send", "a")]
    world.valid()
