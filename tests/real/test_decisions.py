"""After a kill inside the tool: what each decision does, whenever it comes, and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openworker_durable import texts, thread
from tests.real.nursery import Real

pytestmark = pytest.mark.crash

WHEN = ["at once", "after a restart", "after a message"]


def _open(life: Any, kill: str = "") -> None:
    from tests.real.script import call, reply

    life.open(
        reply(call("send", "call_0", to="a"), call("send", "call_1", to="b")), kill=kill, at="a"
    )


async def _first(life: Any) -> None:
    _open(life, kill="in_after")
    await life.attended_and_allowed("go")


async def _halted(life: Any) -> None:
    """A life between the kill and the decision."""
    _open(life)
    await life.go_on("resume")
    assert [i.state for i in life.items()] == ["pending"]


async def _decided(life: Any, word: str, when: str) -> Any:
    _open(life)
    await life.go_on("message" if when == "after a message" else "resume")
    (item,) = life.items()
    taken = await life.manager.resolve_inbox(item.id, word)
    await life.quiet()
    return {**life.facts(), "taken": taken}


def _after(real: Real, word: str, when: str) -> Any:
    real.killed(_first)
    if when == "after a restart":
        real.run(_halted)
    return real.run(_decided, word=word, when=when)


def _pending(facts: Any) -> int:
    return sum(i["kind"] == "recovery_required" and i["state"] == "pending" for i in facts["items"])


def _answers(facts: Any, call_id: str) -> list[str]:
    return [m["content"] for m in facts["messages"] if m.get("tool_call_id") == call_id]


def _follow_ups(facts: Any) -> list[str]:
    return [m["content"] for m in facts["messages"] if thread.is_follow_up(m)]


EFFECTS = {"happened": ["send a"], "drop": ["send a"], "retry": ["send a", "send a"]}
STATES = {"happened": ["succeeded"], "drop": ["failed"], "retry": ["unknown", "succeeded"]}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("word", EFFECTS)
def test_a_final_decision(real: Real, word: str, when: str) -> None:
    facts = _after(real, word, when)
    behind = [] if when == "after a message" else ["send b"]
    assert facts["taken"] is True
    assert sorted(real.effects()) == EFFECTS[word] + behind
    assert sorted(facts["states"]) == sorted(STATES[word] + ["succeeded"] * len(behind))
    assert _pending(facts) == 0
    assert _answers(facts, "call_0") == [texts.provisional("send")]
    assert len(_follow_ups(facts)) == 1
    assert facts["faults"] == facts["disk"] == []
    assert facts["messages"][-1]["content"] == "done"


@pytest.mark.parametrize("when", WHEN)
def test_a_retry_tells_its_result(real: Real, when: str) -> None:
    (text,) = _follow_ups(_after(real, "retry", when))
    assert "send a" in text


NO_DECISIONS = ["unsure", "seen", "allow", "once", "always", "session deleted", "Happened", ""]


async def _not_decided(life: Any, when: str) -> Any:
    _open(life)
    await life.go_on("message" if when == "after a message" else "resume")
    (item,) = life.items()
    taken = {word: await life.manager.resolve_inbox(item.id, word) for word in NO_DECISIONS}
    life.manager.inbox.resolve_session("s1")
    await life.quiet()
    return {**life.facts(), "taken": taken}


@pytest.mark.parametrize("when", WHEN)
def test_no_decision_moves_nothing(real: Real, when: str) -> None:
    real.killed(_first)
    if when == "after a restart":
        real.run(_halted)
    facts = real.run(_not_decided, when=when)
    assert facts["taken"] == dict.fromkeys(NO_DECISIONS, False)
    assert real.effects() == ["send a"]
    assert facts["states"] == ["unknown"]
    assert _pending(facts) == 1
    assert _follow_ups(facts) == []
    assert bool(_answers(facts, "call_1")) is (when == "after a message")
    again = real.run(_decided, word="happened", when="after a restart")
    assert again["taken"] is True
    assert real.effects().count("send a") == 1


async def _decided_with_a_note(life: Any) -> Any:
    _open(life)
    await life.go_on("resume")
    (item,) = life.items()
    note = json.dumps({"decision": "drop", "note": "the service says no"})
    taken = await life.manager.resolve_inbox(item.id, note)
    second = await life.manager.resolve_inbox(item.id, "retry")
    await life.quiet()
    return {**life.facts(), "taken": [taken, second]}


def test_the_first_decision_wins(real: Real) -> None:
    real.killed(_first)
    facts = real.run(_decided_with_a_note)
    assert facts["taken"] == [True, False]
    assert real.effects() == ["send a", "send b"]
    assert facts["states"] == ["failed", "succeeded"]
