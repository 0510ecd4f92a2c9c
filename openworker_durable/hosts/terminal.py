"""The terminal UI: its engine gets an identity, its turns save before and after each effect.

The app builds its engine itself and has no session manager, so it gets a small one here. It
never takes the server's part: a person decides in the desktop app's Inbox, and the terminal
says what is open. An engine with neither gets the same manager in the tests' plugin.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import rows
from ..errors import LedgerError
from ..failpoints import Failpoint
from ..models import Execution
from ..retention import Retention
from ..states import State
from . import seams
from .manager_hooks import bind
from .names import HostNames
from .patching import Patches
from .runtime import Runtime, runtime_for
from .seams import Finding, Seam, SeamReport, _problem

log = logging.getLogger("openworker_durable")

HALTED = "recovery_required"

SEAMS_TERMINAL: tuple[Seam, ...] = (
    Seam("terminal", "on_mount", "plain", (), "an engine's session"),
    Seam("terminal", "_handle_command", "plain", ("command",), "a cleared conversation's engine"),
    Seam("terminal", "_persist_session", "plain", (), "checkpoints; triage when a turn ends"),
    Seam("terminal", "_render_event", "plain", ("event",), "saying why a turn halts"),
    Seam("terminal", "_write", "plain", ("text",), "saying what is open", wrapped=False),
)
"""Its seams; a host whose terminal UI cannot be imported (no textual) fits without them."""


def app_of(names: HostNames) -> type | None:
    """Return the host's terminal app, None when it has none that can be imported."""
    if not names.terminal:
        return None
    try:
        found = names.load("terminal")
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) else None


def check_terminal(names: HostNames) -> list[Finding]:
    """Look at the terminal UI's seams; touches nothing. Empty for a host that has none."""
    try:
        app = app_of(names)
    except Exception as exc:  # a host's module may fail in any way while it is imported
        return [Finding(s, f"importing it failed ({type(exc).__name__})") for s in SEAMS_TERMINAL]
    if app is None:
        return []
    return [Finding(seam, _problem(app, seam)) for seam in SEAMS_TERMINAL]


def check_all(names: HostNames) -> SeamReport:
    """Look at every seam of a host, those of its terminal UI included."""
    report = seams.check(names)
    if not report.absent:
        report.findings.extend(check_terminal(names))
    return report


class OneSession:
    """A session manager for one engine that its surface built itself.

    Args:
        runtime: the state folder's.
        store, inbox: the host's stores of that folder.
        session_id: the one session.
        engine: its engine.
    """

    audit_store = None

    def __init__(
        self, runtime: Runtime, store: Any, inbox: Any, session_id: str, engine: Any
    ) -> None:
        self.runtime, self.session_store, self.inbox = runtime, store, inbox
        self._durable_runtime = runtime
        self._engines = {session_id: engine}
        self._running: set[str] = set()
        store._durable_runtime = inbox._durable_runtime = runtime
        store._durable_manager = self

    def get_engine(self, session_id: str, **_: Any) -> Any:
        """Return the session's engine; other sessions are not opened here."""
        return self._engines.get(session_id)

    def save(self, session_id: str, engine: Any) -> None:
        """Save the thread.

        Raises:
            OSError: it could not be saved.
        """
        made = importlib.import_module(type(self.session_store).__module__).SessionRecord(
            session_id=session_id, workspace="", model=str(engine.model),
            mode=str(engine.permissions.mode.value), messages=engine.messages,
        )  # fmt: skip
        self.session_store.save(made)

    def is_running(self, session_id: str) -> bool:
        """Say whether a turn of the session runs; other sessions are left alone."""
        if session_id not in self._engines or session_id in self._running:
            return True
        return self.runtime.owner.holds(session_id)

    def try_mark_running(self, session_id: str) -> bool:
        """Claim the session for a turn."""
        if self.is_running(session_id):
            return False
        self._running.add(session_id)
        return True

    def mark_idle(self, session_id: str) -> None:
        """A turn has ended."""
        self._running.discard(session_id)
        self.runtime.turn_ended(session_id)

    async def prepare_mcp_tools(self, session_id: str, agent: str | None = None) -> list[Any]:
        """Return the session's MCP tools: none here."""
        return []

    async def broadcast_session(self, session_id: str, message: dict[str, Any]) -> None:
        """Nobody looks on."""

    def inbox_approver(self, session_id: str, agent: str = "code") -> Any:
        """Return an approver for a call whose own approver has just asked a person."""
        module = importlib.import_module(self.runtime.names.engine.partition(":")[0])

        async def approve(_request: Any) -> Any:
            return module.ApprovalOutcome("once")

        return approve


class TerminalSession(OneSession):
    """The manager of a terminal app: its own way of saving, its log view."""

    def __init__(self, app: Any, runtime: Runtime, inbox: Any) -> None:
        super().__init__(runtime, app._session_store, inbox, app._session_id, app.engine)
        self.app = app
        self.saving = False

    def save(self, session_id: str, engine: Any) -> None:
        """Save as the app does.

        Raises:
            ValueError: the engine is that of a conversation that was cleared since.
        """
        if engine is not self.app.engine:
            raise ValueError("the conversation was cleared")
        self.saving = True
        try:
            self.app._persist_session()
        finally:
            self.saving = False

    async def broadcast_session(self, session_id: str, message: dict[str, Any]) -> None:
        """Show a turn that went on by itself in the log view."""
        names = self.runtime.names
        if message["type"] not in {kind.value for kind in names.load("event_type")}:
            return
        kind = names.load("event_type")(message["type"])
        self.app._render_event(names.load("events")(kind, message["data"]))

    def tell(self) -> None:
        """Say in the log view what is open, if anything is."""
        for line in open_lines(self.runtime, next(iter(self._engines))):
            self.app._write(line)


class TerminalHooks:
    """Builds the wrappers for a host's terminal app."""

    def __init__(
        self, names: HostNames, failpoint: Failpoint, retention: Retention, runtimes: list[Runtime]
    ) -> None:
        self.names, self.failpoint, self.retention = names, failpoint, retention
        self.runtimes = runtimes

    def attach(self, patches: Patches, app: type) -> None:
        """Wrap the app's methods."""
        patches.wrap(app, "on_mount", self.on_mount)
        patches.wrap(app, "_handle_command", self.handle_command)
        patches.wrap(app, "_persist_session", self.persist)
        patches.wrap(app, "_render_event", self.render)

    def on_mount(self, host: Callable[..., None]) -> Callable[..., None]:
        """The engine that was just built belongs to the app's session."""

        def on_mount(app: Any) -> None:
            host(app)
            if app._session_store is None or not app._session_id or app.engine is None:
                return
            session = self._session(app)
            bind(session.runtime, session, app.engine, app._session_id)
            app._durable_session = session
            session.tell()

        return on_mount

    def _session(self, app: Any) -> TerminalSession:
        state_dir = Path(app._session_store.db_path).parent
        # Only a session manager's process is the server process: it may start any time.
        runtime = runtime_for(state_dir, self.names, self.failpoint, self.retention, serve=False)
        if runtime not in self.runtimes:
            self.runtimes.append(runtime)
        inbox = self.names.load("inbox")(state_dir / "inbox.json")
        session = TerminalSession(app, runtime, inbox)
        if runtime.manager is None:
            runtime.manager = session
        return session

    def handle_command(self, host: Callable[..., None]) -> Callable[..., None]:
        """A cleared conversation has a new engine, in the same session."""

        def _handle_command(app: Any, command: str) -> None:
            before = app.engine
            host(app, command)
            session = getattr(app, "_durable_session", None)
            if session is None or app.engine is before or app.engine is None:
                return
            session._engines[app._session_id] = app.engine
            bind(session.runtime, session, app.engine, app._session_id)
            session.tell()

        return _handle_command

    def persist(self, host: Callable[..., None]) -> Callable[..., None]:
        """The app saves at the end of a turn: what came meanwhile is taken up then."""

        def _persist_session(app: Any) -> None:
            host(app)
            session = getattr(app, "_durable_session", None)
            if session is not None and not session.saving:
                session.runtime.turn_ended(app._session_id)

        return _persist_session

    def render(self, host: Callable[..., None]) -> Callable[..., None]:
        """A turn that halts says why, and where a person decides."""

        def _render_event(app: Any, event: Any) -> None:
            host(app, event)
            session = getattr(app, "_durable_session", None)
            if session is None or event.type.value != "turn_end":
                return
            if event.data.get("status") == HALTED:
                session.tell()

        return _render_event


def open_lines(runtime: Runtime, session_id: str) -> list[str]:
    """Return what a person at a terminal has to know of unknown, undecided calls.

    A call whose process died is one of them, also before a session manager has said so.

    Args:
        runtime: the state folder's.
        session_id: its calls are named one by one, those of others only counted.
    """
    try:
        found = runtime.ledger.known(rows.open_all())
    except LedgerError as exc:
        return [f"[yellow]openworker-durable:[/yellow] its record cannot be read ({exc})"]
    undecided = [r for r in found if not r.superseded and (r.undecided or _lost(runtime, r))]
    lines = [_line(r) for r in undecided if r.session_id == session_id]
    others = len(undecided) - len(lines)
    if others:
        lines.append(
            f"[yellow]openworker-durable:[/yellow] {others} call(s) of other sessions may have "
            "happened and wait for a decision: `openworker-durable list --open`"
        )
    return lines


def _lost(runtime: Runtime, row: Execution) -> bool:
    return row.state == State.DISPATCHED and not runtime.owner.is_alive(row.owner)


def _line(row: Execution) -> str:
    tool = row.tool_name.replace("[", "(")
    return (
        f"[yellow]openworker-durable:[/yellow] `{tool}` may have happened; nobody has decided. "
        f"Look with `openworker-durable show {row.execution_id[:10]}`; the buttons to decide are "
        "in the Inbox of the OpenWorker desktop app."
    )
