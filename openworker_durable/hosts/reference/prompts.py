"""What an engine asks of others, and what it holds while a reply arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .providers import AssistantTurn, StreamChunk


class ApprovalOutcome(str, Enum):
    """What a person said to a prompt; everything but `deny` allows."""

    ONCE = "once"
    ALWAYS_TOOL = "always_tool"
    ALWAYS_COMMAND = "always_command"
    READONLY_SESSION = "readonly_session"
    DENY = "deny"


@dataclass
class PermissionRequest:
    """What the approver is told about a call."""

    tool_name: str
    arguments: dict[str, Any]
    metadata: Any
    reason: str
    tool_call_id: str | None = None


Approver = Callable[[PermissionRequest], Awaitable[ApprovalOutcome]]
QuestionAsker = Callable[[dict[str, Any], "str | None"], Awaitable[dict[str, Any]]]
AuditSink = Callable[[dict[str, Any]], None]


async def deny_all(_request: PermissionRequest) -> ApprovalOutcome:
    return ApprovalOutcome.DENY


@dataclass
class PartialReply:
    """What has arrived of the reply that is being streamed."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    turn: AssistantTurn | None = None

    def take(self, chunk: StreamChunk) -> None:
        self.text += [chunk.text_delta] if chunk.text_delta else []
        self.reasoning += [chunk.reasoning_delta] if chunk.reasoning_delta else []
        self.turn = chunk.turn or self.turn

    def partial(self) -> AssistantTurn | None:
        if not self.text and not self.reasoning:
            return None
        return AssistantTurn("".join(self.text) or None, reasoning="".join(self.reasoning) or None)
