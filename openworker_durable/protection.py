"""Which tools are protected, which reach beyond this machine, and who a tool is.

Protected is decided by what a tool is, never by whether a prompt exists (design, section 4).
One table in code; `openworker-durable doctor` prints it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .clock import fresh_id
from .identity import schema_digest
from .models import ToolIdentity

WRITE_TOOLS = frozenset({"write_file", "replace_in_file", "apply_patch", "apply_unified_diff"})
SHELL_TOOLS = frozenset({"run_shell"})

UNTOLD_ACCOUNT = "untold:"
"""What the account of a tool begins with that failed to tell it; it equals no other."""

LASTING_EFFECTS: dict[str, str] = {
    "remember": "writes the person's memory",
    "forget": "deletes from the person's memory",
    "update_memory": "writes the person's memory",
    "create_scheduled_task": "makes an automation",
    "update_scheduled_task": "changes an automation",
    "delete_scheduled_task": "deletes an automation",
    "schedule_wake": "makes the session act later",
    "schedule_task": "makes an automation",
    "post_chat": "posts to a team's chat",
    "steer_worker": "makes another session act",
    "board_create": "changes the team's board",
    "board_update": "changes the team's board",
    "board_transition": "changes the team's board",
    "board_assign": "changes the team's board",
    "board_comment": "writes to the team's board",
    "journal_append": "writes the team's journal",
    "send_message": "sends a message",
    "subscribe_channel": "makes the session act on messages",
    "unsubscribe_channel": "changes what the session acts on",
    "propose_team": "makes a team once a person agrees",
    "propose_work_items": "puts items on the team's board once a person agrees",
    "request_tool": "installs a program once a person agrees",
    "request_directory": "may move the session's workspace once a person agrees",
}
"""Host tools with lasting effects that their metadata calls harmless."""

GATES = frozenset({"propose_team", "propose_work_items", "request_tool", "request_directory"})
"""Tools whose effect a person's answer sets off; they never reach a tool registry."""

LOCAL_TOOLS = WRITE_TOOLS | GATES | frozenset({"remember", "forget", "update_memory"})
"""Protected tools that only touch this machine."""


@dataclass(frozen=True)
class Protection:
    """Whether a tool's calls are recorded, and why.

    Args:
        protected: True when each call gets a row before it starts.
        external: True when the tool may reach beyond this machine.
        why: one short phrase, shown by `doctor`.
    """

    protected: bool
    external: bool
    why: str


def _declared_external(func: Any, default: bool) -> bool:
    declared = getattr(func, "__durable_local__", None)
    return default if declared is None else not declared


def protection(
    name: str, metadata: Any = None, func: Any = None, *, risk: str = "", read_only: bool = False
) -> Protection:
    """Say whether calls of a tool are recorded.

    Args:
        name: the tool's name.
        metadata: the host's tool metadata (`requires_approval`, `category`), or None.
        func: the tool's function; `__durable_local__ = True` on it says that it only touches
            this machine.
        risk: the host's risk class for the tool, for example `read` or `external`.
        read_only: True when the person listed this MCP tool as read-only.
    """
    external = _declared_external(func, name not in LOCAL_TOOLS)
    if name in WRITE_TOOLS:
        return Protection(True, external, "writes files")
    if name in SHELL_TOOLS:
        return Protection(True, external, "runs commands")
    if name in LASTING_EFFECTS:
        return Protection(True, external, LASTING_EFFECTS[name])
    if bool(getattr(metadata, "requires_approval", False)):
        return Protection(True, external, "needs approval")
    if risk and risk != "read":
        return Protection(True, external, f"risk class {risk}")
    if is_mcp(name, metadata):
        if read_only:
            return Protection(False, True, "an MCP tool listed as read-only")
        return Protection(True, True, "an MCP tool not listed as read-only")
    if getattr(metadata, "risk_level", "") in {"high", "medium"}:
        return Protection(True, external, f"risk level {metadata.risk_level}")
    return Protection(False, external, "read-only")


def is_mcp(name: str, metadata: Any = None) -> bool:
    """Say whether a tool comes from an MCP server."""
    return name.startswith("mcp__") or getattr(metadata, "category", "") == "mcp"


def _server(name: str, metadata: Any) -> str:
    """Return the MCP server a tool comes from: its metadata says so, else its name does.

    Names alone cannot tell server `a` with tool `b__x` from server `a__b` with tool `x`.
    """
    declared = getattr(metadata, "capabilities", None)
    if getattr(metadata, "category", "") == "mcp" and declared:
        return str(declared[0])
    parts = name.split("__")
    return parts[1] if len(parts) > 2 else "?"


def tool_identity(spec: Any) -> ToolIdentity:
    """Return the identity of a tool as the engine has it now.

    Args:
        spec: the host's tool spec: `name`, `schema`, `func`, `metadata`.
    """
    name = str(spec.name)
    metadata = getattr(spec, "metadata", None)
    source = "mcp:" + _server(name, metadata) if is_mcp(name, metadata) else "host"
    version = str(getattr(spec.func, "__durable_version__", "") or "")
    digest = schema_digest(getattr(spec, "schema", None))
    return ToolIdentity(
        source=source, name=name, version=version, schema_digest=digest, account=_account(spec.func)
    )


def _account(func: Any) -> str:
    """Return whose account a tool acts for, as it declares it: a name, or what returns one now."""
    declared = getattr(func, "__durable_account__", "")
    try:
        return str(declared() if callable(declared) else declared)
    except Exception:
        return UNTOLD_ACCOUNT + fresh_id()
