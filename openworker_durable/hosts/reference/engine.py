"""The turn engine: asks the model, asks the person, runs tools, keeps the thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from .compaction import CompactionState, apply_to_outbound
from .events import Event, EventType
from .messages import assistant_message as _assistant_message
from .messages import notice_message, outbound, read_call, shorten_mangled, user_message
from .messages import preview as _preview
from .messages import tool_error_message as _tool_error_message
from .messages import tool_result_message as _tool_result_message
from .permissions import PermissionEngine
from .prompts import (
    ApprovalOutcome,
    Approver,
    AuditSink,
    PartialReply,
    PermissionRequest,
    QuestionAsker,
    deny_all,
)
from .providers import AssistantTurn, Message, ProviderClient, StreamChunk, ToolCall
from .tool_calls import ToolCalls
from .tools import ToolRegistry

__all__ = [
    "ApprovalOutcome",
    "Approver",
    "PermissionRequest",
    "QuestionAsker",
    "TurnEngine",
    "_assistant_message",
    "_preview",
    "_tool_error_message",
    "_tool_result_message",
]


class TurnEngine(ToolCalls):
    """Drives one session's turns over one in-memory thread."""

    def __init__(  # noqa: PLR0913 - the host's keywords
        self,
        *,
        provider: ProviderClient,
        registry: ToolRegistry,
        permissions: PermissionEngine,
        model: str,
        instructions: str | None = None,
        approver: Approver | None = None,
        max_iterations: int = 12,
        model_settings: dict[str, Any] | None = None,
        messages: list[Message] | None = None,
        audit_sink: AuditSink | None = None,
        question_asker: QuestionAsker | None = None,
        interrupt_hooks: list[Callable[[], None]] | None = None,
    ) -> None:
        self.provider = provider
        self.registry = registry
        self.permissions = permissions
        self.model = model
        self.approver = approver or deny_all
        self.max_iterations = max_iterations
        self.model_settings = dict(model_settings or {})
        self.messages: list[Message] = list(messages or [])
        self.audit_sink = audit_sink
        self.question_asker = question_asker
        self.audit_context: dict[str, Any] = {}
        self.agent_name = "code"
        self.compaction_state: CompactionState | None = None
        self._cancel = asyncio.Event()
        self._steering: list[tuple[str, dict[str, Any] | None]] = []
        self._standing_notes: dict[str, str] = {}
        self._interrupt_hooks = list(interrupt_hooks or [])
        if instructions and [m["role"] for m in self.messages[:1]] != ["system"]:
            self.messages.insert(0, {"role": "system", "content": instructions})

    # -- from outside -------------------------------------------------------------

    def request_interrupt(self) -> None:
        """Stop the turn at its next chance; a call inside its thread is not stopped."""
        self._cancel.set()
        for hook in self._interrupt_hooks:
            try:
                hook()
            except Exception:
                continue

    def queue_steering(self, text: str, source: dict[str, Any] | None = None) -> None:
        """Keep a line for the running turn, which takes it up between iterations."""
        self._steering.append((text, source))

    def compact_to(self, boundary_index: int, summary: str) -> None:
        """Show the provider `summary` in place of the messages before `boundary_index`."""
        self.compaction_state = CompactionState(boundary_index, summary)
        self._append_notice("compacted", summary)

    async def run(
        self, user_input: Any, *, source: dict[str, Any] | None = None, display: str | None = None
    ) -> AsyncIterator[Event]:
        """Take a line of the person and work until the model asks for no more tools."""
        self.messages.append(user_message(user_input, source, display))
        self._cancel.clear()
        extra = {"source": source, "display": display}
        shown = {key: value for key, value in extra.items() if value is not None}
        yield Event(EventType.TURN_START, {"input": user_input, **shown})
        async for event in self._loop():
            yield event

    async def retry(self) -> AsyncIterator[Event]:
        """Ask the model again, if the thread ends in an error notice; otherwise do nothing."""
        if not self._tail_is_retriable_error():
            return
        self._cancel.clear()
        yield Event(EventType.TURN_START, {"input": ""})
        async for event in self._loop():
            yield event

    async def resume(self) -> AsyncIterator[Event]:
        """Run the trailing reply's unanswered calls and go on; do nothing if there are none."""
        pending = self._unanswered_trailing_tool_calls()
        if not pending:
            return
        self._cancel.clear()
        yield Event(EventType.TURN_START, {"input": "(resumed)"})
        async for event in self._handle_tool_calls(pending):
            yield event
        yield Event(EventType.ITERATION_END, {"iteration": 0})
        if not self._cancel.is_set():
            async for event in self._loop():
                yield event

    # -- the thread ---------------------------------------------------------------

    def _tail_is_retriable_error(self) -> bool:
        for message in reversed(self.messages):
            if message.get("role") != "notice" or message.get("kind") != "model_switch":
                return message.get("role") == "notice" and message.get("kind") == "error"
        return False

    def _unanswered_trailing_tool_calls(self) -> list[ToolCall]:
        # Looks for an answer in the whole thread: a call id used before counts as answered.
        answered = {m.get("tool_call_id") for m in self.messages if m.get("role") == "tool"}
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return []
            if message.get("role") == "assistant" and message.get("tool_calls"):
                return [read_call(c) for c in message["tool_calls"] if c.get("id") not in answered]
        return []

    def _append_notice(self, kind: str, text: str | None = None) -> None:
        self.messages.append(notice_message(kind, text))

    def _inject_steering(self) -> None:
        for text, source in self._steering:
            self.messages.append(user_message(text, source))
        self._steering = []

    def _outbound_messages(self) -> list[Message]:
        return outbound(apply_to_outbound(self.messages, self.compaction_state))

    # -- the model ----------------------------------------------------------------

    async def _loop(self) -> AsyncIterator[Event]:
        for iteration in range(1, self.max_iterations + 1):
            reply = PartialReply()
            try:
                async for chunk in self._astream():
                    reply.take(chunk)
                    if chunk.text_delta:
                        yield Event(EventType.ASSISTANT_DELTA, {"text": chunk.text_delta})
            except Exception as exc:
                yield self._provider_failed(reply, exc)
                return
            if self._cancel.is_set() and reply.turn is None:
                self._keep_partial(reply)
                yield self._interrupted(iteration)
                return
            turn = reply.turn or AssistantTurn()
            yield self._accept(turn)
            if not turn.tool_calls and not self._steering:
                yield Event(EventType.TURN_END, {"status": "completed", "iterations": iteration})
                return
            if turn.tool_calls:
                async for event in self._handle_tool_calls(turn.tool_calls):
                    yield event
                yield Event(EventType.ITERATION_END, {"iteration": iteration})
                if self._cancel.is_set():
                    yield self._interrupted(iteration)
                    return
            self._inject_steering()
        ended = {"status": "max_iterations_exceeded", "iterations": self.max_iterations}
        yield Event(EventType.TURN_END, ended)

    async def _astream(self) -> AsyncIterator[StreamChunk]:
        pieces = self.provider.stream(
            model=self.model,
            messages=self._outbound_messages(),
            tools=self.registry.schemas() or None,
            **self.model_settings,
        )
        while not self._cancel.is_set():
            piece = asyncio.to_thread(next, pieces, None)
            chunk = await self._interruptible(piece, None)
            if chunk is None:
                return
            yield chunk

    def _accept(self, turn: AssistantTurn) -> Event:
        shorten_mangled(turn)
        self.messages.append(_assistant_message(turn, model=self.model))
        data: dict[str, Any] = {"text": turn.text, "tool_calls": [c.name for c in turn.tool_calls]}
        if turn.reasoning:
            data["reasoning"] = turn.reasoning
        if turn.usage is not None:
            data["usage"] = {"model": self.model, **turn.usage.as_dict()}
        return Event(EventType.ASSISTANT_MESSAGE, data)

    def _keep_partial(self, reply: PartialReply) -> None:
        partial = reply.partial()
        if partial is not None:
            self.messages.append(_assistant_message(partial))

    def _provider_failed(self, reply: PartialReply, exc: Exception) -> Event:
        self._keep_partial(reply)
        self._append_notice("error", str(exc))
        return Event(EventType.ERROR, {"error": str(exc), "error_type": type(exc).__name__})

    def _interrupted(self, iteration: int) -> Event:
        self._append_notice("interrupted")
        return Event(EventType.INTERRUPTED, {"iterations": iteration})
