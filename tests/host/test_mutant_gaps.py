"""Tests that deliberate mutants asked for: each of them survived everything else (trap 11)."""

from __future__ import annotations

import sqlite3

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
    with sqlite3.connect(copies[0] / "coworker.db") as db:
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
