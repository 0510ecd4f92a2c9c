"""Edges that a hostile review found: each would break a promise if its line were missing."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import thread, verbs
from openworker_durable.errors import LedgerUnavailable, Refused
from openworker_durable.hosts.binding import binding_of
from openworker_durable.hosts.reference.conversations import ConversationStore
from openworker_durable.hosts.reference.providers import AssistantTurn, ToolCall
from openworker_durable.ledger import Ledger
from openworker_durable.states import Decision
from tests.host.harness import SESSION, Lab, World, call, reply


async def _cancelled_while_dispatching(lab: Lab) -> tuple[World, threading.Event]:
    """A call whose thread waits in its dispatch, while the turn that made it is cancelled."""
    world = lab.world(reply(call("send", "k1", what="a")), AssistantTurn(text="ok"))
    reached, go = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        if name == "commit.before:dispatch":
            reached.set()
            go.wait(10)

    task = world.start()
    await world.prompt("send")
    lab.hook = hook
    await world.allow("send")
    await asyncio.to_thread(reached.wait, 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return world, go


async def test_g12_a_call_that_is_being_dispatched_is_not_called_not_started(lab: Lab) -> None:
    world, go = await _cancelled_while_dispatching(lab)
    message = world.start("never mind")
    await asyncio.sleep(0)
    go.set()
    await message
    await world.until(lambda: world.states() == ["succeeded"])
    await world.until(lambda: "did" in json.dumps(world.messages()))
    await world.quiet()
    assert lab.outside.count("send") == 1
    assert "not started" not in json.dumps(world.messages())
    world.valid()


async def test_a_call_of_a_turn_that_has_ended_can_not_start_any_more(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "call.allowed")
    await world.say("go", "send")
    lab.hook = None
    again = world.reopen(copies[0])
    binding = binding_of(again.manager.get_engine(SESSION))
    assert binding is not None
    lab.outside.effects.clear()
    from openworker_durable.hosts.binding import Ticket
    from openworker_durable.models import Authority
    from openworker_durable.states import AuthorityKind

    made = ToolCall("k1", "send", {})
    ticket: Ticket = binding.ticket(made, Authority(kind=AuthorityKind.GRANT))
    binding.tickets["k1"] = ticket
    binding.withdraw()
    result, _status = binding.engine._execute_sync(made)
    assert lab.outside.effects == []
    assert type(result).__name__ == "Held"


async def test_g14_a_mangled_call_beside_a_prompt_is_answered_by_a_message(lab: Lab) -> None:
    mangled = ToolCall("k2", "pay", {"_raw": '{"what": "1'})
    world = lab.world(reply(call("send", "k1"), mangled), AssistantTurn(text="fine"))
    task = world.start()
    await world.prompt("send")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await world.say("continue")
    assert world.messages()[-1]["content"] == "fine"
    world.valid()


async def test_g13_one_bad_thread_does_not_stop_the_watch(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    await world.restart()
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    path = world.folder / "conversations" / f"{SESSION}.jsonl"
    aside = path.rename(path.with_suffix(".aside"))
    path.mkdir()
    row = world.rows()[0]
    ledger = Ledger(world.folder / "coworker.db")
    ledger.run(verbs.decide, row.execution_id, 1, Decision.HAPPENED, "cli", "", 5.0)
    ledger.close()
    await world.until(lambda: SESSION in world.runtime._again)
    path.rmdir()
    aside.rename(path)
    await world.until(world.follow_ups)
    await world.quiet()
    assert lab.outside.count("send") == 1


async def test_c22_a_torn_tail_left_by_another_process_is_mended(lab: Lab) -> None:
    world = lab.world(AssistantTurn(text="hi"), AssistantTurn(text="there"))
    await world.say("one")
    path = world.folder / "conversations" / f"{SESSION}.jsonl"
    with path.open("a") as file:
        file.write('{"role": "user", "cont')
    await world.say("two")
    assert world.messages()[-1]["content"] == "there"
    assert list(path.parent.glob("*.unreadable-*"))
    world.valid()


async def test_c12_a_save_that_failed_half_way_is_written_whole(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(reply(call("send", "k1", what="a")), AssistantTurn(text="end"))
    real = ConversationStore._append
    state = {"broken": 0}

    def torn(store: Any, sid: str, messages: Any) -> None:
        if messages and messages[0].get("role") == "tool" and not state["broken"]:
            state["broken"] = 1
            with open(store._file(sid), "a") as file:
                file.write('{"role": "to')
            raise OSError(28, "No space left on device")
        real(store, sid, messages)

    monkeypatch.setattr(ConversationStore, "_append", torn)
    await world.say("go", "send")
    assert state["broken"] == 1
    assert [m["role"] for m in world.messages()] == ["user", "assistant", "tool", "assistant"]
    assert not list((world.folder / "conversations").glob("*.unreadable-*")), "nothing was torn"
    world.valid()
    again = await world.crash().restart()
    assert again.answer("k1") == world.answer("k1")
    assert lab.outside.count("send") == 1


async def test_c30_retry_is_refused_where_the_session_was_deleted(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    world.manager.delete_session(SESSION)
    row = world.rows()[0]
    with pytest.raises(Refused, match="deleted"):
        world.runtime.decide(row.execution_id, 1, Decision.RETRY, by="cli")
    assert not await world.manager.resolve_inbox(world.item("send").id, "retry")
    assert await world.decide("send", "drop")


async def test_deleting_a_session_while_its_call_runs_leaves_one_item(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.release.clear()
    lab.outside.raises["send"] = TimeoutError()
    task = world.start()
    await world.allow("send")
    await asyncio.to_thread(lab.outside.inside.wait, 10)
    world.manager.delete_session(SESSION)
    lab.outside.release.set()
    await asyncio.gather(task, return_exceptions=True)
    await world.quiet()
    again = await world.crash().restart()
    assert len(again.rows()) == 1
    assert len(again.items()) == 1
    assert not (again.folder / "conversations" / f"{SESSION}.jsonl").exists()
    assert lab.outside.count("send") == 1


async def test_a_line_typed_while_the_turn_halts_goes_on_with_it(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")), AssistantTurn(text="heard"))
    lab.outside.release.clear()
    lab.outside.raises["send"] = TimeoutError()
    task = world.start()
    await world.allow("send")
    await asyncio.to_thread(lab.outside.inside.wait, 10)
    await world.manager.deliver_to_session(SESSION, "one more thing")
    lab.outside.release.set()
    await task
    await world.quiet()
    assert world.messages()[-1]["content"] == "heard"
    assert any(m.get("content") == "one more thing" for m in world.saved())
    assert len(world.items()) == 1
    world.valid()


async def test_the_repeat_guard_fails_closed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    world = lab.world(
        reply(call("send", "k1", what="a")), reply(call("send", "k2", what="b")),
        AssistantTurn(text="end"),
    )  # fmt: skip
    world.manager.get_engine(SESSION).permissions.allow_tool_for_session("send")
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go")
    ledger = world.runtime.ledger
    real = ledger.known

    def known(query: Any) -> Any:
        if query.name == "undecided_tool":
            raise LedgerUnavailable("not now")
        return real(query)

    monkeypatch.setattr(ledger, "known", known)
    await world.say("again")
    assert lab.outside.effects == [("send", "a")]


async def test_a_stop_is_heard_while_a_resume_waits_for_a_running_call(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    await world.cut_off_inside("send")
    resumed = asyncio.ensure_future(world.runtime.drive(SESSION))
    await world.until(lambda: world.runtime.owner.holds(SESSION))
    world.manager._engines[SESSION].request_interrupt()
    await asyncio.wait_for(resumed, 5)
    lab.outside.release.set()
    await world.until(lambda: world.states() == ["succeeded"])
    await world.until(lambda: [m for m in world.messages() if m["role"] == "tool"])
    assert lab.outside.count("send") == 1
    assert thread.pairing_faults(world.messages()) == []


async def test_g9_a_running_call_outlives_the_plugins_own_end(lab: Lab, tmp_path: Path) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.release.clear()
    world.start()
    await world.allow("send")
    await asyncio.to_thread(lab.outside.inside.wait, 10)
    first = world.runtime
    lab.detach()
    lab.attach_again()
    again = await world.reopen(world.folder).restart()
    assert again.states() == ["dispatched"], "its owner lives on until the call has ended"
    lab.outside.release.set()
    await again.until(lambda: again.states() == ["succeeded"])
    await again.until(first.guard.idle)
    assert again.items() == []


async def test_g9_a_turn_whose_window_goes_away_gives_its_session_back_at_once(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")), AssistantTurn(text="fine"))
    turn: Any = world.manager.get_engine(SESSION).run("go")
    await turn.__anext__()
    assert world.runtime.owner.holds(SESSION)
    await turn.aclose()
    assert not world.runtime.owner.holds(SESSION)
