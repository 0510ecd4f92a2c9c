"""The engine's gates: calls that a person's answer carries out, without any tool registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from . import toolchain
from .events import Event, EventType
from .messages import preview as _preview
from .messages import tool_result_message as _tool_result_message
from .permissions import Mode, PermissionEngine
from .providers import Message, ToolCall

T = TypeVar("T")
Requester = Callable[[dict[str, Any], "str | None"], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class GateKind:
    """One gate.

    Args:
        attribute: where the engine keeps who asks; None there means that nobody can.
        event: what watchers are told before the person is asked.
        told: the arguments that the event carries.
        yes: the key of the answer that says so.
    """

    attribute: str
    event: EventType
    told: tuple[str, ...]
    yes: str


TEAM = GateKind("team_approver", EventType.TEAM_PROPOSED, ("members", "enable_chat"), "approved")
ITEMS = GateKind("items_approver", EventType.ITEMS_PROPOSED, ("items",), "approved")
TOOL = GateKind("tool_requester", EventType.TOOL_REQUESTED, ("name", "reason"), "installed")
PLAN = GateKind("plan_approver", EventType.PLAN_PROPOSED, ("plan",), "approved")
DIRECTORY = GateKind(
    "directory_requester", EventType.DIRECTORY_REQUESTED, ("path", "writable", "primary"), "granted"
)


class Gates:
    """The gate half of `TurnEngine`, whose constructor sets the attributes."""

    messages: list[Message]
    permissions: PermissionEngine
    directory_requester: Requester | None = None
    plan_approver: Requester | None = None
    tool_requester: Requester | None = None
    team_approver: Requester | None = None
    items_approver: Requester | None = None

    async def _interruptible(self, coro: Coroutine[Any, Any, T], interrupted: T) -> T:
        raise NotImplementedError

    def _audit(self, tool_call: ToolCall, **event: Any) -> None:
        raise NotImplementedError

    def _gate_for(self, name: str) -> Callable[[ToolCall], AsyncIterator[Event]] | None:
        handlers = {
            "propose_team": self._handle_team_proposal,
            "propose_work_items": self._handle_items_proposal,
            "propose_plan": self._handle_plan_proposal,
            "request_tool": self._handle_tool_request,
            "request_directory": self._handle_directory_request,
        }
        return handlers.get(name)

    async def _handle_team_proposal(self, tool_call: ToolCall) -> AsyncIterator[Event]:
        async for event in self._through(TEAM, tool_call):
            yield event

    async def _handle_items_proposal(self, tool_call: ToolCall) -> AsyncIterator[Event]:
        async for event in self._through(ITEMS, tool_call):
            yield event

    async def _handle_directory_request(self, tool_call: ToolCall) -> AsyncIterator[Event]:
        async for event in self._through(DIRECTORY, tool_call):
            yield event

    async def _handle_tool_request(self, tool_call: ToolCall) -> AsyncIterator[Event]:
        known = toolchain.describe(str(tool_call.arguments.get("name", ""))) is not None
        refusal = None if known else {"installed": False, "error": "not in the catalogue"}
        async for event in self._through(TOOL, tool_call, refusal):
            yield event

    async def _handle_plan_proposal(self, tool_call: ToolCall) -> AsyncIterator[Event]:
        planning = self.permissions.mode is Mode.PLAN
        refusal = None if planning else {"approved": False, "error": "no plan is wanted"}
        async for event in self._through(PLAN, tool_call, refusal):
            yield event

    async def _through(
        self, gate: GateKind, call: ToolCall, refusal: dict[str, Any] | None = None
    ) -> AsyncIterator[Event]:
        asker: Requester | None = getattr(self, gate.attribute)
        result = refusal or {gate.yes: False, "error": "nobody can be asked here"}
        if asker is not None and refusal is None:
            yield Event(gate.event, {key: call.arguments.get(key) for key in gate.told})
            self._audit(call, stage=gate.event.value)
            stopped = {gate.yes: False, "error": "user stop"}
            result = await self._interruptible(_ask(asker, call), stopped)
        if gate is PLAN and result.get("approved"):
            self.permissions.mode = Mode(result.get("mode") or Mode.INTERACTIVE.value)
        status = "ok" if result.get(gate.yes) else "denied"
        self.messages.append(_tool_result_message(call, result))
        shown = _preview(result)
        self._audit(call, stage="finished", status=status, result=result, result_preview=shown)
        told = {"name": call.name, "status": status, "result_preview": shown}
        yield Event(EventType.TOOL_FINISHED, told)


async def _ask(asker: Requester, call: ToolCall) -> dict[str, Any]:
    return await asker(dict(call.arguments), call.id)
