"""The model side: message and reply shapes, and a provider that follows a script."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Message = dict[str, Any]

_MESSAGE_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
_ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass
class ToolCall:
    """One call that a reply asks for, its arguments already parsed."""

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class TokenUsage:
    """Token counts of one model round trip."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def context_tokens(self) -> int:
        """Everything the prompt occupied, cached or not."""
        return self.input + self.cache_read + self.cache_write

    def as_dict(self) -> dict[str, int]:
        """Return the counts as plain numbers by name."""
        return asdict(self)


@dataclass
class AssistantTurn:
    """One reply of the model; `extras` are private keys that start with an underscore."""

    text: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    raw: Any = field(default=None, repr=False, compare=False)
    reasoning: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    usage: TokenUsage | None = None


@dataclass
class StreamChunk:
    """A piece of a streamed reply; the last piece carries the whole turn."""

    text_delta: str | None = None
    reasoning_delta: str | None = None
    turn: AssistantTurn | None = None


@dataclass(frozen=True)
class ModelCapabilities:
    """What a model can take in and give out."""

    tools: bool = True
    vision: bool = False
    pdf: bool = False
    parallel_tool_calls: bool = True
    streaming: bool = True


class ProviderClient(ABC):
    """A blocking client for one round trip to a model."""

    @abstractmethod
    def complete(
        self,
        *,
        model: str,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        **settings: Any,
    ) -> AssistantTurn:
        """Return the reply to `messages`."""

    def capabilities(self, model: str) -> ModelCapabilities:
        """Return what `model` can do."""
        return ModelCapabilities()

    def stream(
        self,
        *,
        model: str,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        **settings: Any,
    ) -> Iterator[StreamChunk]:
        """Yield the reply in pieces; by default one piece with the whole turn."""
        turn = self.complete(model=model, messages=messages, tools=tools, **settings)
        yield StreamChunk(turn=turn)


class ProviderRejected(ValueError):
    """The thread is not one that a real provider would accept."""


def _take_answer(message: Message, waiting: list[Any]) -> None:
    call_id = message.get("tool_call_id")
    if call_id not in waiting:
        raise ProviderRejected(f"tool message {call_id!r} answers no open call")
    waiting.remove(call_id)


def _check_shape(message: Message) -> None:
    if message.get("role") not in _ROLES:
        raise ProviderRejected(f"role {message.get('role')!r} is not known")
    foreign = [key for key in message if key not in _MESSAGE_KEYS and not key.startswith("_")]
    if foreign:
        raise ProviderRejected(f"message keys {foreign} are not known")


def _new_calls(message: Message) -> list[Any]:
    ids = [call.get("id") for call in message.get("tool_calls") or []]
    if len(set(ids)) != len(ids):
        raise ProviderRejected(f"call ids {ids} are not unique in their reply")
    return ids


def validate_thread(messages: Sequence[Message]) -> None:
    """Check the pairing of calls and results, and the keys of every message.

    Raises:
        ProviderRejected: with the first thing that is wrong.
    """
    waiting: list[Any] = []
    for message in messages:
        _check_shape(message)
        if message["role"] == "tool":
            _take_answer(message, waiting)
            continue
        if waiting:
            raise ProviderRejected(f"calls {waiting} have no result")
        waiting = _new_calls(message)
    if waiting:
        raise ProviderRejected(f"calls {waiting} have no result")


TurnMaker = Callable[[list[Message]], AssistantTurn]
Step = AssistantTurn | TurnMaker | Exception


class ScriptedProvider(ProviderClient):
    """Gives out prepared replies in order, to threads that pass `validate_thread`.

    Args:
        turns: the replies; a function makes one from the messages it gets, an exception is
            raised instead of a reply. A single function answers every call.
    """

    def __init__(self, turns: Sequence[Step] | TurnMaker = ()) -> None:
        self._turns: Sequence[Step] | TurnMaker = turns
        self._by_progress = False
        self._next = 0
        self._lock = threading.Lock()
        self.calls: list[list[Message]] = []

    @classmethod
    def by_progress(cls, turns: Sequence[Step]) -> ScriptedProvider:
        """Pick each reply by the number of assistant messages in the thread.

        A new process goes on where the thread stands. Do not combine it with compaction, which
        hides messages; an exception in the script is raised again at every try.
        """
        provider = cls(turns)
        provider._by_progress = True
        return provider

    def complete(
        self,
        *,
        model: str,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        **settings: Any,
    ) -> AssistantTurn:
        """Record the thread, check it, and return the reply that is due."""
        seen = copy.deepcopy(messages)
        self.calls.append(seen)
        validate_thread(seen)
        return self._play(self._take_position(seen), seen)

    def _take_position(self, messages: list[Message]) -> int:
        if self._by_progress:
            return sum(1 for message in messages if message.get("role") == "assistant")
        with self._lock:
            self._next += 1
            return self._next - 1

    def _play(self, position: int, messages: list[Message]) -> AssistantTurn:
        if callable(self._turns):
            return self._turns(messages)
        if position >= len(self._turns):
            return AssistantTurn(text="done", finish_reason="stop")
        step = self._turns[position]
        if isinstance(step, Exception):
            raise step
        # The engine changes the turns it gets; the script has to stay as written.
        return copy.deepcopy(step) if isinstance(step, AssistantTurn) else step(messages)
