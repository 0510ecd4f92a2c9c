"""Call ids through the host's own provider code: Gemini, salvaged calls, the `_openai` sidecar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.real.nursery import Real

pytestmark = pytest.mark.crash

TWO = [[("send", "a")], [("pay", "b")]]
ONE = [[("send", "a"), ("pay", "b")]]
CASES: dict[str, tuple[str, Any, list[str]]] = {
    "gemini over two replies": ("gemini", TWO, []),
    "gemini in one reply": ("gemini", ONE, []),
    "salvaged over two replies": ("chat", TWO, []),
    "salvaged in one reply": ("chat", ONE, []),
    "sidecar over two replies": ("responses", TWO, ["call_0", "call_0"]),
    "sidecar in one reply": ("responses", ONE, ["call_0", "call_0"]),
    "sidecar with empty ids": ("responses", ONE, ["", ""]),
}


def _provider(case: str) -> tuple[Any, Any]:
    from coworker.providers.gemini_provider import GeminiProvider
    from coworker.providers.openai_provider import OpenAIProvider
    from coworker.providers.openai_responses import OpenAIResponsesProvider

    from tests.real import recorded

    kind, replies, ids = CASES[case]
    client, provider = {
        "gemini": (recorded.GeminiClient, GeminiProvider),
        "chat": (recorded.ChatClient, OpenAIProvider),
        "responses": (recorded.ResponsesClient, OpenAIResponsesProvider),
    }[kind]
    made = client(replies, ids)
    return made, provider(client=made)


def _facts(life: Any, client: Any) -> Any:
    made = [c for m in life.messages() for c in m.get("tool_calls") or []]
    answers = {m["tool_call_id"]: m["content"] for m in life.messages() if m["role"] == "tool"}
    sidecars = [
        [i["call_id"] for i in m["_openai"]["items"] if i["type"] == "function_call"]
        for m in life.messages() if "_openai" in m
    ]  # fmt: skip
    return {
        **life.facts(),
        "ids": [c["id"] for c in made],
        "sidecars": [i for ids in sidecars for i in ids],
        "did": [json.loads(answers[c["id"]])["did"] for c in made],
        "requests": len(client.requests),
        "notices": [m.get("text") for m in life.messages() if m["role"] == "notice"],
        "signed": json.dumps(client.requests[-1], default=str).count("thought_signature"),
    }


async def _turn(life: Any, case: str, word: str, kill: str = "") -> Any:
    client, provider = _provider(case)
    life.open(provider=provider, kill=kill, at="b")
    turn = life.later(life.attended("go"))
    await life.answer(await life.asked("a"))
    await life.answer(await life.asked("b"), word)
    await turn
    await life.quiet()
    return {**life.facts(), "notices": _notices(life)} if word == "deny" else _facts(life, client)


def _notices(life: Any) -> list[str]:
    return [str(m.get("text")) for m in life.messages() if m["role"] == "notice"]


async def _gone_on(life: Any, case: str, then: str) -> Any:
    client, provider = _provider(case)
    life.open(provider=provider)
    await life.go_on(then)
    return _facts(life, client)


def _right(case: str, facts: Any) -> None:
    assert facts["notices"] == []
    assert facts["faults"] == facts["disk"] == []
    assert facts["did"] == ["send a", "pay b"]
    assert len(set(facts["ids"])) == 2
    assert facts["messages"][-1]["content"] == "done"
    if CASES[case][0] == "responses":
        assert facts["sidecars"] == facts["ids"]
    if CASES[case][0] == "gemini":
        assert facts["signed"] == 2


@pytest.mark.parametrize("case", CASES)
def test_each_call_is_its_own(real: Real, case: str) -> None:
    facts = real.run(_turn, case=case, word="allow")
    assert real.effects() == ["send a", "pay b"]
    _right(case, facts)


@pytest.mark.parametrize("case", CASES)
def test_the_second_denied_does_not_run(real: Real, case: str) -> None:
    facts = real.run(_turn, case=case, word="deny")
    assert real.effects() == ["send a"]
    assert facts["notices"] == []
    assert facts["faults"] == facts["disk"] == []
    assert facts["messages"][-1]["content"] == "done"


@pytest.mark.parametrize("then", ["resume", "message"])
@pytest.mark.parametrize("case", CASES)
def test_the_second_is_rebuilt_and_the_service_takes_it(real: Real, case: str, then: str) -> None:
    real.killed(_turn, case=case, word="allow", kill="returned")
    facts = real.run(_gone_on, case=case, then=then)
    assert real.effects() == ["send a", "pay b"]
    _right(case, facts)
