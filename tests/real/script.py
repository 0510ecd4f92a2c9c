"""A scripted model of the real host, as strict about calls and results as real services are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coworker.providers import AssistantTurn, ProviderClient, StreamChunk, ToolCall
from coworker.providers.base import ModelCapabilities


def call(name: str, call_id: str, **arguments: Any) -> ToolCall:
    """Return one call of a reply."""
    return ToolCall(id=call_id, name=name, arguments=arguments)


def reply(*calls: ToolCall, **extras: Any) -> AssistantTurn:
    """Return one reply that makes calls; extras are the provider's sidecars."""
    return AssistantTurn(tool_calls=list(calls), finish_reason="tool_calls", extras=dict(extras))


class Script(ProviderClient):  # type: ignore[misc]  # the host ships no types
    """A model that gives its replies in order and rejects a call without a result.

    Args:
        replies: the reply for each number of assistant messages seen; then "done". An
            exception is raised once, and the reply behind it takes its place.
    """

    def __init__(self, replies: Sequence[Any]) -> None:
        self.replies = list(replies)
        self.asked: list[list[dict[str, Any]]] = []

    def capabilities(self, model: str) -> ModelCapabilities:
        """Say what the model can do: everything."""
        return ModelCapabilities()

    def complete(self, *, model: str, messages: Any, tools: Any = None, **_: Any) -> AssistantTurn:
        """Return the reply that is due; a title when no tools are offered."""
        if not tools:
            return AssistantTurn(text="a title")
        self.asked.append(messages)
        faults = pairing(messages)
        if faults:
            raise ValueError(f"400: {faults}")
        number = sum(m["role"] == "assistant" for m in messages)
        due = self.replies[number] if number < len(self.replies) else AssistantTurn(text="done")
        if isinstance(due, Exception):
            raise self.replies.pop(number)
        return due

    def stream(self, *, model: str, messages: Any, tools: Any = None, **_: Any) -> Any:
        """Yield the whole reply in one piece."""
        yield StreamChunk(turn=self.complete(model=model, messages=messages, tools=tools))


def pairing(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return what real providers would reject about calls and results."""
    waiting: list[str] = []
    faults: list[str] = []
    for message in messages:
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                faults.append(f"a result without its call: {message.get('tool_call_id')}")
        elif role in ("user", "assistant"):
            faults += [f"a call without a result: {i}" for i in waiting]
            waiting = [c["id"] for c in message.get("tool_calls") or []]
    return faults + [f"a call without a result: {i}" for i in waiting]
