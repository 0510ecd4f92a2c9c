"""A model that says what it was told to say, by the progress of the live thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..hosts.reference.providers import AssistantTurn, Message, ScriptedProvider, ToolCall
from .scenario import Fail, Reply


class Script(ScriptedProvider):
    """Plays replies to threads that real providers would accept, and notes what it refused.

    Args:
        replies: the script; a `Fail` belongs to the reply after it and happens once.
        position: how many replies the thread holds, hidden ones (compaction) included.
    """

    def __init__(self, replies: Sequence[Reply], position: Callable[[], int]) -> None:
        super().__init__(self._next_turn)
        self._position = position
        self._replies: list[AssistantTurn] = []
        self._failures: dict[int, list[str]] = {}
        self.errors: list[str] = []
        for reply in replies:
            if isinstance(reply, Fail):
                self._failures.setdefault(len(self._replies), []).append(reply.text)
            else:
                self._replies.append(_turn(reply))

    def complete(
        self,
        *,
        model: str,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        **settings: Any,
    ) -> AssistantTurn:
        """Return the reply that is due."""
        try:
            return super().complete(model=model, messages=messages, tools=tools, **settings)
        except Exception as exc:
            self.errors.append(f"{type(exc).__name__}: {exc}")
            raise

    def _next_turn(self, _messages: list[Message]) -> AssistantTurn:
        place = self._position()
        if self._failures.get(place):
            raise RuntimeError(self._failures[place].pop(0))
        if place >= len(self._replies):
            return AssistantTurn(text="nothing more to do")
        return _copy(self._replies[place])


def _turn(reply: str | tuple[Any, ...]) -> AssistantTurn:
    if isinstance(reply, str):
        return AssistantTurn(text=reply)
    return AssistantTurn(tool_calls=[ToolCall(c.id, c.name, dict(c.arguments)) for c in reply])


def _copy(turn: AssistantTurn) -> AssistantTurn:
    # The engine changes the turns it gets; the script has to stay as written.
    calls = [ToolCall(c.id, c.name, dict(c.arguments)) for c in turn.tool_calls]
    return AssistantTurn(text=turn.text, tool_calls=calls)
