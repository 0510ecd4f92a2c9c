"""Gates: what a person agreed to is done once, wherever the process dies (design, 6.4)."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from openworker_durable.errors import LedgerUnavailable
from openworker_durable.hosts.reference import gate_effects, toolchain
from openworker_durable.hosts.reference.inbox import InboxItem
from openworker_durable.hosts.reference.providers import AssistantTurn, ToolCall
from openworker_durable.ledger import Ledger
from tests.host.harness import SESSION, Lab, World, reply

DONE = AssistantTurn(text="done")
PLACES = ("effect.before", "effect.after", "commit.before:finish")
"""Kills after which nobody knows whether the effect took place."""


@dataclass(frozen=True)
class Case:
    """One gate: its call, the answer that says yes, and where its effects can be counted."""

    name: str
    arguments: dict[str, Any]
    yes: dict[str, Any]
    log: str

    def effects(self, world: World) -> int:
        where = toolchain.folder if self.name == "request_tool" else world.folder
        path = where / self.log
        return len(path.read_text().splitlines()) if path.exists() else 0


CASES = {
    case.name: case
    for case in (
        Case("propose_team", {"members": [{"persona": "tester"}]}, {"approved": True},
             "teams.jsonl"),
        Case("propose_work_items", {"items": [{"title": "t", "criteria": "c"}]},
             {"approved": True}, "board.jsonl"),
        Case("request_tool", {"name": "scanner"}, {"approved": True}, "installed.log"),
        Case("request_directory", {"path": ".", "primary": True},
             {"granted": True, "path": ".", "writable": True}, "promotions.jsonl"),
    )
}  # fmt: skip


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(toolchain, "folder", lab.tmp_path / "programs")
    return CASES[request.param]


def _world(lab: Lab, case: Case) -> World:
    return lab.world(reply(_call(case)), DONE)


def _call(case: Case, **more: Any) -> ToolCall:
    return ToolCall("g1", case.name, {**case.arguments, **more})


def _prompts(world: World) -> list[InboxItem]:
    kinds = {"plan", "tool", "directory"}
    return [i for i in world.manager.inbox.list(state="pending") if i.kind in kinds]


async def _agreed(world: World, case: Case, answer: dict[str, Any] | None = None) -> None:
    """Take a turn in an open window, and give the gate its answer."""
    task = asyncio.ensure_future(world.manager.drive_attended(SESSION, "go"))
    world.tasks.append(task)
    item = (await world.until(lambda: _prompts(world), "the gate's prompt"))[0]
    await world.manager.resolve_inbox(item.id, json.dumps(answer or case.yes))
    await task
    await world.quiet()


async def _killed(lab: Lab, case: Case, place: str) -> World:
    """Return the world that a new process finds after a kill at `place`."""
    world = _world(lab, case)
    copies = lab.copies_at(world, place)
    tools = lab.tmp_path / "programs"
    await _agreed(world, case)
    lab.hook = None
    assert copies, f"{place} was never reached"
    if case.name == "request_tool" and place == "effect.before":
        (tools / "installed.log").unlink()  # it lies outside the folder that was copied
    return await world.reopen(copies[0]).restart()


async def test_an_agreed_gate_is_recorded_and_told_in_the_hosts_words(lab: Lab, case: Case) -> None:
    world = _world(lab, case)
    await _agreed(world, case)
    assert case.effects(world) == 1
    assert world.states() == ["succeeded"]
    assert world.rows()[0].authority_kind == "item"
    assert '"error"' not in world.answer("g1")
    world.valid()


async def test_a_declined_gate_leaves_no_row(lab: Lab, case: Case) -> None:
    world = _world(lab, case)
    await _agreed(world, case, {"approved": False})
    assert case.effects(world) == 0
    assert world.rows() == []
    assert "denied" in world.answer("g1")
    world.valid()


@pytest.mark.parametrize("place", PLACES)
async def test_killed_around_its_effect_a_person_is_asked_and_nothing_is_done_again(
    lab: Lab, case: Case, place: str
) -> None:
    world = await _killed(lab, case, place)
    done = 0 if place == "effect.before" else 1
    assert case.effects(world) == done
    assert len(world.items()) == 1
    assert "may have happened" in world.answer("g1")
    assert await world.decide(case.name, "happened")
    assert case.effects(world) == done
    world.valid()


async def test_killed_after_its_outcome_the_result_is_rebuilt(lab: Lab, case: Case) -> None:
    world = await _killed(lab, case, "commit.after:finish")
    assert case.effects(world) == 1
    assert world.items() == []
    assert json.loads(world.answer("g1"))[
        {"request_tool": "installed", "request_directory": "granted"}.get(case.name, "approved")
    ]
    await world.resume()
    assert case.effects(world) == 1
    world.valid()


async def test_decided_retry_it_is_done_once_more_by_an_engine_without_a_window(
    lab: Lab, case: Case
) -> None:
    world = await _killed(lab, case, "effect.before")
    assert await world.decide(case.name, "retry")
    assert case.effects(world) == 1
    assert world.states() == ["unknown", "succeeded"]
    assert "run once more" in world.follow_ups()[0]
    world.valid()


async def test_c17_agreed_and_killed_before_dispatch_it_is_asked_again_and_done_once(
    lab: Lab, case: Case
) -> None:
    world = _world(lab, case)
    copies = lab.copies_at(world, "commit.before:dispatch")
    await _agreed(world, case)
    lab.hook = None
    if case.name == "request_tool":
        (toolchain.folder / "installed.log").unlink()
    again = await world.reopen(copies[0]).restart()
    assert case.effects(again) == 0
    prompts = _prompts(again)
    assert len(prompts) == 1
    await again.manager.resolve_inbox(prompts[0].id, json.dumps(case.yes))
    await again.quiet()
    assert case.effects(again) == 1
    assert again.states() == ["succeeded"]
    again.valid()


async def test_g7_with_the_ledger_down_the_effect_is_not_begun(
    lab: Lab, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(lab, case)

    def down(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("locked")

    task = asyncio.ensure_future(world.manager.drive_attended(SESSION, "go"))
    world.tasks.append(task)
    item = (await world.until(lambda: _prompts(world)))[0]
    monkeypatch.setattr(Ledger, "run", down)
    await world.manager.resolve_inbox(item.id, json.dumps(case.yes))
    await task
    monkeypatch.undo()
    assert case.effects(world) == 0
    if case.name != "request_directory":  # the host then grants one more folder, which is no gate
        assert "not made" in world.answer("g1")


async def test_the_repeat_guard_names_the_gate_that_is_in_doubt(lab: Lab, case: Case) -> None:
    world = await _killed(lab, case, "effect.after")
    first = world.rows()[0]
    world.script = [DONE, reply(_call(case)), DONE]
    world.provider = type(world.provider).by_progress([DONE, DONE, reply(_call(case)), DONE])
    world.manager._engines.clear()
    world.manager.provider = world.provider
    seen: list[dict[str, Any]] = []

    async def window(message: dict[str, Any]) -> None:
        seen.append(message)

    world.manager.register_session_client(SESSION, window)
    await world.manager.drive_attended(SESSION, "hello")
    task = asyncio.ensure_future(world.manager.drive_attended(SESSION, "again, please"))
    world.tasks.append(task)
    prompt = (await world.until(lambda: _prompts(world), "the gate's prompt"))[0]
    assert "may have happened already" in prompt.body
    cards = [m["data"] for m in seen if m["type"].endswith(("_proposed", "_requested"))]
    assert "may have happened already" in json.dumps(cards[-1])
    await world.manager.resolve_inbox(prompt.id, json.dumps(case.yes))
    await task
    await world.quiet()
    second = next(r for r in world.rows() if r.execution_id != first.execution_id)
    assert second.linked == first.execution_id
    assert case.effects(world) == 2, "a person wanted it"


async def test_g5_an_agreement_to_another_call_does_not_count(lab: Lab, case: Case) -> None:
    """The same id comes again with other arguments: it has its own prompt."""
    world = lab.world(reply(_call(case)), reply(_call(case, reason="another")), DONE)
    task = asyncio.ensure_future(world.manager.drive_attended(SESSION, "go"))
    world.tasks.append(task)
    first = (await world.until(lambda: _prompts(world)))[0]
    await world.manager.resolve_inbox(first.id, json.dumps(case.yes))
    second = (await world.until(lambda: [i for i in _prompts(world) if i.id != first.id]))[0]
    assert case.effects(world) == 1
    await world.manager.resolve_inbox(second.id, json.dumps({"approved": False}))
    await task
    await world.quiet()
    assert case.effects(world) == 1


async def test_c10_stopped_while_it_runs_its_outcome_comes_as_a_follow_up(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "folder", lab.tmp_path / "programs")
    case = CASES["request_tool"]
    inside, go = threading.Event(), threading.Event()
    real = toolchain.install

    def slow(name: str, *, timeout: int = 120) -> str:
        inside.set()
        go.wait(20)
        return real(name, timeout=timeout)

    monkeypatch.setattr(toolchain, "MANAGED", {"scanner": "1.0"})
    lab.detach()
    monkeypatch.setattr(toolchain, "install", slow)
    lab.attach_again()
    world = _world(lab, case)
    task = asyncio.ensure_future(world.manager.drive_attended(SESSION, "go"))
    world.tasks.append(task)
    item = (await world.until(lambda: _prompts(world)))[0]
    await world.manager.resolve_inbox(item.id, json.dumps(case.yes))
    await asyncio.to_thread(inside.wait, 10)
    world.manager.get_engine(SESSION).request_interrupt()
    await task
    assert "still running" in world.answer("g1")
    go.set()
    await world.until(lambda: world.states() == ["succeeded"])
    await world.until(world.follow_ups)
    await world.quiet()
    assert case.effects(world) == 1
    assert "its outcome is now known" in world.follow_ups()[0]
    world.valid()
    lab.detach()
    monkeypatch.undo()
    lab.attach_again()


async def test_c10_a_retry_that_outlives_its_turn_records_its_outcome(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["request_tool"]
    monkeypatch.setattr(toolchain, "folder", lab.tmp_path / "programs")
    world = await _killed(lab, case, "effect.before")
    inside, go = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        if name == "effect.before":
            inside.set()
            go.wait(20)

    lab.hook = hook
    await world.manager.resolve_inbox(world.item(case.name).id, "retry")
    await asyncio.to_thread(inside.wait, 10)
    for task in list(world.runtime._tasks):
        task.cancel()
    await world.until(lambda: not world.runtime._tasks)
    go.set()
    await world.until(lambda: world.states() == ["unknown", "succeeded"])
    await world.until(world.runtime.guard.idle)
    assert case.effects(world) == 1
    lab.hook = None


async def test_an_error_inside_an_installation_is_told_in_the_hosts_words(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab.tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(toolchain, "folder", lab.tmp_path / "file" / "below")
    case = CASES["request_tool"]
    world = _world(lab, case)
    await _agreed(world, case)
    assert world.states() == ["failed"]
    told = json.loads(world.answer("g1"))
    assert told["installed"] is False
    assert "error_type" not in told
    world.valid()


async def test_g12_an_effect_that_raises_ends_failed_and_is_answered_on_resume(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["propose_team"]

    def broken(*_: Any) -> int:
        raise OSError("no space")

    monkeypatch.setattr(gate_effects.GateEffects, "_note", broken)
    world = _world(lab, case)
    with pytest.raises(OSError, match="no space"):
        await _agreed(world, case)
    assert world.states() == ["failed"]
    await world.quiet()
    await world.resume()
    assert "no space" in world.answer("g1")
    world.valid()
