"""Automations: a slot that was cut off and is run again asks instead of doing it again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from openworker_durable import rows
from openworker_durable.hosts.driving_hooks import WAITS
from openworker_durable.hosts.reference.automation import ScheduledTask
from openworker_durable.hosts.reference.inbox import InboxItem
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.hosts.slots import occurrence_of_run
from openworker_durable.models import Execution
from tests.host.harness import Lab, World, call, reply

SEND = reply(call("send", "k1", what="report"))
DONE = AssistantTurn(text="done")


def _task(lab: Lab, world: World, *allowed: str) -> ScheduledTask:
    task = ScheduledTask(
        "report", "send the report", str(lab.tmp_path / "work"), next_run=1.0,
        every_seconds=1e9, always_allowed_tools=list(allowed),
    )  # fmt: skip
    return world.manager.schedule(task)


def _rows(world: World) -> list[Execution]:
    found = world.runtime.ledger.known(rows.all_rows())
    return sorted(found, key=lambda r: r.dispatched_at)


def _prompts(world: World) -> list[InboxItem]:
    return [i for i in world.manager.inbox.list(state="pending") if i.kind == "approval"]


async def _cut_off(lab: Lab, world: World, place: str, *allowed: str) -> Path:
    """Run the slot, and return the state folder as a kill at `place` leaves it."""
    task = _task(lab, world, *allowed)
    copies = lab.copies_at(world, place)
    await world.manager._run_scheduled_task(task, "schedule")
    lab.hook = None
    return copies[0]


async def _caught_up(world: World) -> InboxItem:
    """Start anew: the catch-up tick runs the slot again, up to its question."""
    await world.manager.start_gateway()
    prompts: list[InboxItem] = await world.until(lambda: _prompts(world), "a question")
    return prompts[0]


async def test_a_slot_run_again_after_a_known_effect_asks_naming_it(lab: Lab) -> None:
    folder = await _cut_off(lab, lab.world(SEND, DONE), "commit.after:finish", "send")
    assert lab.outside.count("send") == 1
    world = lab.reopened(folder, SEND, DONE)
    asked = await _caught_up(world)
    assert lab.outside.count("send") == 1, "allowed by name, and asked all the same"
    assert "already ran" in asked.body
    assert "send" in asked.body
    assert "succeeded" in asked.body
    await world.manager.resolve_inbox(asked.id, "deny")
    await world.manager.scheduler.settle()
    assert lab.outside.count("send") == 1


async def test_a_slot_cut_off_inside_its_call_ends_in_one_effect_and_two_questions(
    lab: Lab,
) -> None:
    folder = await _cut_off(lab, lab.world(SEND, DONE), "effect.after", "send")
    world = lab.reopened(folder, SEND, DONE)
    asked = await _caught_up(world)
    assert "may have happened" in asked.body
    raised = [i for i in world.manager.inbox.list(state="pending") if i.kind != "approval"]
    assert [i.kind for i in raised] == ["recovery_required"]
    assert lab.outside.count("send") == 1
    await world.manager.resolve_inbox(asked.id, "deny")
    await world.manager.scheduler.settle()


async def test_an_allowed_call_of_a_slot_run_again_runs_once(lab: Lab) -> None:
    folder = await _cut_off(lab, lab.world(SEND, DONE), "commit.after:finish", "send")
    world = lab.reopened(folder, SEND, DONE)
    asked = await _caught_up(world)
    await world.manager.resolve_inbox(asked.id, "allow")
    await world.manager.scheduler.settle()
    assert lab.outside.count("send") == 2, "one that was cut off, and one that a person wanted"
    assert len({r.occurrence for r in _rows(world)}) == 1


async def test_a_fresh_slot_of_the_same_automation_does_not_ask(lab: Lab) -> None:
    world = lab.world(SEND, DONE)
    task = _task(lab, world, "send")
    await world.manager._run_scheduled_task(task, "schedule")
    task.next_run = 2.0
    await asyncio.wait_for(world.manager._run_scheduled_task(task, "schedule"), 10)
    assert lab.outside.count("send") == 2
    assert _prompts(world) == []
    assert [r.occurrence for r in _rows(world)] == [f"{task.id}@1.0", f"{task.id}@2.0"]


async def test_the_cut_off_run_asks_as_well_when_it_goes_on_after_its_slot_was_run_again(
    lab: Lab,
) -> None:
    """The rebuilt engine of the first run carries the occurrence of its own executions."""
    again = reply(call("pay", "k2", what="fee"))
    folder = await _cut_off(lab, lab.world(SEND, DONE), "effect.after", "send", "pay")
    world = lab.reopened(folder, SEND, again, DONE)
    asked = await _caught_up(world)
    await world.manager.resolve_inbox(asked.id, "allow")
    item = await world.until(
        lambda: next(
            (i for i in world.manager.inbox.list(state="pending") if i.kind != "approval"), None
        )
    )
    first = item.session_id
    await world.until(lambda: any("pay" in p.body or p.data.get("tool") == "pay"
                                  for p in _prompts(world)))  # fmt: skip
    settled = asyncio.ensure_future(world.manager.resolve_inbox(item.id, "happened"))
    await world.until(lambda: [p for p in _prompts(world) if p.session_id == first])
    assert lab.outside.count("pay") == 0
    for prompt in _prompts(world):
        await world.manager.resolve_inbox(prompt.id, "deny")
    await settled
    await world.manager.scheduler.settle()


def _of(world: World, session_id: str) -> str:
    return occurrence_of_run(world.manager, session_id, world.runtime.ledger)


async def test_a_prompt_of_a_cut_off_run_answered_after_its_slot_was_done_still_asks(
    lab: Lab,
) -> None:
    """Killed at its first prompt it left no row; the catch-up has done the slot meanwhile."""
    first = lab.world(reply(call("pay", "k0", what="fee")), SEND, DONE)
    task = _task(lab, first, "send")
    copies = lab.copies_at(first, "*")
    run = asyncio.ensure_future(first.manager._run_scheduled_task(task, "schedule"))
    await first.until(lambda: _prompts(first))
    copy = first.copy("prompted")
    lab.hook = None
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    del copies
    world = lab.reopened(copy, SEND, DONE)  # the catch-up's model goes straight to the report
    old = _prompts(world)[0]
    await world.manager.start_gateway()
    await world.manager.scheduler.settle()
    assert lab.outside.count("send") == 1
    world.provider = type(world.provider).by_progress([SEND, SEND, DONE])
    world.manager.provider = world.provider
    waiting = [i for i in _prompts(world) if i.session_id == old.session_id]
    answered = asyncio.ensure_future(world.manager.resolve_inbox(waiting[0].id, "deny"))
    asked = await world.until(lambda: [i for i in _prompts(world) if i.data["tool"] == "send"])
    assert "already ran" in asked[0].body
    assert lab.outside.count("send") == 1
    await world.manager.resolve_inbox(asked[0].id, "deny")
    await answered


async def test_a_run_by_hand_is_no_slot(lab: Lab) -> None:
    from openworker_durable.hosts.reference.automation import TaskRun

    world = lab.world()
    task = _task(lab, world)
    by_hand = world.manager.task_store.add_run(TaskRun(task.id, trigger="manual"))
    by_clock = world.manager.task_store.add_run(TaskRun(task.id, trigger="catchup"))
    assert _of(world, by_hand.session_id) == f"{task.id}@{by_hand.session_id}"
    assert _of(world, by_clock.session_id) == f"{task.id}@1.0"
    assert _of(world, "s1") == ""


async def test_a_run_that_halted_is_not_reported_as_done(lab: Lab) -> None:
    world = lab.world(SEND, DONE)
    lab.outside.raises["send"] = TimeoutError("no answer")
    task = _task(lab, world, "send")
    run: Any = await world.manager._run_scheduled_task(task, "schedule")
    assert (run.status, run.error) == ("error", WAITS)
    assert world.manager.task_store.runs(task.id)[0].error == WAITS


async def test_a_runs_session_is_claimed_while_it_runs(lab: Lab) -> None:
    world = lab.world(SEND, DONE)
    task = _task(lab, world)
    run = asyncio.ensure_future(world.manager._run_scheduled_task(task, "schedule"))
    prompt = (await world.until(lambda: _prompts(world)))[0]
    assert world.manager.is_running(prompt.session_id)
    await world.manager.resolve_inbox(prompt.id, "allow")
    await run
    assert not world.manager.is_running(prompt.session_id)
    assert lab.outside.count("send") == 1
