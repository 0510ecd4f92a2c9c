"""What a turn tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class EventType(str, Enum):
    """Kinds of event that a turn can yield."""

    TURN_START = "turn_start"
    ASSISTANT_DELTA = "assistant_delta"
    ASSISTANT_MESSAGE = "assistant_message"
    TOOL_PROPOSED = "tool_proposed"
    PERMISSION_REQUIRED = "permission_required"
    TOOL_STARTED = "tool_started"
    TOOL_FINISHED = "tool_finished"
    TEAM_PROPOSED = "team_proposed"
    ITEMS_PROPOSED = "items_proposed"
    PLAN_PROPOSED = "plan_proposed"
    TOOL_REQUESTED = "tool_requested"
    DIRECTORY_REQUESTED = "directory_requested"
    ITERATION_END = "iteration_end"
    TURN_END = "turn_end"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    COMPACTED = "compacted"


@dataclass
class Event:
    """One event with its payload."""

    type: EventType
    data: dict[str, Any] = field(default_factory=dict)
