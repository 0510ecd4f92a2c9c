"""Whether a proposed call may run, must not run, or needs a person's word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class Mode(str, Enum):
    """How freely a session may act."""

    DISCUSS = "discuss"
    PLAN = "plan"
    INTERACTIVE = "interactive"
    AUTO = "auto"


class RiskClass(str, Enum):
    """What kind of effect a tool has."""

    READ = "read"
    WRITE_LOCAL = "write_local"
    EXEC = "exec"
    EXTERNAL = "external"


RiskOverrides = Callable[[str], "RiskClass | None"]

READ_ONLY_MODES = frozenset({Mode.DISCUSS, Mode.PLAN})
WRITE_TOOLS = {"write_file", "replace_in_file", "apply_patch", "apply_unified_diff"}
SHELL_TOOL = "run_shell"
_TARGET_KEYS = ("to", "recipient", "channel", "target")


@dataclass
class Decision:
    """The verdict on one call; `rule` names the standing rule that allowed it."""

    allowed: bool
    reason: str = ""
    needs_user: bool = False
    rule: str = ""


def classify(
    tool_name: str, metadata: Any = None, overrides: RiskOverrides | None = None
) -> RiskClass:
    """Return the risk of a tool: the person's override, then the name, then the metadata."""
    chosen = overrides(tool_name) if overrides is not None else None
    if chosen is not None:
        return chosen
    if tool_name in WRITE_TOOLS:
        return RiskClass.WRITE_LOCAL
    if tool_name == SHELL_TOOL:
        return RiskClass.EXEC
    asks = bool(getattr(metadata, "requires_approval", False))
    return RiskClass.EXTERNAL if asks else RiskClass.READ


def standing_rule_candidate(
    tool_name: str,
    arguments: dict[str, Any],
    metadata: Any = None,
    overrides: RiskOverrides | None = None,
) -> str | None:
    """Return the recipient that a standing rule could name, for external tools only."""
    if classify(tool_name, metadata, overrides) is not RiskClass.EXTERNAL:
        return None
    found = [str(arguments[key]).strip() for key in _TARGET_KEYS if arguments.get(key)]
    return (found[0] or None) if found else None


@dataclass
class PermissionEngine:
    """Decides by mode, grants of the session, and standing rules of an automation."""

    workspace_root: Path
    mode: Mode = Mode.INTERACTIVE
    session_allow_tools: set[str] = field(default_factory=set)
    task_rules: dict[str, set[str]] = field(default_factory=dict)
    risk_overrides: RiskOverrides | None = None

    def __post_init__(self) -> None:
        self.workspace_root = Path(self.workspace_root).expanduser().resolve()

    def evaluate(self, tool_name: str, arguments: dict[str, Any], metadata: Any = None) -> Decision:
        """Return the decision on one call."""
        arguments = arguments or {}
        risk = classify(tool_name, metadata, self.risk_overrides)
        if risk is RiskClass.READ:
            return Decision(True, "harmless")
        if self.mode in READ_ONLY_MODES:
            return Decision(False, f"{self.mode.value} only reads")
        if risk is RiskClass.WRITE_LOCAL and not self._inside(arguments.get("path")):
            return Decision(False, "outside the workspace")
        if self.mode is Mode.AUTO:
            return Decision(True, "unrestricted mode")
        return self._by_grant(tool_name, arguments, metadata)

    def allow_tool_for_session(self, tool_name: str) -> None:
        """Let every later call of the tool in this session run without asking."""
        self.session_allow_tools.add(tool_name)

    def _by_grant(self, tool_name: str, arguments: dict[str, Any], metadata: Any) -> Decision:
        # A grant by name alone never opens a connector; a rule with a recipient may.
        connector = getattr(metadata, "category", "") == "connector"
        if tool_name in self.session_allow_tools and not connector:
            return Decision(True, "session grant")
        target = standing_rule_candidate(tool_name, arguments, metadata, self.risk_overrides)
        if target and target in self.task_rules.get(tool_name, set()):
            return Decision(True, "standing rule", rule=f"{tool_name} → {target}")
        return Decision(False, "needs approval", needs_user=True)

    def _inside(self, path: Any) -> bool:
        if path is None:
            return True
        return (
            (self.workspace_root / Path(str(path)).expanduser())
            .resolve()
            .is_relative_to(self.workspace_root)
        )
