"""A first run of the host alone, a second with this package: the legacy rules (12, 13)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.nursery import Real

pytestmark = pytest.mark.crash


def _open(life: Any, kill: str = "") -> None:
    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")), kill=kill)


async def _killed_at_the_prompt(life: Any) -> None:
    from tests.real.life import die

    _open(life)
    life.later(life.attended("go"))
    await life.asked("a")
    await life.until(lambda: life.saved() and life.saved()[-1].get("tool_calls"), "saved")
    die()


async def _killed(life: Any, place: str) -> None:
    _open(life, place)
    await life.attended_and_allowed("go")


async def _second(life: Any, then: str, decision: str = "") -> Any:
    _open(life)
    await life.go_on(then)
    before = life.facts()
    for item in life.items() if decision else []:
        assert await life.manager.resolve_inbox(item.id, decision)
    await life.quiet()
    return [before, life.facts()]


async def _allow_after_a_restart(life: Any, word: str) -> Any:
    _open(life)
    await life.start_up()
    (item,) = life.approvals()
    await life.manager.resolve_inbox(item.id, word)
    await life.quiet()
    return life.facts()


async def _message_after_a_restart(life: Any) -> Any:
    _open(life)
    await life.start_up()
    await life.attended("and now?")
    return life.facts()


@pytest.mark.parametrize(("word", "effects"), [("allow", ["send a"]), ("deny", [])])
def test_rule_12_a_prompt_left_open_is_admitted(real: Real, word: str, effects: list[str]) -> None:
    real.killed(_killed_at_the_prompt, durable=False)
    facts = real.run(_allow_after_a_restart, word=word)
    assert real.effects() == effects
    assert [i["kind"] for i in facts["items"]] == ["approval"]
    assert facts["states"] == ["succeeded"] * len(effects)
    assert facts["faults"] == facts["disk"] == []
    assert facts["messages"][-1]["content"] == "done"


def test_rule_12_a_new_message_voids_the_prompt(real: Real) -> None:
    real.killed(_killed_at_the_prompt, durable=False)
    facts = real.run(_message_after_a_restart)
    assert real.effects() == []
    assert [i["state"] for i in facts["items"]] == ["resolved"]
    (answer,) = [m["content"] for m in facts["messages"] if m["role"] == "tool"]
    assert "not started" in answer


@pytest.mark.parametrize("then", ["resume", "message", "nothing"])
@pytest.mark.parametrize("place", ["approved", "in_before", "in_after", "returned", "in_thread"])
def test_rule_13_a_call_allowed_before_the_record_asks(real: Real, place: str, then: str) -> None:
    real.killed(_killed, place=place, durable=False)
    seen = real.effects()
    before, after = real.run(_second, then=then, decision="happened")
    assert real.effects() == seen
    assert before["states"] == ["unknown"]
    assert before["reasons"] == ["legacy"]
    pending = [i for i in before["items"] if i["kind"] == "recovery_required"]
    assert len(pending) == 1
    assert after["states"] == ["succeeded"]
    assert after["faults"] == after["disk"] == []
    assert after["messages"][-1]["content"] == "done"


def test_rule_13_a_retry_runs_it_once(real: Real) -> None:
    real.killed(_killed, place="in_before", durable=False)
    after = real.run(_second, then="resume", decision="retry")[-1]
    assert real.effects() == ["send a"]
    assert after["states"] == ["unknown", "succeeded"]
    assert after["faults"] == []


async def _alone(life: Any) -> None:
    _open(life)
    life.person()
    await life.resume()


async def _read(life: Any) -> Any:
    _open(life)
    await life.go_on("nothing")
    return life.facts()


def test_detached_at_a_known_result_the_host_alone_runs_it_and_we_do_not_again(real: Real) -> None:
    real.killed(_killed, place="approved")
    real.run(_alone, durable=False)
    facts = real.run(_read)
    assert real.effects() == ["send a"]
    assert facts["faults"] == []
