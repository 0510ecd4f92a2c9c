"""Results that do not encode are rebuilt after a kill behind the outcome's commit (C11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.real.nursery import Nursery, Real

pytestmark = pytest.mark.crash


def _cycle() -> Any:
    ring: dict[str, Any] = {"a": 1}
    ring["self"] = ring
    return ring


ODD: dict[str, Callable[[], Any]] = {
    "lone surrogate": lambda: {"text": "odd \udc80 end"},
    "cycle": _cycle,
    "20 MB": lambda: {"text": "x" * 20_000_000},
    "bytes": lambda: {"b": b"\x00\xff"},
    "not a number": lambda: {"x": float("nan")},
    "with a display": lambda: {"ok": True, "_display": {"hidden_by_filters": 2}},
}


def _open(life: Any, kind: str, kill: str = "") -> None:
    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")), kill=kill)
    life.result = lambda name, to: ODD[kind]()


async def _turn(life: Any, kind: str, kill: str = "") -> Any:
    _open(life, kind, kill)
    await life.attended_and_allowed("go")
    return _answer(life)


async def _after(life: Any, kind: str, then: str) -> Any:
    _open(life, kind)
    await life.go_on(then)
    assert life.items() == []
    assert life.facts()["faults"] == life.facts()["disk"] == []
    assert life.messages()[-1]["content"] == "done"
    return _answer(life)


def _answer(life: Any) -> Any:
    (found,) = [m for m in life.messages() if m.get("tool_call_id") == "call_0"]
    (saved,) = [m for m in life.saved() if m.get("tool_call_id") == "call_0"]
    assert saved == found
    return {"content": found["content"], "display": found.get("_display")}


@pytest.mark.parametrize("then", ["resume", "message"])
@pytest.mark.parametrize("kind", ODD)
def test_c11_a_result_is_rebuilt_as_it_was(
    real: Real, nursery: Nursery, kind: str, then: str
) -> None:
    whole = Real(nursery, real.folder / "whole")
    whole.folder.mkdir()
    live = whole.run(_turn, kind=kind)
    real.killed(_turn, kind=kind, kill="commit.after:finish")
    assert real.run(_after, kind=kind, then=then) == live
    assert real.effects() == ["send a"]
