"""Every place the adapter attaches to, in one list, checked before anything is touched.

A seam is a method of a host's class with its kind and the parameters we rely on. When one is
missing or has another shape, nothing is attached at all: never half-protected.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import SeamsDoNotFit
from .names import HostNames


@dataclass(frozen=True)
class Seam:
    """One method the adapter wraps or calls.

    Args:
        owner: key of the class in `HostNames`.
        method: the method's name.
        kind: `plain`, `coroutine` or `asyncgen`.
        params: parameters that must exist, beside self.
        wrapped: False when the adapter only calls it.
        why: what it is needed for.
    """

    owner: str
    method: str
    kind: str
    params: tuple[str, ...]
    why: str
    wrapped: bool = True

    @property
    def name(self) -> str:
        """Return `class.method` for people."""
        return f"{self.owner}.{self.method}".rstrip(".")


def _w(owner: str, method: str, kind: str, params: str, why: str) -> Seam:
    return Seam(owner, method, kind, tuple(params.split()), why)


def _c(owner: str, method: str, kind: str, params: str, why: str) -> Seam:
    return Seam(owner, method, kind, tuple(params.split()), why, wrapped=False)


SEAMS: tuple[Seam, ...] = (
    _w("engine", "run", "asyncgen", "user_input source display", "triage before a message"),
    _w("engine", "retry", "asyncgen", "", "triage before the Retry button"),
    _w("engine", "resume", "asyncgen", "", "triage before a resume; rule 14"),
    _w("engine", "_loop", "asyncgen", "", "follow-ups and retries between iterations; the halt"),
    _w("engine", "_astream", "asyncgen", "", "unique call ids; coverage"),
    _w("engine", "_handle_tool_calls", "asyncgen", "tool_calls", "thread saved around calls"),
    _w("engine", "_authorize", "asyncgen", "tool_call", "approval bound to intent"),
    _w("engine", "_execute_sync", "plain", "tool_call", "outcome committed where the call ran"),
    _w("engine", "_handle_team_proposal", "asyncgen", "tool_call", "a team is made once"),
    _w("engine", "_handle_items_proposal", "asyncgen", "tool_call", "work items are made once"),
    _w("engine", "_handle_tool_request", "asyncgen", "tool_call", "a program is installed once"),
    _w("engine", "_handle_directory_request", "asyncgen", "tool_call", "a workspace moves once"),
    _c("engine", "_append_notice", "plain", "kind text", "saying what a call waits for"),
    _w("engine", "_record_result", "plain", "tool_call result status", "the exact text is kept"),
    _w("engine", "_audit", "plain", "tool_call", "correlation ids on the host's audit rows"),
    _w("registry", "execute", "plain", "name arguments", "dispatch after every check"),
    _w("permissions", "evaluate", "plain", "tool_name arguments metadata", "the repeat guard"),
    _w("manager", "__init__", "plain", "data_dir provider", "ledger beside the host's stores"),
    _w("manager", "get_engine", "plain", "session_id approver extra_tools", "an engine's session"),
    _w("manager", "_build_task_engine", "plain", "task session_id", "a run's session"),
    _w("manager", "resolve_inbox", "coroutine", "item_id resolution", "decisions resume"),
    _w("manager", "_durable_resume", "coroutine", "item", "one resume at a time"),
    _w("manager", "mark_idle", "plain", "session_id", "triage when a turn ends"),
    _w("manager", "delete_session", "plain", "session_id", "tombstones"),
    _w("manager", "start_gateway", "coroutine", "", "the start-up sweep comes first"),
    _w("manager", "aclose", "coroutine", "", "the ledger is closed with the host"),
    _w("manager", "deliver_to_session", "coroutine", "session_id message", "tools come first"),
    _w("manager", "_run_scheduled_task", "coroutine", "task trigger", "a run's claim and slot"),
    _w("manager", "create_team", "plain", "session_id members enable_chat", "a gate's effect"),
    _w("manager", "board_create_items", "plain", "session_id items", "a gate's effect"),
    _w("manager", "promote_workspace", "plain", "session_id path", "a gate's effect"),
    _w("manager", "mirror_inbox_item", "coroutine", "item", "decisions as buttons in a chat"),
    _w("manager", "_on_interaction", "coroutine", "event", "only the owner's button counts"),
    _w("manager", "_resolve_inbox_reply", "plain", "event", "only the owner's reply counts"),
    _c("manager", "_slack_actor_owns_item", "plain", "item actor_id chat_id team_id", "the owner"),
    _w("toolchain", "install", "plain", "name", "a gate's effect"),
    _c("toolchain", "describe", "plain", "name", "what an installation is told as"),
    _c("registry", "register", "plain", "func", "tools connected late"),
    _c("registry", "get", "plain", "name", "which tools there are"),
    _c("manager", "save", "plain", "session_id engine", "checkpoints"),
    _c("manager", "try_mark_running", "plain", "session_id", "claiming a session"),
    _c("manager", "is_running", "plain", "session_id", "claiming a session"),
    _c("manager", "inbox_approver", "plain", "session_id agent", "asking although granted"),
    _c("manager", "prepare_mcp_tools", "coroutine", "session_id agent", "tools before a resume"),
    _c("manager", "broadcast_session", "coroutine", "session_id message", "live views"),
    _w("inbox", "add", "plain", "session_id kind title data tool_call_id", "prompts name intents"),
    _w("inbox", "resolve", "plain", "item_id resolution", "what counts as a decision"),
    _w("inbox", "pending", "plain", "session_id", "answers meant for another card"),
    _w("inbox", "_save", "plain", "", "written in one step"),
    _w("inbox", "_load", "plain", "", "a torn file does not stop the start"),
    _c("inbox", "for_tool_call", "plain", "session_id tool_call_id", "finding prompts"),
    _c("inbox", "get", "plain", "item_id", "finding items"),
    _w("inbox", "list", "plain", "session_id state visibility", "served as questions"),
    _w("audit", "__init__", "plain", "db_path", "audit columns"),
    _w("audit", "append", "plain", "event", "correlation ids on the host's audit rows"),
    _w("conversations", "__init__", "plain", "base_dir", "a locked database delays a save"),
    _w("conversations", "_count", "plain", "sid", "a save does not read the whole thread"),
    _w("conversations", "save", "plain", "record", "knowing what is on disk"),
    _w("conversations", "load", "plain", "session_id", "listing what cannot be loaded"),
    _c("conversations", "_file", "plain", "sid", "repairing a thread"),
    _c("conversations", "_read_jsonl", "plain", "sid", "reading a thread"),
)
"""The list. `openworker-durable doctor` prints it with what was found."""


ABSENT = "class not found"


@dataclass
class Finding:
    """What was found of one seam; `problem` is empty when it fits."""

    seam: Seam
    problem: str = ""


@dataclass
class SeamReport:
    """All findings for one host."""

    host: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Say whether every seam is there in the expected shape."""
        return not self.problems

    @property
    def absent(self) -> bool:
        """Say whether no class of the host was found at all."""
        return bool(self.findings) and all(f.problem.startswith(ABSENT) for f in self.findings)

    @property
    def problems(self) -> list[str]:
        """Return one line for each seam that does not fit."""
        return [f"{f.seam.name}: {f.problem}" for f in self.findings if f.problem]

    def require(self) -> None:
        """Raise when a seam does not fit.

        Raises:
            SeamsDoNotFit: naming each, and the remedy.
        """
        if self.absent:
            raise SeamsDoNotFit(
                f"{self.host} cannot be imported by this Python, so there is nothing to attach to; "
                "install openworker-durable into the environment that OpenWorker runs in, and run "
                "it there"
            )
        if not self.fits:
            raise SeamsDoNotFit(
                f"{self.host} does not have the shape this version of openworker-durable attaches "
                f"to, so nothing was attached: {'; '.join(self.problems)}. Upgrade the package, "
                "or start the host without it; protected tools are not protected then."
            )


def _kind(method: Callable[..., Any]) -> str:
    if inspect.isasyncgenfunction(method):
        return "asyncgen"
    return "coroutine" if inspect.iscoroutinefunction(method) else "plain"


def _problem(cls: Any, seam: Seam) -> str:
    method = getattr(cls, seam.method, None)
    if method is None or not callable(method):
        return "not found"
    if _kind(method) != seam.kind:
        return f"is {_kind(method)}, expected {seam.kind}"
    params = inspect.signature(method).parameters
    if any(p.kind is p.VAR_KEYWORD for p in params.values()):
        return ""
    missing = [p for p in seam.params if p not in params]
    return f"lacks {', '.join(missing)}" if missing else ""


def check(names: HostNames) -> SeamReport:
    """Look at every seam of a host; touches nothing."""
    report = SeamReport(names.host)
    for seam in SEAMS:
        try:
            cls = names.load(seam.owner)
        except Exception as exc:  # a host's module may fail in any way while it is imported
            report.findings.append(Finding(seam, f"{ABSENT} ({type(exc).__name__})"))
            continue
        report.findings.append(Finding(seam, _problem(cls, seam)))
    report.findings += _unloadable(names)
    return report


OTHERS = ("item", "events", "event_type", "tool_call", "compaction", "decode")
"""What the adapter uses of a host beside methods."""


def _unloadable(names: HostNames) -> list[Finding]:
    """Return what else is missing; nothing of it would be noticed before it is needed."""
    missing = []
    for which in OTHERS:
        try:
            names.load(which)
        except Exception as exc:  # a host's module may fail in any way while it is imported
            seam = Seam(which, "", "plain", (), "used by the adapter", wrapped=False)
            missing.append(Finding(seam, f"{ABSENT} ({type(exc).__name__})"))
    return missing
