"""What a person does around a running turn: stop, automations, two ways in at once (section 5)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from openworker_durable import verbs
from openworker_durable.errors import Refused, SessionHeld
from openworker_durable.hosts.reference.automation import ScheduledTask
from openworker_durable.hosts.reference.providers import AssistantTurn, ToolCall
from openworker_durable.owner import Owner, ServerLock
from openworker_durable.states import Decision
from tests.host.harness import SESSION, Lab, World, call, reply


async def _stopped_inside(lab: Lab) -> World:
    world = lab.world(reply(call("send", "k1", what="a"), call("pay", "k2")))
    lab.outside.release.clear()
    task = world.start()
    await world.allow("send", "pay")
    await asyncio.to_thread(lab.outside.inside.wait, 10)
    world.manager._engines[SESSION].request_interrupt()
    lab.outside.release.set()
    await task
    await world.quiet()
    return world


async def test_stop_lets_the_call_in_flight_end_and_the_next_never_run(lab: Lab) -> None:
    world = await _stopped_inside(lab)
    assert world.states() == ["succeeded"]
    assert "did" in world.answer("k1")
    assert lab.outside.effects == [("send", "a")]
    await world.resume()
    again = await world.crash().restart()
    await again.resume()
    assert lab.outside.effects == [("send", "a")]
    world.valid()


async def test_stop_voids_the_prompts_of_the_reply(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1"), call("pay", "k2")))
    task = world.start()
    await world.allow("send")
    pay = await world.prompt("pay")
    world.manager._engines[SESSION].request_interrupt()
    await task
    await world.quiet()
    assert pay.state == "resolved"
    assert pay.resolution == "void"
    assert world.manager.inbox.pending(SESSION) == []
    assert lab.outside.effects == []
    world.valid()


async def test_a_scheduled_runs_approval_runs_the_call_once(lab: Lab) -> None:
    """The host alone runs it twice: the waiting run goes on and a resume starts beside it."""
    world = lab.world(reply(call("send", "k1", what="a")))
    task = ScheduledTask(
        id="t1", title="nightly", instructions="send it", workspace=str(lab.tmp_path / "ws"),
        every_seconds=3600, next_run=time.time() + 3600,
    )  # fmt: skip
    world.manager.schedule(task)
    run = asyncio.ensure_future(world.manager._run_scheduled_task(task, "schedule"))

    def waiting() -> Any:
        return [i for i in world.manager.inbox.pending() if i.kind == "approval"]

    item = (await world.until(waiting))[0]
    await world.manager.resolve_inbox(item.id, "allow")
    await run
    await world.quiet()
    assert lab.outside.effects == [("send", "a")]
    assert world.rows()[0].occurrence.startswith("t1@")
    messages = world.manager.session_messages(item.session_id)
    assert len([m for m in messages if m["role"] == "tool"]) == 1


async def test_g9_a_session_held_by_another_process_refuses_and_names_it(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    other = Owner(world.folder)
    with other.hold(SESSION):
        events = [e async for e in world.manager.get_engine(SESSION).run("hello")]
        assert [e.type.value for e in events] == ["error"]
        assert "in use by" in events[0].data["error"]
        assert world.messages() == []
        with pytest.raises(SessionHeld):
            world.runtime.owner.hold(SESSION)
    other.close()
    await world.say("go", "send")
    assert lab.outside.count("send") == 1


async def test_two_drives_at_once_run_the_call_once(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "call.allowed")
    await world.say("go", "send")
    lab.hook = None
    lab.outside.effects.clear()
    again = world.reopen(copies[0])
    engine = again.manager.get_engine(SESSION)

    async def resume() -> list[str]:
        return [e.type.value async for e in engine.resume()]

    first, second = await asyncio.gather(resume(), resume())
    assert lab.outside.count("send") == 1
    assert ["error"] in (first, second)


async def test_an_item_answered_for_another_card_is_untouched(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")), reply(call("pay", "k2")), AssistantTurn(text="ok"))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    item = world.item("send")
    task = world.start("pay")
    await world.prompt("pay")
    world.manager.resolve_pending(SESSION, "once")
    await task
    await world.quiet()
    assert lab.outside.count("pay") == 1
    assert item.state == "pending"


@pytest.mark.parametrize(
    "word", ["seen", "allow", "once", "approve", "deny", "", "session deleted"]
)
async def test_c19_what_is_no_decision_leaves_the_item_open(lab: Lab, word: str) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    item = world.item("send")
    assert not await world.manager.resolve_inbox(item.id, word)
    world.manager.inbox.resolve_session(SESSION)
    await world.quiet()
    again = await world.crash().restart()
    assert len(again.items()) == 1
    assert lab.outside.count("send") == 1


async def test_a_lost_inbox_is_recreated_under_a_fresh_key(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    key = world.item("send").tool_call_id
    folder = world.copy("lost")
    (folder / "inbox.json").write_text('{"items": [{"id": "x')
    again = await world.reopen(folder).restart()
    assert len(again.items()) == 1
    assert list(folder.glob("inbox.json.unreadable-*"))
    again.manager.inbox._items.clear()
    back = await again.crash("again").restart()
    assert len(back.items()) == 1
    assert back.item("send").tool_call_id is not None
    assert key is not None


async def test_a_dismissed_item_comes_back_with_the_next_generation(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    item = world.item("send")
    lab.detach()
    item.state, item.resolution = "resolved", "seen"
    world.manager.inbox._save()
    lab.attach_again()
    again = await world.crash().restart()
    assert again.item("send").tool_call_id == f"{str(item.tool_call_id)[:-1]}2"


async def test_a_retry_that_ends_unknown_gets_its_own_item_and_follow_up(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    lab.outside.raises["send"] = TimeoutError()
    assert await world.decide("send", "retry")
    assert world.states() == ["unknown", "unknown"]
    assert world.item("send").data["recovery"]["attempt"] == 2
    assert len(world.follow_ups()) == 1
    assert "unknown too" in world.follow_ups()[0]
    assert await world.decide("send", "happened")
    assert len(world.follow_ups()) == 2
    assert lab.outside.count("send") == 2
    world.valid()


async def test_a_newer_protocols_row_is_never_run(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "effect.before")
    await world.say("go", "send")
    lab.hook = None
    with closing(sqlite3.connect(copies[0] / "coworker.db")) as db, db:
        db.execute("UPDATE tool_executions SET protocol_version = 9, state = 'novel'")
    lab.outside.effects.clear()
    again = await world.reopen(copies[0]).restart()
    await again.resume()
    assert lab.outside.effects == []
    assert "newer version" in again.items()[0].body
    assert not await again.manager.resolve_inbox(again.items()[0].id, "retry")
    assert again.states() == ["novel"]


async def test_a_retry_whose_tool_is_missing_stays_decided(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    again = await world.crash().restart()
    registry = again.manager.get_engine(SESSION).registry
    spec = registry._tools.pop("send")
    assert await again.decide("send", "retry")
    assert lab.outside.count("send") == 1
    assert again.rows()[0].decision is Decision.RETRY
    registry._tools["send"] = spec
    later = await again.crash("later").restart()
    assert lab.outside.count("send") == 2
    assert later.states() == ["unknown", "succeeded"]
    later.valid()


async def test_retry_keeps_the_execution_id_and_counts_attempts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    world = lab.world(reply(ToolCall("k1", "send", {"what": "a"})))
    real = lab.outside.effect

    def effect(name: str, what: str) -> Any:
        from openworker_durable import current_execution

        seen.append(current_execution())
        return real(name, what)

    monkeypatch.setattr(lab.outside, "effect", effect)
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    assert await world.decide("send", "retry")
    assert [c.attempt for c in seen] == [1, 2]
    assert len({c.execution_id for c in seen}) == 1
    assert len({c.idempotency_key for c in seen}) == 1
    schemas = world.manager._engines[SESSION].registry.schemas()
    assert seen[0].execution_id not in str(schemas) + str(world.provider.calls)


async def test_a_late_outcome_after_a_decision_is_evidence(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    row = world.rows()[0]
    assert await world.decide("send", "drop")
    from openworker_durable.models import Outcome
    from openworker_durable.rows import evidence
    from openworker_durable.states import Reason, State

    late = Outcome(state=State.SUCCEEDED, reason=Reason.LATE)
    owner = world.runtime.owner.name
    world.runtime.ledger.run(verbs.finish, row.execution_id, 1, owner, late, 9.0)
    assert world.states() == ["failed"]
    assert len(world.runtime.ledger.fetch(evidence(row.execution_id))) == 1


async def test_g13_settling_works_when_the_session_cannot_be_opened(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "effect.after")
    await world.say("go", "send")
    lab.hook = None
    path = copies[0] / "conversations" / f"{SESSION}.jsonl"
    path.unlink()
    path.mkdir()
    again = await world.reopen(copies[0]).restart()
    assert again.states() == ["unknown"]
    assert await again.manager.resolve_inbox(again.item("send").id, "happened")
    await again.quiet()
    assert again.rows()[0].decision is Decision.HAPPENED
    assert path.is_dir(), "a thread that cannot be read is never written"
    assert lab.outside.count("send") == 1


async def test_a_used_approval_is_not_voided_by_a_later_triage(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")), RuntimeError("500"))
    await world.say("go", "send")
    item = next(i for i in world.manager.inbox.list() if i.kind == "approval")
    again = await world.crash().restart()
    await again.manager.drive_attended(SESSION, retry=True)
    await again.quiet()
    kept = again.manager.inbox.get(item.id)
    assert kept is not None
    assert kept.tool_call_id == "k1"
    with closing(sqlite3.connect(again.folder / "coworker.db")) as db, db:
        stages = [r[0] for r in db.execute("SELECT stage FROM audit_events")]
    assert "approval_void" not in stages


async def test_a_row_whose_call_the_thread_lost_is_surfaced_without_retry(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "effect.after")
    await world.say("go", "send")
    lab.hook = None
    path = copies[0] / "conversations" / f"{SESSION}.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    again = await world.reopen(copies[0]).restart()
    item = again.item("send")
    assert item.data["recovery"]["decisions"] == ["happened", "drop", "unsure"]
    assert not await again.manager.resolve_inbox(item.id, "retry")
    row = again.rows()[0]
    assert row.reason == "lost_thread"
    with pytest.raises(Refused):
        again.runtime.ledger.run(
            verbs.decide, row.execution_id, 1, Decision.RETRY, "elsewhere", "", 1.0
        )
    with closing(sqlite3.connect(again.folder / "coworker.db")) as db, db:
        db.execute("UPDATE tool_executions SET reason = 'owner_died'")
    again.runtime.ledger.run(
        verbs.decide, row.execution_id, 1, Decision.RETRY, "elsewhere", "", 1.0
    )
    await again.runtime.after_turn(SESSION)
    prompt = await again.prompt("send")
    assert prompt.tool_call_id != "k1", "the model proposes it again, under an id of its own"
    assert lab.outside.count("send") == 1
    assert "was not run again" in again.follow_ups()[0]
    assert again.items() == []
    later = await again.crash("later").restart()
    assert len(later.follow_ups()) == 1
    assert lab.outside.count("send") == 1


async def test_a_dead_card_of_an_answered_call_is_voided(lab: Lab) -> None:
    lab.detach()
    alone = World(lab.tmp_path / "state", lab.outside, [reply(call("send", "k1"))])
    task = alone.start()
    item = await alone.prompt("send")
    alone.manager._engines[SESSION].request_interrupt()
    await task
    await alone.manager.deliver_to_session(SESSION, "more")
    assert item.state == "pending", "the host alone leaves it"
    lab.attach_again()
    back = await alone.reopen(alone.copy("later")).restart()
    await back.say("go on")
    kept = back.manager.inbox.get(item.id)
    assert kept is not None
    assert kept.resolution == "void"
    assert lab.outside.effects == []


async def test_an_item_settled_while_another_process_served_is_closed(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    folder = world.copy("shared")
    other = ServerLock(folder)
    assert other.take()
    again = world.reopen(folder)
    assert not again.runtime.server.held
    row = again.rows()[0]
    again.runtime.decide(row.execution_id, 1, Decision.HAPPENED, by="cli")
    await again.restart()
    assert len(again.follow_ups()) == 1
    assert len(again.items()) == 1, "not ours to close yet"
    other.close()
    await again.until(lambda: not again.items())
