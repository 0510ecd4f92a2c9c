"""Field cases about starting again (C08-C10, C12, C16-C18, C20, C21, C24, C30)."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from openworker_durable import _db, verbs
from openworker_durable.errors import AlreadyDecided
from openworker_durable.hosts.reference.conversations import ConversationStore
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.states import Decision
from tests.host.harness import SESSION, Lab, World, call, reply


async def _killed_inside(lab: Lab, *more: Any) -> World:
    """One send, killed after its effect; the world as a new process finds it."""
    world = lab.world(reply(call("send", "k1", what="a")), *more)
    copies = lab.copies_at(world, "effect.after")
    await world.say("go", "send")
    lab.hook = None
    return world.reopen(copies[0])


async def test_c08_the_person_types_before_anything_else(lab: Lab) -> None:
    again = await _killed_inside(lab)
    await again.say("continue")
    roles = [m["role"] for m in again.messages() if m["role"] in ("user", "tool")]
    assert roles == ["user", "tool", "user"]
    assert "may have happened" in again.answer("k1")
    assert len(again.items()) == 1
    assert lab.outside.count("send") == 1
    again.valid()


async def test_c08_calls_that_never_ran_are_answered_not_started(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a"), call("pay", "k2")))
    copies = lab.copies_at(world, "commit.after:finish")
    await world.say("go", "send", "pay")
    lab.hook = None
    lab.outside.effects[:] = lab.outside.effects[:1]
    again = world.reopen(copies[0])
    await again.say("continue")
    assert again.answer("k1") == world.answer("k1")
    assert "not started" in again.answer("k2")
    assert lab.outside.effects == [("send", "a")]
    assert again.manager.inbox.for_tool_call(SESSION, "k2") is None
    again.valid()


async def test_c09_a_placeholder_never_hides_a_row(lab: Lab) -> None:
    again = await _killed_inside(lab)
    path = again.folder / "conversations" / f"{SESSION}.jsonl"
    placeholder = {"role": "tool", "tool_call_id": "k1", "content": "[no result]"}
    path.write_text(path.read_text() + json.dumps(placeholder) + "\n")
    await again.restart()
    assert again.states() == ["unknown"]
    assert len(again.items()) == 1
    assert again.answer("k1") == "[no result]"
    assert await again.decide("send", "happened")
    assert len(again.follow_ups()) == 1
    again.valid()


async def test_c09_a_known_outcome_behind_a_placeholder_is_told(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    copies = lab.copies_at(world, "commit.after:finish")
    await world.say("go", "send")
    lab.hook = None
    again = world.reopen(copies[0])
    path = again.folder / "conversations" / f"{SESSION}.jsonl"
    placeholder = {"role": "tool", "tool_call_id": "k1", "content": "[no result]"}
    path.write_text(path.read_text() + json.dumps(placeholder) + "\n")
    await again.restart()
    assert again.items() == []
    assert len(again.follow_ups()) == 1
    assert "did" in again.follow_ups()[0]
    again.valid()


async def test_c10_cancelled_while_the_tool_is_in_its_thread(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    await world.cut_off_inside("send")
    await world.quiet()
    assert world.states() == ["dispatched"]
    lab.outside.release.set()
    await world.until(lambda: world.states() == ["succeeded"])
    await world.until(lambda: [m for m in world.messages() if m["role"] == "tool"])
    await world.quiet()
    assert "did" in world.answer("k1")
    assert world.items() == []
    await world.resume()
    assert lab.outside.count("send") == 1
    world.valid()


async def test_c10_resume_joins_a_call_that_still_runs(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    await world.cut_off_inside("send")
    resumed = asyncio.ensure_future(world.resume())
    await world.until(lambda: world.manager.is_running(SESSION))
    lab.outside.release.set()
    await resumed
    assert world.states() == ["succeeded"]
    assert lab.outside.count("send") == 1
    assert world.messages()[-1]["content"] == "done"
    world.valid()


async def test_a_message_while_the_call_still_runs_gets_provisional_text(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")), AssistantTurn(text="ok"))
    await world.cut_off_inside("send")
    await world.manager.deliver_to_session(SESSION, "still there?")
    assert "still running" in world.answer("k1")
    lab.outside.release.set()
    await world.until(world.follow_ups)
    await world.quiet()
    assert world.items() == []
    assert "did" in world.follow_ups()[0]
    assert lab.outside.count("send") == 1
    world.valid()


async def test_c12_saving_the_thread_fails_again_and_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(reply(call("send", "k1", what="a")), reply(call("send", "k2", what="b")))
    world.manager.get_engine(SESSION).permissions.allow_tool_for_session("send")
    failures = iter([True])
    real = ConversationStore.save

    def save(store: Any, record: Any) -> None:
        if any(m.get("tool_calls") for m in record.messages) and next(failures, False):
            _no_space()
        real(store, record)

    monkeypatch.setattr(ConversationStore, "save", save)
    await world.say("go")
    assert "cannot be saved" in world.answer("k1"), "not saved before, so nothing was sent"
    assert lab.outside.effects == [("send", "b")]
    assert world.states() == ["succeeded"]
    world.valid()


async def test_c12_saving_the_result_fails_then_the_session_is_reopened(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))

    def hook(name: str) -> None:
        if name == "effect.after":
            monkeypatch.setattr(ConversationStore, "save", _no_space)

    lab.hook = hook
    await world.say("go", "send")
    lab.hook = None
    monkeypatch.undo()
    assert lab.outside.count("send") == 1
    assert [m["role"] for m in world.saved()] == ["user", "assistant"]
    again = await world.crash().restart()
    assert again.answer("k1") == world.answer("k1")
    assert lab.outside.count("send") == 1
    again.valid()


def _no_space(*_args: Any, **_kwargs: Any) -> None:
    raise OSError(28, "No space left on device")


class Broken:
    """Makes the ledger's writer fail as a full disk does, between two points in time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: World) -> None:
        self.monkeypatch, self.world = monkeypatch, world

    def on(self) -> None:
        def full(_path: Any) -> None:
            raise _db.translate(sqlite3.OperationalError("database or disk is full"), _path)

        self.world.runtime.ledger._writer._drop_connection()
        self.monkeypatch.setattr(_db, "open_writer", full)

    def off(self) -> None:
        self.monkeypatch.undo()


async def test_c16_ledger_down_before_dispatch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    world = lab.world(
        reply(call("send", "k1", what="a"), call("lookup", "r1", what="q")),
        reply(call("send", "k2", what="b")),
    )
    broken = Broken(monkeypatch, world)
    task = world.start()
    await world.prompt("send")
    broken.on()
    await world.allow("send")
    await world.until(lambda: any(m.get("tool_call_id") == "k1" for m in world.messages()))
    assert lab.outside.effects == []
    assert lab.outside.reads == ["q"]
    assert "was not made" in world.answer("k1")
    assert "disk is full" in world.answer("k1")
    broken.off()
    await world.allow("send")
    await task
    await world.quiet()
    assert lab.outside.effects in ([("send", "b")], [])
    world.valid()


async def test_c16_ledger_down_after_the_effect(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    broken = Broken(monkeypatch, world)
    lab.hook = lambda name: broken.on() if name == "effect.after" else None
    await world.say("go", "send")
    lab.hook = None
    assert "did" in world.answer("k1")
    assert world.messages()[-1]["content"] == "done"
    assert world.states() == ["dispatched"]
    lost = world.crash("lost")
    broken.off()
    await lost.restart()
    assert lost.states() == ["succeeded"], "the saved thread is evidence too"
    await world.until(lambda: world.states() == ["succeeded"])
    assert lab.outside.count("send") == 1


async def test_c17_resolved_and_saved_then_died(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    copies = lab.copies_at(world, "call.allowed")
    await world.say("go", "send")
    lab.hook = None
    lab.outside.effects.clear()
    again = await world.reopen(copies[0]).restart()
    assert lab.outside.effects == []
    await again.allow("send")
    await again.quiet()
    assert lab.outside.count("send") == 1
    again.valid()


@pytest.mark.parametrize("word", [" Deny", "", "session deleted", "seen", "deny", "Allow", "yes"])
async def test_c18_only_an_exact_allow_authorises(lab: Lab, word: str) -> None:
    world = lab.world(reply(call("send", "k1", what="a")))
    task = world.start()
    item = await world.prompt("send")
    copies = lab.copies_at(world, "thread.before")
    await world.manager.resolve_inbox(item.id, word)
    await task
    await world.quiet()
    lab.hook = None
    assert lab.outside.effects == []
    again = await world.reopen(copies[0] if copies else world.copy("denied")).restart()
    await again.resume()
    assert lab.outside.effects == []
    assert again.rows() == []


async def test_c20_two_surfaces_decide_oppositely(lab: Lab) -> None:
    again = await (await _killed_inside(lab)).restart()
    item = again.item("send")
    ids = item.data["recovery"]
    again.runtime.ledger.run(
        verbs.decide, ids["execution_id"], 1, Decision.HAPPENED, "cli", "", 1.0
    )
    with pytest.raises(AlreadyDecided):
        again.runtime.decide(ids["execution_id"], 1, Decision.RETRY, by="page")
    assert not await again.manager.resolve_inbox(item.id, "retry")
    assert not await again.manager.resolve_inbox(item.id, "retry")
    await again.quiet()
    assert again.rows()[0].decision is Decision.HAPPENED
    assert lab.outside.count("send") == 1
    with closing(sqlite3.connect(again.folder / "coworker.db")) as db, db:
        (count,) = db.execute(
            "SELECT COUNT(*) FROM audit_events WHERE stage = 'decision'"
        ).fetchone()
    assert count == 1


async def test_c20_the_same_click_twice(lab: Lab) -> None:
    again = await (await _killed_inside(lab)).restart()
    item = again.item("send")
    first, second = await asyncio.gather(
        again.manager.resolve_inbox(item.id, "retry"), again.manager.resolve_inbox(item.id, "retry")
    )
    await again.quiet()
    assert sorted([first, second]) == [False, True]
    assert lab.outside.count("send") == 2
    assert len(again.follow_ups()) == 1
    again.valid()


async def test_c21_a_stale_card_never_runs_anything(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")), reply(call("send", "k1", what="a")))
    task = world.start()
    item = await world.prompt("send")
    world.manager._engines[SESSION].request_interrupt()
    await task
    await world.quiet()
    assert not await world.manager.resolve_inbox(item.id, "allow")
    await world.quiet()
    assert lab.outside.effects == []
    assert "No longer needed" in item.body
    task = world.start("again")
    fresh = await world.prompt("send")
    assert fresh.id != item.id
    await world.manager.resolve_inbox(fresh.id, "deny")
    await task
    assert lab.outside.effects == []
    world.valid()


CANARY = "canary-7f3a-secret"


async def test_c24_no_secret_in_anything_we_write(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bearer = f"Bearer {CANARY}"
    world = lab.world(
        reply(
            call("send", "k1", what=bearer),
        ),
    )
    lab.outside.raises["send"] = TimeoutError(CANARY)
    await world.say("go", "send")
    assert world.states() == ["unknown"]
    ours = [i for i in world.manager.inbox.list() if i.kind == "recovery_required"]
    assert CANARY not in json.dumps([vars(i) for i in ours])
    assert CANARY not in caplog.text
    with closing(sqlite3.connect(world.folder / "coworker.db")) as db, db:
        rows = db.execute("SELECT * FROM audit_events WHERE connector = 'durable'").fetchall()
        executions = db.execute("SELECT * FROM tool_executions").fetchall()
    assert rows
    assert CANARY not in repr(rows) + repr(executions)
    assert (world.folder / "coworker.db").stat().st_mode & 0o777 == 0o600
    assert await world.decide("send", "drop")
    assert CANARY not in "".join(world.follow_ups())


async def test_c30_a_deleted_session_can_still_be_settled(lab: Lab) -> None:
    again = await (await _killed_inside(lab)).restart()
    item = again.item("send")
    assert again.manager.delete_session(SESSION)["ok"]
    await again.quiet()
    assert item.state == "resolved"
    asked = again.item("send").data["recovery"]["decisions"]
    assert asked == ["happened", "drop", "unsure"], "nothing can be run there any more"
    later = await again.crash("later").restart()
    assert later.states() == ["unknown"]
    assert await later.decide("send", "happened")
    assert later.rows()[0].decision is Decision.HAPPENED
    assert later.messages() == []
    await later.say("a new life of the same id", "send")
    assert lab.outside.count("send") == 2
    assert len({r.execution_id for r in later.rows()}) == 2
