"""What the adapter keeps for one engine of one session while it lives in memory."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from .. import rows, texts, thread, verbs
from ..declare import NOTHING, Declaration
from ..errors import LedgerError, LedgerUnavailable
from ..guard import Handle
from ..identity import (
    CallRef,
    covered_digest,
    execution_id,
    intent_digest,
    is_mangled,
    rewrite_ids,
    unique_call_ids,
)
from ..models import Authority, Execution, Intent
from ..policy import parse, stricter
from ..protection import protection
from ..redact import preview
from ..snapshot import Snapshot
from ..states import AuthorityKind
from . import threads
from .files import mend_thread, sync_file
from .items import ASKED, prompt_state, stamp_of
from .life import Life
from .session import HostSession, protects
from .toolbox import Toolbox

log = logging.getLogger("openworker_durable")
Events = AsyncGenerator[Any, None]


@dataclass
class Ticket:
    """One protected call on its way through the engine, from allowed to recorded."""

    name: str
    intent: Intent
    authority: Authority
    external: bool
    declared: Declaration = NOTHING
    retry: bool = False
    handle: Handle | None = None
    refusal: BaseException | None = None
    raised: BaseException | None = None
    snapshot: Snapshot | None = None
    failed: bool = False
    withdrawn: bool = False
    turn: int = 0

    @property
    def attempt(self) -> int:
        """Return the attempt's number, 0 before dispatch."""
        return self.handle.attempt if self.handle else 0


@dataclass
class Binding:
    """One engine, its session, and the runtime that records its protected calls."""

    runtime: Life
    manager: Any
    engine: Any
    session_id: str
    agent: str = "code"
    occurrence: str = ""
    incarnation: str = ""
    tickets: dict[str, Ticket] = field(default_factory=dict)
    appended: set[tuple[str, int]] = field(default_factory=set)
    unrunnable: set[tuple[str, int]] = field(default_factory=set)
    blocked: str = ""
    halted: bool = False
    dead: bool = False
    unreadable: bool = False
    cut_short: bool = False
    turn: int = 0
    repeat: Execution | None = None
    again: str = ""
    cut_off: list[Execution] = field(default_factory=list)
    seen: threads.Look | None = None
    asking_tool: str = ""
    toolbox: Toolbox = field(init=False)
    _known_ids: set[str] | None = None
    _protects: dict[str, tuple[Any, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.toolbox = Toolbox(self.engine, self.runtime.declared)

    @property
    def port(self) -> HostSession:
        """Return the session as recovery sees it."""
        return HostSession(self.runtime, self.manager, self.session_id)

    def lead(self) -> None:
        """Be the session's one engine: a window may hold one that was replaced meanwhile.

        Two engines of one session would each save, and recover, a thread of their own.
        """
        if not self.dead:
            self.manager._engines[self.session_id] = self.engine

    def begin_turn(self) -> None:
        """Forget what concerned the turn before."""
        self.turn += 1
        self.halted = self.cut_short = False
        self.blocked = ""
        self.withdraw()
        self.tickets.clear()
        self.unrunnable.clear()

    def withdraw(self) -> None:
        """Take back what was allowed in a turn that has ended and has not started yet."""
        self.runtime.guard.withdraw(self.tickets.values())

    def stops(self) -> bool:
        """Say whether the model must not be called: a call of the trailing reply is open."""
        reply = thread.trailing_reply(self.engine.messages)
        return self.halted or (reply is not None and not reply.answered)

    def protects(self, name: str) -> bool:
        """Say whether calls of a tool are recorded."""
        spec, permissions = self.engine.registry.get(name), self.engine.permissions
        if getattr(permissions, "risk_overrides", None) is not None:
            return protects(spec, name, permissions)
        known = self._protects.get(name)
        if known is None or known[0] is not spec:
            known = self._protects[name] = (spec, protects(spec, name, permissions))
        return known[1]

    # -- a finished reply, before it enters the history
    async def admit(self, turn: Any) -> None:
        """Give the reply's calls unique ids and, when one is protected, cover the reply.

        When the ledger cannot be written the reply is not covered, and its protected calls
        will be refused with that reason.
        """
        calls = turn.tool_calls
        protected = any(self.protects(c.name) and not is_mangled(c.arguments) for c in calls)
        self.blocked = ""
        if protected:
            self._load_ids()
        self._make_unique(turn)
        if not protected:
            return
        refs = [CallRef(c.id, c.name, json.dumps(c.arguments)) for c in calls]
        ordinal = sum(m.get("role") == "assistant" for m in self.engine.messages)
        try:
            coverage = await self.runtime.ledger.ask(
                verbs.cover, self.session_id, self.runtime.fresh(), covered_digest(refs), ordinal,
                self.runtime.clock(),
            )  # fmt: skip
            self.incarnation = coverage.incarnation
        except LedgerError as exc:
            self.blocked = str(exc)
            log.warning("session %s: a reply could not be covered (%s)", self.session_id, exc)

    def _load_ids(self) -> None:
        if self._known_ids is None:
            try:
                self._known_ids = set(self.runtime.ledger.known(rows.call_ids(self.session_id)))
            except LedgerError:
                return

    def _make_unique(self, turn: Any) -> None:
        in_history = thread.used_call_ids(self.engine.messages)
        ledger_ids = self._known_ids or set()
        in_inbox = {
            i.tool_call_id or str(stamp_of(i).get("tool_call_id") or "")
            for i in self.manager.inbox.list(session_id=self.session_id)
        }
        old = [c.id for c in turn.tool_calls]
        new = unique_call_ids(
            old,
            lambda i: i in in_history or i in ledger_ids or i in in_inbox,
            self.runtime.fresh,
        )
        if old != new:
            for call, call_id in zip(turn.tool_calls, new, strict=True):
                call.id = call_id
            turn.extras = {k: rewrite_ids(v, old, new) for k, v in turn.extras.items()}
        if self._known_ids is not None:
            self._known_ids.update(new)

    # -- one call
    def look_back(self, call: Any) -> None:
        """Find what makes a call be asked about, whatever grants or rules say.

        A tool whose policy says, then and now, that it may be called while an earlier call of it
        is unknown, is not asked about for that.

        Raises:
            LedgerError: that cannot be told now.
        """
        self.forget_back()
        ledger = self.runtime.ledger
        for row in ledger.known(rows.undecided_tool(self.session_id, call.name)):
            if not self._repeatable(row):
                self.repeat, self.again = row, preview(call.arguments)
                break
        if self.occurrence:
            same = rows.same_occurrence(self.occurrence, self.session_id)
            self.cut_off = ledger.known(same)

    def _repeatable(self, row: Execution) -> bool:
        now = self.toolbox.descriptor(row.tool_name).policy
        return stricter(parse(row.policy), now).repeatable

    def forget_back(self) -> None:
        """The call was authorised, or not."""
        self.repeat, self.again, self.cut_off = None, "", []

    def warning(self) -> str:
        """Say why the call being authorised must be asked about; empty when nothing does."""
        if self.repeat is not None:
            return texts.repeat_warning(self.repeat, self.again)
        return texts.slot_warning(self.cut_off) if self.cut_off else ""

    def execution_id(self, call_id: str) -> str:
        """Return the call's execution id, beginning the session in the ledger if need be.

        Raises:
            LedgerError: the ledger cannot be read or written.
        """
        if not self.incarnation:
            ledger = self.runtime.ledger
            coverage = ledger.first(rows.session(self.session_id))
            if coverage is None and self.blocked:
                # Not tried again here: this may be the event loop, and a lock makes it wait.
                raise LedgerUnavailable(self.blocked)
            coverage = coverage or ledger.run(
                verbs.open_session, self.session_id, self.runtime.fresh()
            )
            self.incarnation = coverage.incarnation
        return execution_id(self.session_id, self.incarnation, call_id)

    def intent(self, call: Any) -> Intent:
        """Return what a call of this engine means to do, ready for the ledger.

        Raises:
            LedgerError: the session's incarnation cannot be read.
            PolicyError: what is declared about the tool contradicts itself.
        """
        execution = self.execution_id(call.id)
        return Intent(
            session_id=self.session_id, incarnation=self.incarnation,
            tool_call_id=call.id, execution_id=execution, tool=self.toolbox.identity(call.name),
            intent_digest=intent_digest(call.name, call.arguments),
            preview=preview(call.arguments),
            policy=str(self.toolbox.policy_for(call.name, call.arguments)),
            occurrence=self.occurrence,
            linked=self.repeat.execution_id if self.repeat else "",
        )  # fmt: skip

    def ticket(self, call: Any, authority: Authority, *, retry: bool = False) -> Ticket:
        """Make the ticket that lets one call through the guard."""
        spec = self.engine.registry.get(call.name)
        external = protection(
            call.name, getattr(spec, "metadata", None), getattr(spec, "func", None)
        ).external
        intent = self.intent(call)
        declared = self.toolbox.declaration(call.name)
        return Ticket(call.name, intent, authority, external, declared, retry, turn=self.turn)

    def outlived(self, turn: int) -> bool:
        """Say whether a call's outcome comes after the turn that made it.

        Args:
            turn: the binding's turn when the call was made.
        """
        held = self.runtime.owner.holds(self.session_id)
        return turn != self.turn or self.cut_short or not held

    def authority(self, call: Any, *, asked: bool) -> Authority:
        """Return what allowed a call that the engine has just let through."""
        item = self.manager.inbox.for_tool_call(self.session_id, call.id)
        if item is not None and item.kind in ASKED and prompt_state(item).value == "allowed":
            return Authority(kind=AuthorityKind.ITEM, ref=item.id)
        if asked:
            return Authority(kind=AuthorityKind.PROMPT)
        rule = self.engine._standing_notes.get(call.id)
        if rule:
            return Authority(kind=AuthorityKind.RULE, ref=str(rule))
        return Authority(kind=AuthorityKind.GRANT)

    # -- the thread on disk
    def save(self, *, sync: bool = True) -> bool:
        """Save the thread; false, with a line in the log, when that fails for now.

        Args:
            sync: whether it has to be on disk afterwards, power loss included. A result need
                not be: it is in the record until it is, and acknowledged only then.
        """
        hit = self.runtime.failpoint
        hit("thread.before")
        try:
            self.manager.save(self.session_id, self.engine)
            if sync:
                sync_file(self.manager.session_store._file(self.session_id))
        except Exception as exc:
            log.warning("session %s: its thread could not be saved (%s)", self.session_id, exc)
            return False
        hit("thread.after")
        return True

    def save_rest(self) -> None:
        """At a turn's end: save what no checkpoint saved, while the session is still ours.

        The host's own save comes when another process may have the session.
        """
        try:
            saved = self.runtime.saved_count(self.manager, self.session_id)
        except (OSError, ValueError):
            saved = None
        if len(self.engine.messages) != saved:
            self.save(sync=False)

    def remember_file(self) -> None:
        """Note how the thread's file looks now that it equals what is in memory."""
        self.seen = self._look()

    def _look(self) -> threads.Look | None:
        return threads.look(self.manager.session_store._file(self.session_id))

    def is_stale(self) -> bool:
        """Say whether the saved thread was written by somebody else since."""
        now = self._look()
        return now is not None and now != self.seen

    def reload_if_stale(self) -> None:
        """Read the saved thread again when another process wrote it since; hold the session.

        The thread is its file: the host's row for it may come late, or never after a kill. A
        file without a message, as a kill in a first save leaves it, is no thread.

        Raises:
            OSError, ValueError: it cannot be read; what is in memory stays.
        """
        if not self.is_stale():
            return
        store = self.manager.session_store
        mend_thread(store._file(self.session_id))
        record = store.load(self.session_id)
        saved = record.messages if record else store._read_jsonl(self.session_id) or []
        if saved:
            state = self.runtime.names.load("compaction")
            self.engine.compaction_state = state.from_dict(record.compaction if record else {})
            self.engine.messages[:] = [*_instructions(self.engine, saved), *saved]
            self._known_ids = None
            self.incarnation = ""
        self.unreadable = False
        self.runtime.note_saved(self.manager, self.session_id, saved)
        self.remember_file()

    def look_again(self) -> None:
        """Read the saved thread again like `reload_if_stale`; when that fails, say so of it.

        What is in memory is then not the thread: recovery settles its calls without it.
        """
        try:
            self.reload_if_stale()
        except (OSError, ValueError) as exc:
            if not self.unreadable:
                log.warning("session %s: cannot be read (%s)", self.session_id, type(exc).__name__)
            self.unreadable = True

    def acknowledge_appended(self) -> None:
        """After a save: let the rows whose results are on disk be acknowledged later."""
        for key in self.appended:
            self.runtime.ledger.defer(verbs.acknowledge, *key, self.runtime.clock())
        self.appended.clear()


def _instructions(engine: Any, saved: list[thread.Message]) -> list[thread.Message]:
    """Return the engine's own first line, where a saved thread lacks one."""
    mine = [m for m in engine.messages[:1] if m.get("role") == "system"]
    return mine if saved[0].get("role") != "system" else []


def binding_of(engine: Any) -> Binding | None:
    """Return an engine's binding, or None for an engine that belongs to no session."""
    found = getattr(engine, "_durable", None)
    return found if isinstance(found, Binding) else None


def bound(host: Callable[..., Events], ours: Callable[..., Events]) -> Callable[..., Events]:
    """Return an engine's method that is `ours` for an engine with a session, else the host's.

    Args:
        host: the host's method, an asynchronous generator, called with the engine.
        ours: called with the engine's binding in its place; ends with its caller, not later.
    """

    async def method(engine: Any, *args: Any, **kwargs: Any) -> Events:
        binding = binding_of(engine)
        inner = ours(binding, *args, **kwargs) if binding else host(engine, *args, **kwargs)
        try:
            async for event in inner:
                yield event
        finally:
            await inner.aclose()

    return method
