"""A scheduled run cut off by a kill and caught up after the restart: one effect, one question."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.nursery import Real

pytestmark = pytest.mark.crash


def _open(life: Any, kill: str = "") -> None:
    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")), kill=kill)


async def _cut_off(life: Any, place: str) -> None:
    _open(life, place)
    life.automation()
    await life.start_up()
    await life.ran()
    await life.quiet()


async def _caught_up(life: Any, word: str = "") -> Any:
    """The next life: the catch-up tick starts the slot again."""
    _open(life)
    await life.start_up()
    old, new = await life.ran(2)
    asked = [f"{i.title}\n{i.body}" for i in life.approvals(new)]
    if word:
        for item in life.approvals(new):
            await life.answer(item, word)
        await life.until(lambda: not life.manager.scheduler._running_ids, "the end of the run")
        await life.quiet()
    return {"asked": asked, "old": life.facts(old), "new": life.facts(new)}


def _questions(facts: Any) -> int:
    return sum(i["kind"] == "recovery_required" for i in facts["items"])


@pytest.mark.parametrize(("place", "unknown"), [("in_after", 1), ("returned", 0)])
def test_the_caught_up_run_asks_instead_of_sending_again(
    real: Real, place: str, unknown: int
) -> None:
    real.killed(_cut_off, place=place)
    facts = real.run(_caught_up)
    assert real.effects() == ["send a"]
    assert len(facts["asked"]) == 1
    assert _questions(facts["old"]) == unknown
    assert facts["old"]["faults"] == []


def test_the_question_names_what_the_cut_off_run_did(real: Real) -> None:
    real.killed(_cut_off, place="in_after")
    (text,) = real.run(_caught_up)["asked"]
    assert "send" in text
    assert "scheduled" in text.lower() or "run" in text.lower()


@pytest.mark.parametrize(("word", "effects"), [("deny", 1), ("allow", 2)])
def test_the_answer_decides(real: Real, word: str, effects: int) -> None:
    real.killed(_cut_off, place="in_after")
    facts = real.run(_caught_up, word=word)
    assert len(real.effects()) == effects
    assert facts["new"]["faults"] == facts["new"]["disk"] == []
    assert facts["new"]["messages"][-1]["content"] == "done"


async def _next_slot(life: Any) -> Any:
    _open(life)
    life.automation()
    await life.start_up()
    await life.ran()
    await life.quiet()
    return life.manager.task_store.list()[0].next_run


async def _later_slot(life: Any) -> Any:
    _open(life)
    task = life.manager.task_store.list()[0]
    await life.manager.scheduler.run_task(task, trigger="schedule")
    return [len(life.approvals(s)) for s in life.run_sessions()]


def test_the_next_slot_is_not_asked_about(real: Real) -> None:
    real.run(_next_slot)
    assert real.run(_later_slot) == [0, 0]
    assert real.effects() == ["send a", "send a"]


async def _alone_again(life: Any) -> None:
    _open(life)
    await life.start_up()
    await life.ran(2)
    await life.quiet()


def test_the_host_alone_sends_again(real: Real) -> None:
    real.killed(_cut_off, place="in_after", durable=False)
    real.run(_alone_again, durable=False)
    assert real.effects() == ["send a", "send a"]
