"""However a turn is driven: turn saved and row dispatched before the effect, result saved after.

The tool itself looks: it reads the database file and the thread's file while it runs.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.real.nursery import Real

pytestmark = pytest.mark.crash

BEFORE = {"states": ["dispatched"], "call saved": True, "answered": False}
AFTER = {"states": ["succeeded"], "call saved": True, "answered": True}


def _look(life: Any) -> list[Any]:
    """Let the tools write down what is on disk when they are inside."""
    seen: list[Any] = []

    def inside(name: str, to: str) -> None:
        session = (life.run_sessions() or ["s1"])[-1]
        seen.append([to, life.on_disk("call_0", session), life.on_disk("call_1", session)])

    life.inside = inside
    return seen


def _open(life: Any, *before: Any, name: str = "send", **kwargs: Any) -> list[Any]:
    from tests.real.script import call, reply

    made = reply(call(name, "call_0", to="a"), call(name, "call_1", to="b"))
    life.open(*before, made, extra_names=("gmail_send_email",), **kwargs)
    return _look(life)


async def _prompted(life: Any) -> list[Any]:
    seen = _open(life)
    await life.attended_and_allowed("go")
    return seen


async def _granted(life: Any) -> list[Any]:
    seen = _open(life, grants=["send"])
    await life.attended("go")
    return seen


async def _auto_mode(life: Any) -> list[Any]:
    seen = _open(life, mode="auto")
    await life.attended("go")
    return seen


async def _always(life: Any) -> list[Any]:
    """The first call of the reply was answered "always"; the next reply's is not asked for."""
    from tests.real.script import call, reply

    seen = _open(life, reply(call("send", "call_x", to="x")))
    turn = life.later(life.attended("go"))
    await life.answer(await life.asked("x"), "always")
    await turn
    return seen[1:]


async def _delivered(life: Any) -> list[Any]:
    seen = _open(life, grants=["send"])
    await life.deliver("go")
    return seen


async def _delivered_prompted(life: Any) -> list[Any]:
    seen = _open(life)
    life.person()
    await life.deliver("go")
    return seen


async def _self_wake(life: Any) -> list[Any]:
    seen = _open(life, grants=["send"])
    past = datetime.now(timezone.utc) - timedelta(minutes=1)
    life.manager.wakes.add_timer("s1", past)
    assert await life.manager.resume_due_wakes() == 1
    return seen


async def _scheduled(life: Any) -> list[Any]:
    seen = _open(life)
    life.automation()
    await life.start_up()
    await life.ran()
    return seen


async def _standing_rule(life: Any) -> list[Any]:
    seen = _open(life, name="gmail_send_email")
    life.automation(["gmail_send_email a", "gmail_send_email b"])
    await life.start_up()
    await life.ran()
    assert {r.authority_kind.value for r in life.rows()} == {"rule"}
    return seen


async def _scheduled_prompted(life: Any) -> list[Any]:
    seen = _open(life)
    life.automation([])
    await life.start_up()
    (session,) = await life.ran()
    for to in "ab":
        await life.answer(await life.asked(to, session))
    await life.ran()
    return seen


async def _retry_button(life: Any) -> list[Any]:
    seen = _open(life, RuntimeError("500"), grants=["send"])
    await life.attended("go")
    assert seen == []
    await life.attended(retry=True)
    return seen


WAYS = {
    f.__name__.strip("_").replace("_", " "): f
    for f in (
        _prompted, _granted, _auto_mode, _always, _delivered, _delivered_prompted, _self_wake,
        _scheduled, _standing_rule, _scheduled_prompted, _retry_button,
    )
}  # fmt: skip


def _right(seen: Any) -> None:
    assert [s[0] for s in seen] == ["a", "b"]
    (_, first, _other), (_, done, second) = seen
    assert first == BEFORE
    assert done == AFTER
    assert second == BEFORE


@pytest.mark.parametrize("way", WAYS)
def test_saved_and_dispatched_before_the_first_effect(real: Real, way: str) -> None:
    _right(real.run(WAYS[way]))
    assert len(real.effects()) == 2 + (way == "always")


async def _killed_at_the_prompt(life: Any) -> None:
    from tests.real.life import die

    _open(life)
    life.later(life.deliver("go"))
    await life.asked("a")
    await life.until(lambda: life.saved() and life.saved()[-1].get("tool_calls"), "saved")
    die()


async def _resumed(life: Any) -> list[Any]:
    seen = _open(life)
    await life.start_up()
    life.person()
    await life.until(lambda: len(seen) == 2, "both calls")
    await life.quiet()
    assert life.facts()["faults"] == []
    return seen


def test_durable_resume_saves_before_the_first_effect(real: Real) -> None:
    real.killed(_killed_at_the_prompt)
    _right(real.run(_resumed))
    assert real.effects() == ["send a", "send b"]


async def _alone(life: Any) -> Any:
    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")), grants=["send"])
    seen: list[Any] = []
    life.inside = lambda name, to: seen.append(len(life.saved()))
    await life.deliver("go")
    return seen


def test_the_host_alone_saves_nothing_before_the_effect(real: Real) -> None:
    assert real.run(_alone, durable=False) == [0]
