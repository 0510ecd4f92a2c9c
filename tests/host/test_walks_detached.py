"""Walks with the plugin taken away: what the host does alone meanwhile, and what is seen after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openworker_durable import Retention, attach, thread
from openworker_durable.hosts.names import REFERENCE
from openworker_durable.hosts.reference.engine import TurnEngine
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.rows import stored_snapshot
from tests.host.harness import SESSION, Lab, World, call, reply


async def _alone_until(lab: Lab, folder: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the host alone resume an approved call, killed at a place of its own."""
    lab.detach()
    alone = World(folder, lab.outside, [reply(call("send", "k1"))])
    copies: list[Path] = []
    real = getattr(TurnEngine, place)

    def killed(engine: Any, *args: Any) -> Any:
        copies.append(alone.copy(f"alone{len(copies)}"))
        return real(engine, *args)

    monkeypatch.setattr(TurnEngine, place, killed)
    item = alone.manager.inbox.list(session_id=SESSION)[0]
    if item.state == "pending":
        alone.manager.inbox.resolve(item.id, "allow")
    await alone.manager._durable_resume(item)
    monkeypatch.undo()
    lab.attach_again()
    return copies[0]


async def test_walk_detached_the_host_alone_goes_on_and_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(reply(call("send", "k1")))
    copies = lab.copies_at(world, "call.allowed")
    await world.say("go", "send")
    lab.hook = None
    lab.outside.effects.clear()
    folder = await _alone_until(lab, copies[0], "_record_result", monkeypatch)
    assert lab.outside.count("send") == 1
    back = await world.reopen(folder).restart()
    assert back.states() == ["unknown"]
    assert back.rows()[0].reason == "legacy"
    assert "may have happened" in back.answer("k1")
    assert await back.decide("send", "happened")
    assert lab.outside.count("send") == 1
    back.valid()


async def test_walk_detached_while_the_prompt_waits_then_resolved_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lab.world(reply(call("send", "k1")))
    world.start()
    await world.prompt("send")
    folder = await _alone_until(lab, world.copy("parked"), "_execute_sync", monkeypatch)
    lab.outside.effects.clear()
    back = await world.reopen(folder).restart()
    assert lab.outside.effects == []
    assert back.states() == ["unknown"], "the host audited a start that we did not see"
    back.valid()


async def test_walk_detached_and_the_prompt_still_waits(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    world.start()
    await world.prompt("send")
    folder = world.copy("parked")
    lab.detach()
    alone = World(folder, lab.outside, world.script)
    alone.manager.inbox.resolve(alone.manager.inbox.list()[0].id, "allow")
    lab.attach_again()
    back = await world.reopen(folder).restart()
    assert lab.outside.effects == []
    fresh = await back.prompt("send")
    assert fresh.state == "pending", "an approval we did not witness is asked again"
    await back.allow("send")
    await back.quiet()
    assert lab.outside.count("send") == 1
    back.valid()


async def test_g4_legacy_sessions_fail_closed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.detach()
    folder = lab.tmp_path / "old"
    alone = World(folder, lab.outside, [reply(call("send", "k1"))])
    alone.start()
    await alone.prompt("send")
    pending = alone.copy("pending")
    lab.attach_again()
    admitted = await alone.reopen(pending).restart()
    assert admitted.rows() == []
    item = await admitted.prompt("send")
    await admitted.manager.resolve_inbox(item.id, "allow")
    await admitted.quiet()
    assert lab.outside.count("send") == 1
    assert admitted.states() == ["succeeded"]
    admitted.valid()
    killed = await _alone_until(lab, alone.copy("killed"), "_record_result", monkeypatch)
    back = await alone.reopen(killed).restart()
    assert back.states() == ["unknown"]
    assert lab.outside.count("send") == 2, "once admitted, once by the host alone"
    back.valid()


async def test_g14_the_thread_works_when_the_plugin_is_removed_after_recovery(lab: Lab) -> None:
    world = lab.world(reply(call("charge", "k1"), call("send", "k2")), AssistantTurn(text="fine"))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "charge", "send")
    settled = world.copy("undecided")
    assert await world.decide("send", "happened")
    for folder in (settled, world.copy("decided")):
        lab.detach()
        alone = World(folder, lab.outside, world.script)
        await alone.manager.deliver_to_session(SESSION, "and now?")
        assert alone.messages()[-1]["role"] == "assistant"
        assert thread.pairing_faults(alone.messages()) == []
        lab.attach_again()
    assert [n for n, _ in lab.outside.effects] == ["charge", "send"]


async def test_retention_drops_results_and_rows_that_are_safe_in_their_thread(lab: Lab) -> None:
    lab.detach()
    lab.attachment = attach(REFERENCE, retention=Retention(snapshot_days=-1, row_days=1e6))
    world = lab.world(reply(call("send", "k1")))
    await world.say("go", "send")
    await world.manager.aclose()
    again = await world.reopen(world.folder).restart()
    assert again.states() == ["succeeded"]
    assert again.runtime.ledger.fetch(stored_snapshot(again.rows()[0].execution_id, 1)) == [None]
    assert "did" in again.answer("k1")
