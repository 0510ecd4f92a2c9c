"""The hard walks of the recovery rules, each killed at every step and brought to its end.

A story runs once while the state folder is copied at every failpoint; each copy is then a
world as a new process finds it, and is driven to its end by the same person. Every end must
have the same effects and a thread that providers accept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import thread, verbs
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.ledger import Ledger
from openworker_durable.states import Decision
from tests.host.harness import SESSION, Lab, World, call, reply

Answers = dict[str, str]


async def bring_to_an_end(world: World, decisions: Answers) -> None:
    """Do what a person would until nothing waits: allow, decide, press on."""
    await world.restart()
    for _ in range(20):
        await world.quiet_or_prompting()
        if world.manager.inbox.pending(SESSION):
            for item in world.manager.inbox.pending(SESSION):
                await world.answer_prompt(item)
            continue
        open_items = [i for i in world.items() if i.data["recovery"]["tool"] in decisions]
        if open_items:
            item = open_items[0]
            word = decisions[item.data["recovery"]["tool"]]
            await world.resolve(item, word)
            continue
        if thread.pairing_faults(world.messages()) or not thread.model_called_since(
            world.messages()
        ):
            await world.resume_in_background()
            await world.quiet_or_prompting()
            if not world.manager.inbox.pending(SESSION) and not world.items():
                return
            continue
        return
    raise AssertionError("does not come to an end")


def effects_ok(world: World, decisions: Answers) -> None:
    """No call more than once, plus once for each retry decided."""
    for row in world.rows():
        attempts = [r for r in world.rows() if r.execution_id == row.execution_id]
        assert len(attempts) <= 1 + sum(r.decision is Decision.RETRY for r in attempts)
    for name, what in set(world.outside.effects):
        executions = {r.execution_id for r in world.rows(name)}
        retries = sum(r.decision is Decision.RETRY for r in world.rows(name))
        assert world.outside.count(name, what) <= max(1, len(executions)) + retries


async def check_every_copy(
    lab: Lab, world: World, copies: list[Path], decisions: Answers, ends: Callable[[World], None]
) -> int:
    lab.hook = None
    for folder in copies:
        lab.outside.effects = _effects_at[folder][:]
        again = world.reopen(folder)
        await bring_to_an_end(again, decisions)
        again.valid()
        effects_ok(again, decisions)
        ends(again)
        assert not again.items(), folder
        await again.manager.aclose()
    return len(copies)


_effects_at: dict[Path, list[tuple[str, str]]] = {}


def record_copies(lab: Lab, world: World) -> list[Path]:
    """Copy the state folder at every failpoint, with the effects seen so far."""
    copies: list[Path] = []

    def hook(_name: str) -> None:
        folder = world.copy(f"kill{len(copies)}")
        _effects_at[folder] = lab.outside.effects[:]
        copies.append(folder)

    lab.hook = hook
    return copies


async def first_unknown(lab: Lab, *script: Any, allow: tuple[str, ...]) -> World:
    """Run the script's first reply with a timeout in the call that `raises` names."""
    world = lab.world(*script)
    await world.say("go", *allow)
    return world


# -- the walks
async def test_walk_three_calls_the_second_unknown(lab: Lab) -> None:
    world = lab.world(reply(call("charge", "k1"), call("send", "k2"), call("notify", "k3")))
    lab.outside.raises["send"] = TimeoutError()
    copies = record_copies(lab, world)
    await world.say("go", "charge", "send", "notify")
    assert world.states() == ["succeeded", "unknown"]
    assert lab.outside.count("notify") == 0
    await world.decide("send", "happened")

    def ends(w: World) -> None:
        assert lab.outside.count("charge") == 1
        assert lab.outside.count("send") == 1
        assert lab.outside.count("notify") == 1
        assert w.messages()[-1]["content"] == "done"

    ends(world)
    assert (
        await check_every_copy(
            lab,
            world,
            copies,
            {"send": "happened", "charge": "happened", "notify": "happened"},
            lambda w: None,
        )
        > 20
    )


@pytest.mark.parametrize("order", [("charge", "send"), ("send", "charge")], ids=["ab", "ba"])
async def test_walk_two_unknown_decided_in_either_order(lab: Lab, order: tuple[str, str]) -> None:
    world = lab.world(reply(call("charge", "k1"), call("send", "k2")))
    copies = lab.copies_at(world, "commit.after:dispatch")
    await world.say("go", "charge", "send")
    lab.hook = None
    again = world.reopen(copies[1])
    _mark_unknown(again, "k1")
    await again.restart()
    assert sorted(again.states()) == ["unknown", "unknown"]
    kills = record_copies(lab, again)
    first, second = order
    lab.outside.effects.clear()
    assert await again.decide(first, "retry")
    assert lab.outside.effects == []
    assert await again.decide(second, "drop")
    assert [n for n, _ in lab.outside.effects] == [first]
    assert len(again.follow_ups()) == 2
    assert again.messages()[-1]["content"] == "done"
    again.valid()
    decisions = {first: "retry", second: "drop"}
    count = await check_every_copy(lab, again, kills, decisions, _two_follow_ups)
    assert count > 8


def _two_follow_ups(world: World) -> None:
    keys = [thread.mark_of(m) for m in world.messages() if thread.is_follow_up(m)]
    assert len({(k["execution_id"], k["attempt"], k["decision"]) for k in keys}) == len(keys)
    assert len(keys) >= 2


def _mark_unknown(world: World, call_id: str) -> None:
    """Make a known row unknown, as if its outcome had been lost: for walks with two of them."""
    import sqlite3

    with closing(sqlite3.connect(world.folder / "coworker.db")) as db, db:
        db.execute(
            "UPDATE tool_executions SET state='unknown', reason='owner_died', snapshot=NULL,"
            " snapshot_digest=NULL, acknowledged_at=NULL WHERE tool_call_id = ?",
            (call_id,),
        )
    path = world.folder / "conversations" / f"{SESSION}.jsonl"
    lines = [x for x in path.read_text().splitlines() if f'"tool_call_id": "{call_id}"' not in x]
    path.write_text("\n".join(lines) + "\n")


async def test_walk_unknown_then_message_then_retry(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")), AssistantTurn(text="hello"))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    kills = record_copies(lab, world)
    await world.say("what else?")
    assert world.messages()[-1]["content"] == "hello"
    assert await world.decide("send", "retry")
    assert lab.outside.count("send") == 2
    assert len(world.follow_ups()) == 1
    assert "did" in world.follow_ups()[0]
    assert world.states() == ["unknown", "succeeded"]
    world.valid()
    await check_every_copy(lab, world, kills, {"send": "retry"}, _one_follow_up_at_least)


def _one_follow_up_at_least(world: World) -> None:
    assert world.follow_ups()


async def test_walk_decision_while_another_turn_runs(lab: Lab) -> None:
    world = lab.world(
        reply(call("send", "k1")), reply(call("pay", "k2")), AssistantTurn(text="paid")
    )
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    task = world.start("pay too")
    pay = await world.prompt("pay")
    kills = record_copies(lab, world)
    assert await world.manager.resolve_inbox(world.item("send").id, "retry")
    assert lab.outside.count("send") == 1, "a turn runs: not now"
    await world.manager.resolve_inbox(pay.id, "allow")
    await task
    await world.quiet()
    assert lab.outside.count("send") == 2
    assert lab.outside.count("pay") == 1
    assert len(world.follow_ups()) == 1
    world.valid()
    await check_every_copy(
        lab, world, kills, {"send": "retry", "pay": "happened"}, _one_follow_up_at_least
    )


async def test_walk_decision_while_nothing_runs_and_the_server_is_down(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    folder = world.copy("down")
    ledger = Ledger(folder / "coworker.db")
    row = world.rows()[0]
    ledger.run(verbs.decide, row.execution_id, 1, Decision.HAPPENED, "cli", "saw it", 5.0)
    ledger.close()
    again = world.reopen(folder)
    kills = record_copies(lab, again)
    await again.restart()
    assert len(again.follow_ups()) == 1
    assert again.items() == []
    assert again.messages()[-1]["content"] == "done"
    again.valid()
    await check_every_copy(lab, again, kills, {}, _exactly_one_follow_up)


def _exactly_one_follow_up(world: World) -> None:
    assert len(world.follow_ups()) == 1
    assert world.messages()[-1]["content"] == "done"


async def test_walk_decision_by_another_process_is_seen_within_a_second(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    await world.restart()
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    row = world.rows()[0]
    ledger = Ledger(world.folder / "coworker.db")
    started = asyncio.get_running_loop().time()
    ledger.run(verbs.decide, row.execution_id, 1, Decision.DROP, "cli", "", 5.0)
    ledger.close()
    await world.until(world.follow_ups)
    assert asyncio.get_running_loop().time() - started < 1.5
    await world.until(lambda: world.messages()[-1]["content"] == "done")
    await world.quiet()
    assert world.items() == []
    world.valid()


@pytest.mark.parametrize("place", ["followup.before", "repair.before", "followup.after"])
async def test_walk_kill_around_the_follow_ups_append(lab: Lab, place: str) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    kills = lab.copies_at(world, place)
    await world.decide("send", "retry")
    lab.hook = None
    assert lab.outside.count("send") == 2
    for folder in kills:
        again = await world.reopen(folder).restart()
        await bring_to_an_end(again, {})
        assert len(again.follow_ups()) == 1
        again.valid()
    assert lab.outside.count("send") == 2


async def test_walk_unsure_then_the_tool_is_proposed_again(lab: Lab) -> None:
    world = lab.world(
        reply(call("send", "k1", what="a")),
        reply(call("send", "k2", what="b"), call("pay", "k3")),
        AssistantTurn(text="end"),
    )
    permissions = world.manager.get_engine(SESSION).permissions
    permissions.allow_tool_for_session("send")
    permissions.allow_tool_for_session("pay")
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go")
    item = world.item("send")
    assert not await world.manager.resolve_inbox(item.id, "unsure")
    await world.quiet()
    assert world.items() == [item]
    assert world.messages()[-1]["role"] == "tool", "unsure starts no resume"
    kills = record_copies(lab, world)
    task = world.start("send it again please")
    prompt = await world.prompt("send")
    assert "may have happened" in prompt.body
    await world.manager.resolve_inbox(prompt.id, "allow")
    await task
    await world.quiet()
    assert [n for n, _ in lab.outside.effects] == ["send", "send", "pay"]
    linked = [r for r in world.rows("send") if r.linked]
    assert linked[0].linked == world.rows("send")[0].execution_id
    world.valid()
    await check_every_copy(lab, world, kills, {"send": "drop", "pay": "happened"}, lambda w: None)


async def test_walk_compaction_in_between(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")), AssistantTurn(text="hello"))
    world.provider = world.manager.provider = _patient()
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    await world.say("something else")
    engine = world.manager._engines[SESSION]
    engine.compact_to(len(engine.messages), "earlier things happened")
    world.manager.save(SESSION, engine)
    boundary = engine.compaction_state
    assert boundary is not None
    before = boundary.boundary_index
    again = world.crash()
    again.manager.provider = _patient()
    await again.restart()
    assert await again.decide("send", "retry")
    assert lab.outside.count("send") == 2
    assert len(again.follow_ups()) == 1
    state = again.manager._engines[SESSION].compaction_state
    assert state is not None
    assert state.boundary_index == before
    shown = again.manager._engines[SESSION]._outbound_messages()
    assert "earlier send call" in str(shown[-2]["content"])
    again.valid()


def _patient() -> Any:
    from openworker_durable.hosts.reference.providers import ScriptedProvider

    def answer(messages: list[dict[str, Any]]) -> AssistantTurn:
        if len([m for m in messages if m["role"] == "user"]) == 1 and len(messages) == 1:
            return reply(call("send", "k1"))
        return AssistantTurn(text="hello")

    return ScriptedProvider(answer)


async def test_walk_a_repair_before_the_boundary_moves_it(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "commit.after:finish")
    await world.say("go", "send")
    lab.hook = None
    folder = copies[0]
    again = world.reopen(folder)
    engine = again.manager.get_engine(SESSION)
    engine.messages.append({"role": "user", "content": "next"})
    engine.compact_to(len(engine.messages) - 1, "earlier")
    again.manager.save(SESSION, engine)
    state = engine.compaction_state
    assert state is not None
    boundary = state.boundary_index
    await again.restart()
    assert [m["role"] for m in again.messages()] == [
        "user", "assistant", "tool", "user", "notice",
    ]  # fmt: skip
    assert state.boundary_index == boundary + 1
    saved = again.manager.session_store.load(SESSION)
    assert saved is not None
    assert saved.compaction["boundary_index"] == boundary + 1


async def test_c23_killed_during_recovery_at_every_step_and_again(lab: Lab) -> None:
    world = lab.world(reply(call("charge", "k1"), call("send", "k2")))
    inside = lab.copies_at(world, "effect.after")
    await world.say("go", "charge", "send")
    lab.hook = None
    decisions = {"send": "happened"}

    async def recover(folder: Path) -> list[Path]:
        """Recover from a kill, copying the folder at every step; return the copies."""
        lab.outside.effects = [("charge", ""), ("send", "")]
        again = world.reopen(folder)
        kills = record_copies(lab, again)
        await bring_to_an_end(again, decisions)
        lab.hook = None
        assert lab.outside.effects == [("charge", ""), ("send", "")], "effects unchanged"
        assert again.states() == ["succeeded", "succeeded"]
        assert len(again.follow_ups()) == 1
        assert again.items() == []
        assert again.messages()[-1]["content"] == "done"
        again.valid()
        await again.manager.aclose()
        return kills

    kills = await recover(inside[1])
    assert len(kills) > 10
    for folder in kills:
        for again in (await recover(folder))[::4]:
            await recover(again)
