"""One state folder in one process: ledger, owner, guard, settler, and who may write items.

The runtime drives what no person drives: the start-up sweep, the turn after a decision, and
decisions that another process wrote to the ledger, which it sees within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from .. import review, rows, thread, verbs
from ..clock import Clock, IdFactory, fresh_id, now
from ..errors import AlreadyDecided, LedgerError, Refused, SessionHeld
from ..failpoints import Failpoint, no_failpoint
from ..guard import Guard
from ..ledger import DATABASE, Ledger
from ..models import Execution, Intent
from ..owner import Owner, ServerLock
from ..policy import KEEP, Retention
from ..recovery import Trigger
from ..settle import Report, Settler
from ..states import Decision, State
from .binding import Binding
from .names import HostNames
from .session import ALLOWING, HostSession, close, recovery_of

log = logging.getLogger("openworker_durable")

POLL_SECONDS = 0.4
"""How often the server process looks whether another process changed the ledger."""

AT_ONCE = 4
"""Most sessions that durable resume drives at the same time after a start."""


class Runtime:
    """See the module's docstring.

    Args:
        state_dir: the host's state folder.
        names: the host's names.
        retention: how long settled rows are kept.
        clock, fresh, failpoint: see those modules.
    """

    def __init__(
        self, state_dir: Path, names: HostNames, *, clock: Clock = now,
        fresh: IdFactory = fresh_id, failpoint: Failpoint = no_failpoint,
        retention: Retention = KEEP,
    ) -> None:  # fmt: skip
        self.retention = retention
        self.state_dir = state_dir
        self.names = names
        self.clock, self.fresh, self.failpoint = clock, fresh, failpoint
        self.owner = Owner(state_dir, fresh=fresh)
        self.server = ServerLock(state_dir)
        self.server.take()
        self.ledger = Ledger(state_dir / DATABASE, failpoint=failpoint)
        self.guard = Guard(self.ledger, self.owner.name, clock=clock, failpoint=failpoint)
        self.settler = Settler(
            self.guard, self.owner, clock=clock, fresh=fresh, failpoint=failpoint
        )
        self.manager: Any = None
        self.asking: dict[tuple[str, str | None], Intent] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self._saved: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._poller: asyncio.Task[None] | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        self._closed = False
        self._elsewhere: set[str] = set()
        self.last_sweep: dict[str, int] = {}

    # -- bookkeeping
    def note_saved(self, manager: Any, session_id: str, count: int) -> None:
        """Note how many of a session's messages are on disk."""
        self._saved[session_id] = count
        binding = binding_of(manager._engines.get(session_id))
        if binding is not None:
            binding.remember_file()

    def saved_count(self, manager: Any, session_id: str) -> int:
        """Return how many of a session's messages are on disk."""
        if session_id not in self._saved:
            self._saved[session_id] = manager.session_store._count(session_id)
        return self._saved[session_id]

    def remember_loop(self) -> bool:
        """Note the running event loop, for threads that report to it; false outside one."""
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def spawn(self, make: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run something in the background of the event loop, its failure only logged."""
        if not self.remember_loop():
            return
        task = asyncio.ensure_future(_logged(make, *args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- decisions
    def decide(
        self, execution_id: str, attempt: int, decision: Decision, *, by: str, note: str = ""
    ) -> Execution:
        """Commit a decision, then wake the session's halted turn; the one path of all surfaces.

        Raises:
            AlreadyDecided, Refused: it does not count.
            LedgerError: it could not be committed; nothing was done.
        """
        row = self.ledger.run(verbs.decide, execution_id, attempt, decision, by, note, self.clock())
        if decision is not Decision.UNSURE:
            self._settled(row)
        return row

    def _settled(self, row: Execution) -> None:
        """Close the items of a decided attempt, in the server process."""
        if self.manager is None or not self.server.held:
            return
        word = row.decision.value if row.decision else "settled"
        HostSession(self, self.manager, row.session_id).close_items(row.execution_id, 0, word)

    def resolve_item(self, inbox: Any, item: Any, resolution: Any) -> bool:
        """Take an answer to a recovery item; anything that is no decision is refused.

        Returns:
            True when a final decision was committed by this very answer.
        """
        word = review.read_decision(resolution)
        ids = recovery_of(item)
        if item.state != "pending" or word is None or not ids:
            return False
        if word.decision.value not in (ids.get("decisions") or ()):
            return False
        try:
            self.decide(
                str(ids["execution_id"]), int(ids["attempt"]), word.decision, by="inbox",
                note=word.note,
            )  # fmt: skip
        except AlreadyDecided as exc:
            log.info("already decided: %s", exc)
            if self.server.held:
                close(inbox, item, "already decided")
            return False
        except Refused as exc:
            log.warning("a decision did not apply: %s", exc)
            return False
        except LedgerError as exc:
            log.warning("a decision could not be committed: %s", exc)
            return False
        return word.decision is not Decision.UNSURE

    # -- driving sessions
    @contextlib.contextmanager
    def holding(self, session_id: str) -> Iterator[None]:
        """Hold a session while its thread is repaired.

        Raises:
            SessionHeld: somebody else has it.
        """
        with self.owner.hold(session_id):
            yield

    @contextlib.contextmanager
    def writing(self, session_id: str) -> Iterator[bool]:
        """Yield whether this process may save the session's thread now.

        Not while another process drives the session, and not from an engine that has not seen
        what another process saved: that engine reads the thread again instead.
        """
        if self.owner.holds(session_id):
            yield True
            return
        try:
            hold = self.owner.hold(session_id)
        except SessionHeld as exc:
            log.warning("not saved here: %s", exc)
            yield False
            return
        with hold:
            binding = binding_of(self.manager._engines.get(session_id))
            if binding is not None and binding.is_stale():
                binding.reload_if_stale()
                yield False
            else:
                yield True

    async def drive(self, session_id: str) -> None:
        """Resume a session as durable resume does: claimed first, its tools connected, saved."""
        manager = self.manager
        if manager is None or not HostSession(self, manager, session_id).exists():
            return
        if not manager.try_mark_running(session_id):
            return
        try:
            engine = await self._engine(session_id)
            if engine is None:
                return
            async for event in engine.resume():
                await manager.broadcast_session(
                    session_id, {"type": event.type.value, "data": event.data}
                )
            manager.save(session_id, engine)
        finally:
            manager.mark_idle(session_id)

    async def drive_settled(self, session_id: str) -> None:
        """After a decision: repair the thread of an idle session and go on where it halted."""
        if await self._look_after(session_id):
            await self.drive(session_id)

    async def _engine(self, session_id: str) -> Any:
        """Return the session's engine, its MCP tools connected, or None when it cannot be had."""
        manager = self.manager
        try:
            tools = []
            if session_id not in manager._engines:
                tools = await manager.prepare_mcp_tools(session_id)
            return manager.get_engine(session_id, extra_tools=tools or None)
        except Exception as exc:
            log.warning("session %s cannot be opened (%s)", session_id, type(exc).__name__)
            return None

    def turn_ended(self, session_id: str) -> None:
        """A turn, or a call that outlived its turn, has ended: look at the session again."""
        if self._closed:
            return
        if self.remember_loop():
            self.spawn(self.after_turn, session_id)
        elif self.loop is not None and not self.loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.turn_ended, session_id)

    async def after_turn(self, session_id: str) -> None:
        """Triage after a turn, and go on when something is to be run or said."""
        if await self._look_after(session_id):
            self.spawn(self.drive, session_id)

    async def _look_after(self, session_id: str) -> bool:
        """Triage an idle session; say whether its turn is to go on."""
        manager = self.manager
        if manager is None or manager.is_running(session_id):
            return False
        if not self._anything_waits(session_id):
            return False
        try:
            with self.holding(session_id):
                binding = binding_of(manager._engines.get(session_id))
                if binding is not None:
                    binding.reload_if_stale()
                port = HostSession(self, manager, session_id)
                report = await self.settler.triage(port, Trigger.TURN_END)
        except SessionHeld:
            return False
        except LedgerError as exc:
            log.warning("session %s: no triage after its turn (%s)", session_id, exc)
            return False
        return self._to_go_on(session_id, report)

    def _to_go_on(self, session_id: str, report: Report) -> bool:
        binding = binding_of(self.manager._engines.get(session_id))
        unrunnable = binding.unrunnable if binding else set()
        retries = [r for r in report.retries if r.key not in unrunnable]
        proceed = report.proceed and not (binding and binding.cut_short)
        due = retries or proceed or report.follow_up_unseen or report.follow_up_blocked
        if report.halted or not due:
            return False
        mark = (len(HostSession(self, self.manager, session_id).messages()), self.ledger.commits)
        if self._seen.get(session_id) == mark:
            return False
        self._seen[session_id] = mark
        return True

    def _anything_waits(self, session_id: str) -> bool:
        """Say whether a row is open, or a call of the trailing reply is unanswered."""
        engine = self.manager._engines.get(session_id)
        reply = thread.trailing_reply(engine.messages) if engine is not None else None
        if reply is not None and not reply.answered:
            return True
        try:
            return bool(self.ledger.known(rows.open_in_session(session_id)))
        except LedgerError:
            return False

    # -- start-up
    async def sweep(self) -> dict[str, int]:
        """Repair every session the ledger has open rows for; calls no model and no tool.

        Returns:
            counts: sessions, rebuilt, raised, provisional, held (elsewhere), failed.
        """
        counts = dict.fromkeys(
            ("sessions", "rebuilt", "raised", "provisional", "held", "failed"), 0
        )
        wake: list[str] = []
        for session_id in self._sessions_to_sweep():
            counts["sessions"] += 1
            try:
                with self.holding(session_id):
                    port = HostSession(self, self.manager, session_id)
                    report = await self.settler.triage(port, Trigger.SWEEP)
            except SessionHeld:
                counts["held"] += 1
                continue
            except (LedgerError, OSError, ValueError) as exc:
                log.warning("sweep of session %s failed (%s)", session_id, type(exc).__name__)
                counts["failed"] += 1
                continue
            counts["rebuilt"] += report.rebuilt
            counts["raised"] += report.raised
            counts["provisional"] += report.provisional
            if not report.halted and (
                report.retries or report.follow_up_unseen or report.follow_up_blocked
            ):
                wake.append(session_id)
        self.close_settled_items()
        self._expire()
        self.owner.tidy({r.owner for r in self.ledger.known(rows.open_all())})
        self.last_sweep = counts
        if counts["sessions"]:
            log.info("recovery at start: %s", counts)
        self._wake_later(wake)
        return counts

    def _sessions_to_sweep(self) -> list[str]:
        open_rows = self.ledger.known(rows.open_all())
        sessions = [r.session_id for r in open_rows]
        if self.server.held:
            sessions += [i.session_id for i in self.manager.inbox.list() if self._unused(i)]
        return list(dict.fromkeys(sessions))

    def _unused(self, item: Any) -> bool:
        """Say whether an item is an approval that may wait for a call that never started."""
        if not item.tool_call_id or item.kind != "approval":
            return False
        if item.state == "resolved" and item.resolution not in ALLOWING:
            return False
        return self.ledger.first(rows.any_of_call(item.session_id, item.tool_call_id)) is None

    def _wake_later(self, sessions: list[str]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(session_id: str) -> None:
            async with limit:
                await self.drive(session_id)

        for session_id in sessions:
            self.spawn(one, session_id)

    def _expire(self) -> None:
        day, keep = 86400.0, self.retention
        with contextlib.suppress(LedgerError):
            self.ledger.run(
                verbs.expire,
                self.clock() - keep.snapshot_days * day,
                self.clock() - keep.row_days * day,
            )

    # -- watching the ledger
    def watch(self) -> None:
        """Begin to look for what other processes wrote; needs a running event loop."""
        ended = self._poller is None or self._poller.done() or self._poller.get_loop().is_closed()
        if ended and self.remember_loop():
            self._poller = asyncio.ensure_future(self._poll())

    async def _poll(self) -> None:
        while not self._closed:
            try:
                async with self.ledger.watching() as watch:
                    while not self._closed:
                        if self._serve() and (await watch.changed() or self._bereaved()):
                            await self._look_around(await watch.fetch(rows.open_all()))
                        await asyncio.sleep(POLL_SECONDS)
            except (LedgerError, OSError) as exc:
                log.debug("the ledger cannot be watched now (%s)", exc)
                await asyncio.sleep(POLL_SECONDS)

    def _serve(self) -> bool:
        """Be the server process if nobody else is; read what the one before left behind."""
        if self.server.held:
            return True
        if not self.server.take():
            return False
        inbox = self.manager.inbox
        own, inbox._items = inbox._items, {}
        inbox._load()
        answered_here = {k: i for k, i in own.items() if i.state != "pending"}
        inbox._items = {**own, **inbox._items, **answered_here}
        inbox._save()
        self._seen.clear()
        self.close_settled_items()
        return True

    def close_settled_items(self) -> None:
        """Close recovery items whose attempt was settled while nobody could close them."""
        if not self.server.held:
            return
        for item in [i for i in self.manager.inbox.list(state="pending") if recovery_of(i)]:
            ids = recovery_of(item)
            row = self.ledger.first(rows.row(str(ids["execution_id"]), int(ids["attempt"])))
            if row is not None and not row.newer and not (row.undecided and not row.superseded):
                close(self.manager.inbox, item, row.decision.value if row.decision else "settled")

    def _bereaved(self) -> bool:
        """Say whether a process that held a call has died since we looked."""
        return any(not self.owner.is_alive(name) for name in self._elsewhere)

    async def _look_around(self, open_rows: list[Execution]) -> None:
        """Act on decisions made elsewhere, and on calls whose owner has died."""
        self._elsewhere = {
            r.owner for r in open_rows if r.state == State.DISPATCHED and r.owner != self.owner.name
        }
        self.close_settled_items()
        for session_id in dict.fromkeys(r.session_id for r in open_rows):
            if not self.manager.is_running(session_id):
                await self.after_turn(session_id)

    # -- the end
    async def aclose(self) -> None:
        """Stop background work and close the ledger."""
        self._closed = True
        here = asyncio.get_running_loop()
        own = [*self._tasks, *([self._poller] if self._poller else [])]
        tasks = [t for t in own if t is not asyncio.current_task() and t.get_loop() is here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.close()

    def close(self) -> None:
        """Close the ledger and end this life as an owner; running calls keep their evidence."""
        self._closed = True
        forget(self)
        self.guard.close()
        self.ledger.close()
        self.server.close()
        self.owner.close()


async def _logged(make: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
    try:
        await make(*args)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("background recovery failed")


def binding_of(engine: Any) -> Binding | None:
    """Return an engine's binding, or None for an engine that belongs to no session."""
    found = getattr(engine, "_durable", None)
    return found if isinstance(found, Binding) else None


_runtimes: dict[Path, Runtime] = {}
_lock = threading.Lock()


def runtime_for(
    state_dir: Path, names: HostNames, failpoint: Failpoint, retention: Retention = KEEP
) -> Runtime:
    """Return this process's runtime of a state folder, made when there is none."""
    key = state_dir.resolve()
    with _lock:
        if key not in _runtimes:
            _runtimes[key] = Runtime(key, names, failpoint=failpoint, retention=retention)
        return _runtimes[key]


def forget(runtime: Runtime) -> None:
    """Take a closed runtime off the list, so that the folder can be opened anew."""
    with _lock:
        for key in [k for k, r in _runtimes.items() if r is runtime]:
            del _runtimes[key]
