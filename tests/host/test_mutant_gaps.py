"""Tests that deliberate mutants asked for: each of them survived everything else (trap 11)."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from openworker_durable import verbs
from openworker_durable.hosts.reference.conversations import ConversationStore
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.models import Intent, ToolIdentity
from openworker_durable.owner import Owner
from tests.host.harness import SESSION, Lab, World, call, reply


async def _unknown(lab: Lab) -> World:
    """A send whose outcome is unknown, its item before the person."""
    world = lab.world(reply(call("send", "k1", what="a")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    return world


async def test_g4_an_approval_we_did_not_witness_runs_nothing_on_resume(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    world.start()
    await world.prompt("send")
    folder = world.copy("parked")
    lab.detach()
    alone = World(folder, lab.outside, world.script)
    alone.manager.inbox.resolve(alone.manager.inbox.list()[0].id, "allow")
    lab.attach_again()
    back = world.reopen(folder)
    await back.resume_in_background()
    await back.until(lambda: lab.outside.effects or back.manager.inbox.pending(SESSION))
    assert lab.outside.effects == []
    await back.allow("send")
    await back.quiet()
    assert lab.outside.count("send") == 1
    back.valid()


async def test_g5_an_approval_about_another_call_is_void(lab: Lab) -> None:
    world = lab.world()
    inbox, asking = world.manager.inbox, world.runtime.asking

    def ask(digest: str) -> str:
        asking[SESSION, "k1"] = Intent(
            session_id=SESSION, incarnation="life", tool_call_id="k1", execution_id="x1",
            tool=ToolIdentity(name="send"), intent_digest=digest,
        )  # fmt: skip
        return inbox.add(SESSION, "approval", "send?", data={}, tool_call_id="k1").id

    first = ask("one")
    assert inbox.resolve(first, "allow")
    assert ask("one") == first, "the same call, asked again: the answer counts"
    other = inbox.get(ask("another"))
    assert other is not None
    assert (other.id != first, other.state) == (True, "pending")


async def test_r7_a_call_of_another_live_process_is_left_alone(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "effect.after")
    await world.say("go", "send")
    lab.hook = None
    other = Owner(copies[0])
    with closing(sqlite3.connect(copies[0] / "coworker.db")) as db, db:
        db.execute("UPDATE tool_executions SET owner = ?", (other.name,))
    db.close()
    again = await world.reopen(copies[0]).restart()
    engine = again.manager.get_engine(SESSION)
    for turn in (engine.resume(), engine.run("hello")):
        assert [e.type.value async for e in turn] == ["error"]
    assert (again.states(), again.items()) == (["dispatched"], [])
    assert [m["role"] for m in again.messages()] == ["user", "assistant"]
    other.close()
    await again.resume()
    assert (again.states(), len(again.items())) == (["unknown"], 1)
    assert lab.outside.count("send") == 1


async def test_r_the_saved_thread_is_read_again_after_the_lock_was_taken(lab: Lab) -> None:
    world = lab.world(AssistantTurn(text="one"), AssistantTurn(text="two"), AssistantTurn(text="3"))
    await world.say("go")
    other = ConversationStore(world.folder)
    record = other.load(SESSION)
    assert record is not None
    record.messages += [
        {"role": "user", "content": "from another process"},
        {"role": "assistant", "content": "two"},
    ]
    other.save(record)
    other.close()
    await world.say("next")
    said = [m["content"] for m in world.messages() if m["role"] == "user"]
    assert said == ["go", "from another process", "next"]
    world.valid()


async def test_r_no_turn_runs_without_the_session_lock(lab: Lab) -> None:
    world = lab.world(AssistantTurn(text="one"))
    engine = world.manager.get_engine(SESSION)
    other = Owner(world.folder)
    with other.hold(SESSION):
        for turn in (engine.run("go"), engine.resume(), engine.retry()):
            assert [e.type.value async for e in turn] == ["error"]
    other.close()
    assert world.messages() == []


async def test_r_a_follow_up_is_looked_for_in_the_whole_thread(lab: Lab) -> None:
    world = await _unknown(lab)
    appended: list[str] = []

    def hook(name: str) -> None:
        if name == "followup.before":
            appended.append(name)
            assert len(appended) == 1, "no second one, not for ever"

    lab.hook = hook
    assert await world.decide("send", "happened")
    assert appended == ["followup.before"]
    assert world.messages()[-1]["content"] == "done"
    again = world.crash()
    assert again.rows()[0].acknowledged_at is None, "otherwise nothing would be looked for"
    await again.runtime.sweep()
    assert len(again.follow_ups()) == 1


async def test_r_a_recovery_item_is_no_prompt_of_its_session(lab: Lab) -> None:
    world = await _unknown(lab)
    assert world.manager.inbox.pending(SESSION) == []
    assert world.manager.inbox.pending() == [world.item("send")]


async def test_c30_a_new_life_of_a_session_hears_nothing_of_the_old_one(lab: Lab) -> None:
    world = await _unknown(lab)
    assert world.manager.delete_session(SESSION)["ok"]
    await world.quiet()
    await world.say("a new life", "send")
    assert await world.decide("send", "happened")
    assert world.follow_ups() == []
    assert world.states() == ["succeeded", "succeeded"]
    assert len({r.incarnation for r in world.rows()}) == 2
    world.valid()


async def test_g2_a_result_that_is_not_on_disk_is_not_acknowledged(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(reply(call("send", "k1")))

    def no_space(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    def hook(name: str) -> None:
        if name == "effect.after":
            monkeypatch.setattr(ConversationStore, "save", no_space)

    lab.hook = hook
    await world.say("go", "send")
    lab.hook = None
    monkeypatch.undo()
    ledger = world.runtime.ledger
    ledger.run(verbs.note, SESSION, "send", "test", "", "so that what was deferred is written")
    assert [r.acknowledged_at for r in world.rows()] == [None]


async def test_g4_a_reply_is_covered_before_it_can_be_saved(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    world.manager.get_engine(SESSION).permissions.allow_tool_for_session("send")
    copies = lab.copies_at(world, "thread.after")
    await world.say("go")
    lab.hook = None
    lab.outside.effects.clear()
    again = await world.reopen(copies[0]).restart()
    assert [m["role"] for m in again.messages()] == ["user", "assistant"]
    assert (again.states(), again.items()) == ([], []), "nothing has run, and that is known"
    await again.resume()
    assert again.states() == ["succeeded"]
    assert lab.outside.count("send") == 1
    again.valid()


async def test_c08_a_message_before_any_call_was_dispatched(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1"), call("pay", "k2")), AssistantTurn(text="fine"))
    world.start()
    await world.prompt("send")
    again = world.crash()
    await again.say("never mind")
    assert "not started" in again.answer("k1")
    assert "not started" in again.answer("k2")
    assert again.manager.inbox.pending(SESSION) == []
    assert (lab.outside.effects, again.rows()) == ([], [])
    assert [m["role"] for m in again.messages()][-2:] == ["user", "assistant"], "no provider error"
    again.valid()


async def test_g14_all_unknown_calls_of_a_reply_are_answered_at_once(lab: Lab) -> None:
    world = lab.world(reply(call("charge", "k1"), call("send", "k2")))
    copies = lab.copies_at(world, "commit.after:dispatch")
    await world.say("go", "charge", "send")
    lab.hook = None
    again = world.reopen(copies[1])
    _lose_the_outcome(again, "k1")
    await again.restart()
    assert again.states() == ["unknown", "unknown"]
    assert ["may have happened" in again.answer(k) for k in ("k1", "k2")] == [True, True]
    assert len(again.items()) == 2
    again.valid()


def _lose_the_outcome(world: World, call_id: str) -> None:
    """Make a call that ended look as if it had been killed inside."""
    with closing(sqlite3.connect(world.folder / "coworker.db")) as db, db:
        db.execute(
            "UPDATE tool_executions SET state = 'dispatched', owner = 'nobody', ended_at = NULL,"
            " snapshot = NULL, snapshot_digest = NULL, acknowledged_at = NULL"
            " WHERE tool_call_id = ?",
            (call_id,),
        )
    db.close()
    path = world.manager.session_store._file(SESSION)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(x for x in lines if f'"tool_call_id": "{call_id}"' not in x))
