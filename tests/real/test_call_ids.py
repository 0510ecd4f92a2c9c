"""Call ids that providers repeat or leave out, live and over a kill (C02, C03)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.real.nursery import Real

pytestmark = pytest.mark.crash

SCRIPTS = {
    "repeated over two replies": [[("send", "call_0", "a")], [("pay", "call_0", "b")]],
    "repeated with another target": [[("send", "call_0", "a")], [("send", "call_0", "b")]],
    "twice in one reply": [[("send", "x", "a"), ("pay", "x", "b")]],
    "empty": [[("send", "", "a"), ("pay", "", "b")]],
    "empty over two replies": [[("send", "", "a")], [("pay", "", "b")]],
    "too long": [[("send", "c" * 64, "a")], [("pay", "c" * 64, "b")]],
}


def _open(life: Any, script: str, kill: str = "", at: str = "") -> None:
    from tests.real.script import call, reply

    replies = [reply(*(call(n, i, to=to) for n, i, to in calls)) for calls in SCRIPTS[script]]
    life.open(*replies, kill=kill, at=at)


def _facts(life: Any) -> Any:
    made = [c for m in life.messages() for c in m.get("tool_calls") or []]
    answers = {m["tool_call_id"]: m["content"] for m in life.messages() if m["role"] == "tool"}
    return {
        **life.facts(),
        "ids": [c["id"] for c in made],
        "answers": [
            [json.loads(c["function"]["arguments"])["to"], answers.get(c["id"], "")] for c in made
        ],
        "executions": len({r.execution_id for r in life.rows()}),
        "authorities": len({r.authority_ref for r in life.rows()}),
    }


async def _asked_for_each(life: Any, script: str, words: list[str]) -> Any:
    _open(life, script)
    turn = life.later(life.attended("go"))
    for to, word in zip("ab", words, strict=True):
        await life.answer(await life.asked(to), word)
    await turn
    await life.quiet()
    return _facts(life)


@pytest.mark.parametrize("script", SCRIPTS)
def test_c02_c03_each_call_is_asked_for_and_runs(real: Real, script: str) -> None:
    facts = real.run(_asked_for_each, script=script, words=["allow", "allow"])
    assert [e.split()[1] for e in real.effects()] == ["a", "b"]
    assert facts["executions"] == facts["authorities"] == 2
    _each_its_own(facts)


def _each_its_own(facts: Any) -> None:
    assert len(set(facts["ids"])) == 2
    assert all(0 < len(i) <= 64 for i in facts["ids"])
    for to, answer in facts["answers"]:
        assert json.loads(answer)["did"].endswith(f" {to}")
    assert facts["faults"] == facts["disk"] == []
    assert facts["messages"][-1]["content"] == "done"
    assert {i["kind"] for i in facts["items"]} == {"approval"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_c02_c03_the_second_denied_does_not_run(real: Real, script: str) -> None:
    facts = real.run(_asked_for_each, script=script, words=["allow", "deny"])
    assert [e.split()[1] for e in real.effects()] == ["a"]
    assert facts["executions"] == 1
    assert facts["faults"] == facts["disk"] == []


async def _killed_at_the_second_prompt(life: Any, script: str) -> None:
    from tests.real.life import die

    _open(life, script)
    life.later(life.attended("go"))
    await life.answer(await life.asked("a"))
    await life.asked("b")
    await life.until(lambda: life.saved()[-1]["role"] == "assistant", "saved")
    die()


async def _answer_the_second(life: Any, script: str, word: str) -> Any:
    _open(life, script)
    await life.start_up()
    await life.settled()
    await life.answer(await life.asked("b"), word)
    await life.quiet()
    return _facts(life)


TWO_REPLIES = [s for s, replies in SCRIPTS.items() if len(replies) == 2]


@pytest.mark.parametrize(("word", "seen"), [("allow", ["a", "b"]), ("deny", ["a"])])
@pytest.mark.parametrize("script", TWO_REPLIES)
def test_c02_over_a_restart_while_the_second_prompt_waits(
    real: Real, script: str, word: str, seen: list[str]
) -> None:
    real.killed(_killed_at_the_second_prompt, script=script)
    facts = real.run(_answer_the_second, script=script, word=word)
    assert [e.split()[1] for e in real.effects()] == seen
    assert facts["faults"] == facts["disk"] == []
    assert facts["messages"][-1]["content"] == "done"


async def _killed_in_the_second(life: Any, script: str, place: str) -> None:
    _open(life, script, place, "b")
    await life.attended_and_allowed("go")


async def _gone_on(life: Any, script: str) -> Any:
    _open(life, script)
    await life.go_on("resume")
    return _facts(life)


@pytest.mark.parametrize("place", ["returned", "in_thread"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_c02_c03_the_second_is_rebuilt_as_its_own(real: Real, script: str, place: str) -> None:
    real.killed(_killed_in_the_second, script=script, place=place)
    facts = real.run(_gone_on, script=script)
    assert [e.split()[1] for e in real.effects()] == ["a", "b"]
    _each_its_own(facts)


async def _alone(life: Any) -> None:
    _open(life, "repeated with another target")
    turn = life.later(life.attended("go"))
    await life.answer(await life.asked("a"))
    await turn


def test_the_host_alone_does_not_ask_for_the_second(real: Real) -> None:
    real.run(_alone, durable=False)
    assert real.effects() == ["send a", "send b"]
