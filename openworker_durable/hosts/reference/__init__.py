"""A small OpenWorker-style host, for tests, the demo and crash runs.

It has the host's names, shapes and order of events, and its faults too: coarse checkpoints, call
ids taken as unique, an inbox that answers a used call id with its old resolution, a thread file
that can only grow. Nothing in it knows of the ledger.
"""

from .automation import ScheduledTask
from .engine import ApprovalOutcome, PermissionRequest, TurnEngine
from .events import Event, EventType
from .inbox import InboxItem, InboxStore
from .manager import SessionManager
from .permissions import Mode, PermissionEngine
from .providers import AssistantTurn, ProviderRejected, ScriptedProvider, StreamChunk, ToolCall
from .tools import ToolMetadata, ToolRegistry, tool

__all__ = [
    "ApprovalOutcome",
    "AssistantTurn",
    "Event",
    "EventType",
    "InboxItem",
    "InboxStore",
    "Mode",
    "PermissionEngine",
    "PermissionRequest",
    "ProviderRejected",
    "ScheduledTask",
    "ScriptedProvider",
    "SessionManager",
    "StreamChunk",
    "ToolCall",
    "ToolMetadata",
    "ToolRegistry",
    "TurnEngine",
    "tool",
]
