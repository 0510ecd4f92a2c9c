"""One engine of a session at a time: replaced, parked, deleted, or refused to be deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openworker_durable.hosts.binding import binding_of
from openworker_durable.hosts.reference.providers import AssistantTurn
from tests.host.harness import SESSION, Lab, World, call, reply


async def _in_window(world: World, engine: Any, text: str) -> None:
    """Drive a turn with the engine that a window holds, as the web socket does."""
    manager = world.manager
    assert manager.try_mark_running(SESSION)
    try:
        async for event in engine.run(text):
            if event.type.value in ("turn_start", "iteration_end", "permission_required"):
                manager.save(SESSION, engine)
    finally:
        manager.mark_idle(SESSION)
        manager.save(SESSION, engine)


async def test_g2_a_window_whose_engine_was_replaced_and_the_new_one_share_one_thread(
    lab: Lab,
) -> None:
    """After a promotion the host builds a new engine; the window goes on with the old one."""
    said = AssistantTurn(text="ok")
    world = lab.world(said, reply(call("send", "k1", what="a")), said, said)
    held = world.manager.get_engine(SESSION)
    world.manager._promotion_rebuild.add(SESSION)
    await _in_window(world, held, "one")
    built = world.manager.get_engine(SESSION)
    assert built is not held
    built.permissions.allow_tool_for_session("send")
    held.permissions.allow_tool_for_session("send")
    await _in_window(world, held, "send it")
    await world.quiet()
    texts = [m.get("content") for m in world.saved() if m["role"] == "user"]
    assert texts == ["one", "send it"]
    assert lab.outside.count("send") == 1
    await world.manager.deliver_to_session(SESSION, "three")
    await world.quiet()
    texts = [m.get("content") for m in world.saved() if m["role"] == "user"]
    assert texts == ["one", "send it", "three"]
    assert lab.outside.count("send") == 1
    assert world.states() == ["succeeded"]
    world.valid()


async def test_the_engine_that_was_replaced_reads_what_the_new_one_saved(lab: Lab) -> None:
    said = AssistantTurn(text="ok")
    world = lab.world(said, said, said)
    held = world.manager.get_engine(SESSION)
    world.manager._promotion_rebuild.add(SESSION)
    await _in_window(world, held, "one")
    await world.manager.deliver_to_session(SESSION, "two")
    await _in_window(world, held, "three")
    await world.quiet()
    texts = [m.get("content") for m in world.saved() if m["role"] == "user"]
    assert texts == ["one", "two", "three"]
    world.valid()


async def test_g14_a_conversation_whose_index_row_was_lost_is_not_overwritten(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1", what="a")), AssistantTurn(text="ok"))
    lab.outside.raises["send"] = TimeoutError("no answer")
    await world.say("please send it", "send")
    again = world.crash()
    store = again.manager.session_store
    with store._lock:
        store._conn.execute("DELETE FROM sessions")
        store._conn.commit()
    await again.restart()
    assert await again.decide("send", "retry")
    await again.until(lambda: lab.outside.count("send") == 2)
    await again.quiet()
    assert again.saved()[0]["content"] == "please send it"
    assert again.states() == ["unknown", "succeeded"]
    again.valid()


async def test_detached_nothing_of_ours_is_left_on_the_hosts_objects(lab: Lab) -> None:
    world = lab.world(AssistantTurn(text="ok"))
    await world.manager.deliver_to_session(SESSION, "hello")
    await world.quiet()
    manager = world.manager
    engine = manager.get_engine(SESSION)
    lab.detach()
    stores = (manager.inbox, manager.session_store, manager.audit_store)
    for thing in (manager, engine, engine.permissions, *stores):
        assert not [name for name in vars(thing) if name.startswith("_durable")]
    triggers = "SELECT name FROM sqlite_temp_master WHERE type = 'trigger'"
    assert manager.audit_store._conn.execute(triggers).fetchall() == []
    await manager.deliver_to_session(SESSION, "alone")
    assert [m["role"] for m in manager.session_messages(SESSION)] == ["user", "assistant"] * 2
    await manager.scheduler.stop()


async def test_a_session_the_host_will_not_delete_goes_on(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    internal = "__run__x"
    task = asyncio.ensure_future(world.manager.deliver_to_session(internal, "go"))
    item = (await world.until(lambda: world.manager.inbox.pending(internal)))[0]
    assert world.manager.delete_session(internal) == {"ok": False, "error": "internal session"}
    await world.manager.resolve_inbox(item.id, "allow")
    await task
    await world.quiet()
    assert lab.outside.count("send") == 1
    assert [r.session_id for r in world.rows()] == [internal]
    assert world.manager.session_store._read_jsonl(internal), "and it is saved"


async def test_c30_a_message_to_a_session_deleted_while_its_tools_are_fetched_is_dropped(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(AssistantTurn(text="ok"))
    await world.manager.deliver_to_session(SESSION, "hello")
    await world.quiet()
    world.manager._engines.clear()
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(session_id: str, **_: Any) -> list[Any]:
        asked.set()
        await go.wait()
        return []

    monkeypatch.setattr(world.manager, "prepare_mcp_tools", slow)
    task = world.start("and more")
    await asyncio.wait_for(asked.wait(), 5)
    assert world.manager.delete_session(SESSION)["ok"]
    go.set()
    await task
    await world.quiet()
    assert SESSION not in world.manager._engines
    assert world.manager.session_store.load(SESSION) is None
    assert not world.manager.session_store._file(SESSION).exists()


async def test_c30_a_session_deleted_while_its_tools_are_fetched_stays_deleted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(reply(call("send", "k1")))
    engine = world.manager.get_engine(SESSION)
    world.manager.save(SESSION, engine)
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(session_id: str, **_: Any) -> list[Any]:
        asked.set()
        await go.wait()
        return []

    monkeypatch.setattr(world.manager, "prepare_mcp_tools", slow)
    connecting = asyncio.ensure_future(world.runtime.opening.connect(SESSION, {"mcp__a__b"}))
    await asyncio.wait_for(asked.wait(), 5)
    world.manager.delete_session(SESSION)
    go.set()
    await connecting
    assert SESSION not in world.manager._engines
    assert engine._cancel.is_set()
    binding = binding_of(engine)
    assert binding is not None
    assert binding.dead
