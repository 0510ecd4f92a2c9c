"""The real OpenWorker's names; with `names.py` the only place that knows them.

Facts about `andrewyng/openworker` at commit 83ab5bdeddc8e55c8f3c90bde4ee70ddb95e9d7a.
"""

from __future__ import annotations

from .names import HostNames

OPENWORKER = HostNames(
    host="OpenWorker",
    package="coworker",
    engine="coworker.engine:TurnEngine",
    registry="coworker.tools.registry:ToolRegistry",
    permissions="coworker.permissions:PermissionEngine",
    manager="coworker.server.manager:SessionManager",
    inbox="coworker.inbox:InboxStore",
    item="coworker.inbox:InboxItem",
    audit="coworker.audit:AuditStore",
    conversations="coworker.conversations:ConversationStore",
    events="coworker.events:Event",
    event_type="coworker.events:EventType",
    tool_call="coworker.providers:ToolCall",
    compaction="coworker.compaction:CompactionState",
    toolchain="coworker.toolchain",
    decode="coworker.interactions:decode",
    terminal="coworker.tui.app:CoworkerApp",
)
