"""The reference host's scripted provider and tool schemas."""

from __future__ import annotations

from typing import Any

import pytest

from openworker_durable.hosts.reference import (
    AssistantTurn,
    ProviderRejected,
    ScriptedProvider,
    ToolMetadata,
    ToolRegistry,
    tool,
)
from openworker_durable.hosts.reference.providers import Message

ASKING = ToolMetadata(risk_level="high", requires_approval=True)
CALL = {"id": "a", "type": "function", "function": {"name": "send", "arguments": "{}"}}
ASKS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWERS = {"role": "tool", "tool_call_id": "a", "content": "ok"}
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "thread",
    [
        [USER, ASKS],
        [USER, ASKS, USER],
        [USER, ASKS, ANSWERS, ANSWERS],
        [USER, ANSWERS],
        [USER, {**ASKS, "tool_calls": [CALL, CALL]}, ANSWERS, ANSWERS],
        [{"role": "notice", "kind": "error"}],
        [{**USER, "ts": 1.0}],
    ],
)
def test_the_scripted_provider_rejects_what_a_real_one_would(thread: list[Any]) -> None:
    provider = ScriptedProvider([AssistantTurn(text="hello")])
    with pytest.raises(ProviderRejected):
        provider.complete(model="m", messages=thread)
    good: list[Message] = [USER, ASKS, ANSWERS, {**USER, "_note": 1}]
    assert provider.complete(model="m", messages=good).text == "hello"
    assert len(provider.calls) == 2


def test_the_scripted_provider_can_go_on_where_the_thread_stands() -> None:
    provider = ScriptedProvider.by_progress(
        [AssistantTurn(text="one"), lambda seen: AssistantTurn(text="two")]
    )
    spoken = {"role": "assistant", "content": "one"}
    assert provider.complete(model="m", messages=[USER, spoken, USER]).text == "two"
    assert provider.complete(model="m", messages=[USER]).text == "one"
    assert provider.complete(model="m", messages=[spoken, USER, spoken, USER]).text == "done"


def test_a_schema_comes_from_the_signature() -> None:
    def act(to: str, times: int = 1, tags: list[str] | None = None) -> None:
        """Act."""

    spec = ToolRegistry().register(tool(act, metadata=ASKING))
    parameters = spec.schema["function"]["parameters"]
    kinds = {name: value["type"] for name, value in parameters["properties"].items()}
    assert kinds == {"to": "string", "times": "integer", "tags": "array"}
    assert parameters["required"] == ["to"]
    assert spec.metadata is ASKING
