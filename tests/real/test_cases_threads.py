"""Field cases about threads and live calls on the real host: C07-C10, C14, C32."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import texts, thread
from tests.real.nursery import Real

pytestmark = pytest.mark.crash


def _open(life: Any, kill: str = "", **kwargs: Any) -> None:
    from tests.real.script import call, reply

    made = [call("send", "call_0", to="a"), call("pay", "call_1", to="b")]
    life.open(reply(*made), kill=kill, at="a", **kwargs)


async def _killed(life: Any, place: str) -> None:
    _open(life, place)
    await life.attended_and_allowed("go")


async def _gone_on(life: Any, then: str, decision: str = "") -> Any:
    _open(life)
    await life.go_on(then)
    before = life.facts()
    lost = [i for i in life.items() if "retry" not in i.data["recovery"]["decisions"]]
    retried = [await life.manager.resolve_inbox(i.id, "retry") for i in lost]
    for item in life.items() if decision else []:
        assert await life.manager.resolve_inbox(item.id, decision)
    await life.quiet()
    return {**life.facts(), "before": before, "retried": retried}


def _answers(facts: Any, call_id: str) -> list[str]:
    return [m["content"] for m in facts["messages"] if m.get("tool_call_id") == call_id]


CHANGES = {
    "argument": ('{"to": "a"}', '{"to": "10000"}'),
    "tool": ("send", "delete"),
    "torn": ('{"to": "a"}', '{"to": "a'),
}


def _rewrite(path: Path, old: str, new: str) -> None:
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    for message in lines:
        for made in message.get("tool_calls") or []:
            function = made["function"]
            for key in ("name", "arguments"):
                if function[key] == old and made["id"] == "call_0":
                    function[key] = new
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))


@pytest.mark.parametrize("then", ["resume", "message", "nothing"])
@pytest.mark.parametrize("change", CHANGES)
def test_c07_a_changed_call_never_runs(real: Real, change: str, then: str) -> None:
    real.killed(_killed, place="approved")
    _rewrite(real.thread_file(), *CHANGES[change])
    facts = real.run(_gone_on, then=then, decision="drop")
    assert real.effects() == []
    # Its neighbour is not covered any more either: the reply is not the one that was.
    assert sorted(facts["before"]["reasons"]) == ["changed", "legacy"]
    assert facts["retried"] == [False]
    assert facts["states"] == ["failed", "failed"]
    assert facts["faults"] == facts["disk"] == []


def test_c08_the_person_types_first(real: Real) -> None:
    real.killed(_killed, place="in_after")
    facts = real.run(_gone_on, then="message")
    roles = [m["role"] for m in facts["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert _answers(facts, "call_0") == [texts.provisional("send")]
    assert _answers(facts, "call_1") == [texts.not_started("pay")]
    assert real.effects() == ["send a"]


def test_c08_a_known_result_comes_before_the_line(real: Real) -> None:
    real.killed(_killed, place="returned")
    facts = real.run(_gone_on, then="message")
    (answer,) = _answers(facts, "call_0")
    assert json.loads(answer)["did"] == "send a"
    assert [m["role"] for m in facts["messages"]][-2:] == ["user", "assistant"]
    assert real.effects() == ["send a"]


@pytest.mark.parametrize("then", ["resume", "message", "nothing"])
@pytest.mark.parametrize("place", ["in_after", "returned"])
def test_c09_a_placeholder_never_hides_a_row(real: Real, place: str, then: str) -> None:
    real.killed(_killed, place=place)
    line = {"role": "tool", "tool_call_id": "call_0", "content": "[no result]"}
    with real.thread_file().open("a") as file:
        file.write(json.dumps(line) + "\n")
    facts = real.run(_gone_on, then=then, decision="happened")
    pending = [i for i in facts["before"]["items"] if i["kind"] == "recovery_required"]
    assert len(pending) == (place == "in_after")
    assert real.effects().count("send a") == 1
    assert _answers(facts, "call_0") == ["[no result]"]
    assert len([m for m in facts["messages"] if thread.is_follow_up(m)]) == 1
    # At a sweep alone nobody has asked for the call behind it yet.
    assert facts["faults"] == [] or then == "nothing"


async def _left_while_inside(life: Any, how: str) -> Any:
    """The turn is stopped or cancelled while the tool is inside; the tool ends later."""
    _open(life)
    entered, release = threading.Event(), threading.Event()

    def inside(name: str, to: str) -> None:
        entered.set()
        release.wait(20)

    life.inside = inside
    turn = life.later(life.attended("go"))
    for to in "ab":
        await life.answer(await life.asked(to))
    await asyncio.to_thread(entered.wait, 20)
    if how == "stop":
        life.engine().request_interrupt()
    else:
        turn.cancel()
    meanwhile = life.states()
    release.set()
    await asyncio.gather(turn, return_exceptions=True)
    await life.until(lambda: life.states() == ["succeeded"], "its outcome")
    await life.quiet()
    return {**life.facts(), "meanwhile": meanwhile}


async def _looked_at(life: Any) -> Any:
    _open(life)
    await life.go_on("resume")
    return life.facts()


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_c10_a_call_that_outlives_its_turn_is_taken_up(real: Real, how: str) -> None:
    facts = real.run(_left_while_inside, how=how)
    assert facts["meanwhile"] == ["dispatched"]
    assert json.loads(_answers(facts, "call_0")[0])["did"] == "send a"
    after = real.run(_looked_at)
    assert real.effects().count("send a") == 1
    assert len(_answers(after, "call_0")) == 1
    assert after["faults"] == after["disk"] == []
    assert not [i for i in after["items"] if i["kind"] == "recovery_required"]


async def _stays_inside(life: Any) -> None:
    _open(life)
    life.inside = lambda name, to: _wait_for_ever(life.folder)
    await life.attended_and_allowed("go")


def _wait_for_ever(folder: Path) -> None:
    (folder / "inside").touch()
    threading.Event().wait()


async def _beside(life: Any) -> Any:
    """Another process: looks while the call runs, and again when its process has died."""
    _open(life)
    await life.until((life.folder / "inside").exists, "the other inside")
    await life.start_up()
    await life.attended("and now?")
    await life.quiet()
    first = life.facts()
    (life.folder / "looked").touch()
    await life.until(life.items, "an item")
    await life.quiet()
    return [first, life.facts()]


def test_c14_another_process_is_still_inside_the_call(real: Real) -> None:
    inside = real.start(_stays_inside)
    beside = real.start(_beside)
    for _ in range(2000):
        if (real.folder / "looked").exists() or (real.folder / "report2.json").exists():
            break
        threading.Event().wait(0.005)
    inside.kill()
    first, second = beside.end()
    assert first["states"] == ["dispatched"]
    assert not [i for i in first["items"] if i["kind"] == "recovery_required"]
    assert second["states"] == ["unknown"]
    assert len([i for i in second["items"] if i["kind"] == "recovery_required"]) == 1
    assert real.effects() == []


async def _times_out(life: Any, then: str) -> Any:
    def result(name: str, to: str) -> Any:
        if to == "a":
            raise TimeoutError("the service did not answer")
        return {"did": f"{name} {to}"}

    _open(life)
    life.result = result
    await life.attended_and_allowed("go")
    await life.quiet()
    waiting = life.facts()
    if then == "message":
        await life.attended("leave it")
    (item,) = life.items()
    assert await life.manager.resolve_inbox(item.id, "happened")
    await life.quiet()
    return [waiting, life.facts()]


@pytest.mark.parametrize("then", ["decision", "message"])
def test_c32_the_second_call_waits_for_the_first(real: Real, then: str) -> None:
    waiting, after = real.run(_times_out, then=then)
    assert waiting["states"] == ["unknown"]
    assert _answers(waiting, "call_1") == []
    assert real.effects() == (["send a"] if then == "message" else ["send a", "pay b"])
    assert (_answers(after, "call_1") == [texts.not_started("pay")]) is (then == "message")
    assert after["faults"] == after["disk"] == []
    assert after["messages"][-1]["content"] == "done"
