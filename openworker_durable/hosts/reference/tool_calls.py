"""The half of the turn engine that authorises and runs the calls of one reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from .events import Event, EventType
from .gates import Gates
from .messages import is_mangled as _is_mangled
from .messages import preview as _preview
from .messages import tool_error_message as _tool_error_message
from .messages import tool_result_message as _tool_result_message
from .permissions import Decision, PermissionEngine, standing_rule_candidate
from .prompts import ApprovalOutcome, Approver, AuditSink, PermissionRequest, QuestionAsker
from .providers import Message, ToolCall
from .tools import ToolRegistry

T = TypeVar("T")


class ToolCalls(Gates):
    """What a `TurnEngine` does with tool calls; the engine's constructor sets the attributes."""

    registry: ToolRegistry
    permissions: PermissionEngine
    approver: Approver
    question_asker: QuestionAsker | None
    audit_sink: AuditSink | None
    audit_context: dict[str, Any]
    messages: list[Message]
    _cancel: asyncio.Event
    _standing_notes: dict[str, str]

    async def _interruptible(self, coro: Coroutine[Any, Any, T], interrupted: T) -> T:
        work = asyncio.ensure_future(coro)
        stop = asyncio.ensure_future(self._cancel.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if work.done():
            return work.result()
        work.cancel()
        return interrupted

    async def _handle_tool_calls(self, tool_calls: list[ToolCall]) -> AsyncIterator[Event]:
        cleared: list[ToolCall] = []
        for call in tool_calls:
            if self._cancel.is_set():
                yield self._interrupted_tool(call)
                continue
            proposed = {"name": call.name, "arguments": call.arguments}
            yield Event(EventType.TOOL_PROPOSED, proposed)
            self._audit(call, stage="proposed")
            if _is_mangled(call):
                yield self._mangled_tool(call)
            elif call.name == "ask_user":
                async for event in self._handle_ask_user(call):
                    yield event
            elif (gate := self._gate_for(call.name)) is not None:
                async for event in gate(call):
                    yield event
            else:
                async for item in self._authorize(call):
                    if isinstance(item, Event):
                        yield item
                    elif item:
                        cleared.append(call)
        async for event in self._run_cleared(cleared):
            yield event

    async def _run_cleared(self, cleared: list[ToolCall]) -> AsyncIterator[Event]:
        together = [c for c in cleared if self._parallel_safe(c)] if len(cleared) > 1 else []
        for call in together:
            yield Event(EventType.TOOL_STARTED, {"name": call.name})
            self._audit(call, stage="started")
        work = [asyncio.to_thread(self._execute_sync, call) for call in together]
        for call, (result, status) in zip(together, await asyncio.gather(*work), strict=True):
            yield self._record_result(call, result, status)
        for call in [c for c in cleared if c not in together]:
            if self._cancel.is_set():
                yield self._interrupted_tool(call)
                continue
            yield Event(EventType.TOOL_STARTED, {"name": call.name})
            self._audit(call, stage="started")
            result, status = await asyncio.to_thread(self._execute_sync, call)
            yield self._record_result(call, result, status)

    def _parallel_safe(self, tool_call: ToolCall) -> bool:
        spec = self.registry.get(tool_call.name)
        metadata = spec.metadata if spec else None
        low = getattr(metadata, "risk_level", "") == "low"
        return low and not getattr(metadata, "requires_approval", False)

    def _execute_sync(self, tool_call: ToolCall) -> tuple[Any, str]:
        try:
            result = self.registry.execute(tool_call.name, tool_call.arguments)
        except Exception as exc:
            return {"error_type": type(exc).__name__, "error": str(exc)}, "error"
        return result, "ok"

    # -- consent ------------------------------------------------------------------

    async def _authorize(self, tool_call: ToolCall) -> AsyncIterator[Event | bool]:
        spec = self.registry.get(tool_call.name)
        metadata = spec.metadata if spec else None
        decision = self.permissions.evaluate(tool_call.name, tool_call.arguments, metadata)
        allowed, reason = decision.allowed, decision.reason
        if allowed and decision.rule:
            self._standing_notes[tool_call.id] = decision.rule
            self._audit(tool_call, stage="auto_allowed", status="allowed", reason=reason)
        if not allowed and decision.needs_user:
            yield self._permission_event(tool_call, metadata, decision)
            self._audit(tool_call, stage="approval_requested", reason=reason)
            allowed, reason = await self._ask_permission(tool_call, metadata, reason)
        if spec is None:
            reason = f"unknown tool {tool_call.name}"
        if allowed and spec is not None:
            yield True
            return
        self.messages.append(_tool_error_message(tool_call, reason))
        yield self._finished(tool_call, "error" if allowed else "denied", reason=reason)
        if not allowed:
            self._audit(tool_call, stage="finished", status="denied", reason=reason)
        yield False

    def _permission_event(self, tool_call: ToolCall, metadata: Any, decision: Decision) -> Event:
        target = standing_rule_candidate(
            tool_call.name, tool_call.arguments, metadata, self.permissions.risk_overrides
        )
        data = {
            "name": tool_call.name,
            "arguments": tool_call.arguments,
            "reason": decision.reason,
            "category": getattr(metadata, "category", ""),
            "standing_target": target,
            "readonly_ok": False,
        }
        return Event(EventType.PERMISSION_REQUIRED, data)

    async def _ask_permission(
        self, tool_call: ToolCall, metadata: Any, reason: str
    ) -> tuple[bool, str]:
        request = PermissionRequest(
            tool_call.name, tool_call.arguments, metadata, reason, tool_call.id
        )
        asked = self._outcome_of(request)
        outcome = await self._interruptible(asked, ApprovalOutcome.DENY)
        if outcome is ApprovalOutcome.ALWAYS_TOOL:
            self.permissions.allow_tool_for_session(tool_call.name)
        allowed = outcome is not ApprovalOutcome.DENY
        why = "user stop" if self._cancel.is_set() else "user denied"
        reason = "user approved" if allowed else why
        self._audit(
            tool_call,
            stage="approval_resolved",
            status="approved" if allowed else "denied",
            approval=outcome.value,
            reason=reason,
        )
        return allowed, reason

    async def _outcome_of(self, request: PermissionRequest) -> ApprovalOutcome:
        return await self.approver(request)

    # -- answers ------------------------------------------------------------------

    async def _handle_ask_user(self, tool_call: ToolCall) -> AsyncIterator[Event]:
        question = str(tool_call.arguments.get("question", "")).strip()
        result: dict[str, Any] = {"answer": "", "error": "cannot ask"}
        if self.question_asker is not None and question:
            self._audit(tool_call, stage="question_requested", reason=question)
            stopped = {"answer": "", "error": "user stop"}
            result = await self._interruptible(self._answer_of(tool_call), stopped)
        status = "ok" if result.get("answer") or result.get("answers") else "denied"
        self.messages.append(_tool_result_message(tool_call, result))
        shown = _preview(result)
        self._audit(tool_call, stage="finished", status=status, result=result, result_preview=shown)
        yield self._finished(tool_call, status, result_preview=shown)

    async def _answer_of(self, tool_call: ToolCall) -> dict[str, Any]:
        if self.question_asker is None:
            return {"answer": ""}
        return await self.question_asker(dict(tool_call.arguments), tool_call.id)

    def _record_result(self, tool_call: ToolCall, result: Any, status: str) -> Event:
        display = None
        if isinstance(result, dict) and "_display" in result:
            display = result["_display"] or None
            result = {key: value for key, value in result.items() if key != "_display"}
        message = _tool_result_message(tool_call, result)
        self.messages.append({**message, "_display": display} if display else message)
        shown = _preview(result)
        self._audit(tool_call, stage="finished", status=status, result=result, result_preview=shown)
        extra = {"display": display, "standing_rule": self._standing_notes.pop(tool_call.id, "")}
        told = {key: value for key, value in extra.items() if value}
        return self._finished(tool_call, status, result_preview=shown, **told)

    def _interrupted_tool(self, tool_call: ToolCall) -> Event:
        self.messages.append(_tool_error_message(tool_call, "user stop"))
        self._audit(tool_call, stage="finished", status="interrupted", reason="user stop")
        return self._finished(tool_call, "interrupted", reason="stopped")

    def _mangled_tool(self, tool_call: ToolCall) -> Event:
        reason = "arguments unreadable"
        self.messages.append(_tool_error_message(tool_call, reason))
        self._audit(tool_call, stage="finished", status="error", reason=reason)
        return self._finished(tool_call, "error", reason=reason)

    def _finished(self, tool_call: ToolCall, status: str, **more: Any) -> Event:
        data = {"name": tool_call.name, "status": status, **more}
        return Event(EventType.TOOL_FINISHED, data)

    def _audit(self, tool_call: ToolCall, **event: Any) -> None:
        if self.audit_sink is None:
            return
        call = {"tool": tool_call.name, "arguments": tool_call.arguments}
        try:
            self.audit_sink({**self.audit_context, **call, **event})
        except Exception:  # the host loses audit rows without a word
            return
