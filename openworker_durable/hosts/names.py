"""How each host's classes are found: names as data, so that one adapter serves both."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HostNames:
    """Where a host keeps what the adapter attaches to: `module:attribute`, or a module.

    Args:
        host: name for people.
        package: the importable package whose presence means that the host is there.
    """

    host: str
    package: str
    engine: str
    registry: str
    permissions: str
    manager: str
    inbox: str
    item: str
    audit: str
    conversations: str
    events: str
    event_type: str
    tool_call: str
    compaction: str
    toolchain: str
    decode: str
    terminal: str = ""

    def load(self, which: str) -> Any:
        """Return the class behind one of the names.

        Raises:
            ImportError, AttributeError: the host has no such module or class.
        """
        module, _, attribute = str(getattr(self, which)).partition(":")
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found


_REF = "openworker_durable.hosts.reference"

REFERENCE = HostNames(
    host="the reference host",
    package=_REF,
    engine=f"{_REF}.engine:TurnEngine",
    registry=f"{_REF}.tools:ToolRegistry",
    permissions=f"{_REF}.permissions:PermissionEngine",
    manager=f"{_REF}.manager:SessionManager",
    inbox=f"{_REF}.inbox:InboxStore",
    item=f"{_REF}.inbox:InboxItem",
    audit=f"{_REF}.audit:AuditStore",
    conversations=f"{_REF}.conversations:ConversationStore",
    events=f"{_REF}.events:Event",
    event_type=f"{_REF}.events:EventType",
    tool_call=f"{_REF}.providers:ToolCall",
    compaction=f"{_REF}.compaction:CompactionState",
    toolchain=f"{_REF}.toolchain",
    decode=f"{_REF}.interactions:decode",
)
