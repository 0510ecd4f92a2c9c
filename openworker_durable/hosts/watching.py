"""What the server process does by itself: the start-up sweep, and watching the ledger.

The sweep repairs threads and raises items; it calls no model and no tool. The watch sees,
within a second, what other processes decided and which of them have died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from .. import review, rows, thread, verbs
from ..clock import Clock
from ..errors import LedgerError, SessionHeld
from ..guard import Guard
from ..ledger import Ledger, Watch
from ..models import Execution
from ..owner import Owner, ServerLock
from ..recovery import Trigger
from ..retention import Retention
from ..settle import Settler
from ..states import State
from .items import ASKED, allows, close, recovery_of
from .probing import Prober
from .session import HostSession

log = logging.getLogger("openworker_durable")

POLL_SECONDS = 0.4
"""How often the server process looks whether another process changed the ledger."""

AT_ONCE = 4
"""Most sessions that durable resume drives at the same time after a start."""


class Watching:
    """The half of `Runtime` that nobody asks for; `Runtime`'s constructor sets the attributes."""

    ledger: Ledger
    owner: Owner
    server: ServerLock
    settler: Settler
    guard: Guard
    prober: Prober
    retention: Retention
    clock: Clock
    last_sweep: dict[str, int]
    _closed: bool
    _poller: asyncio.Task[None] | None = None
    _sweep_due: bool = False
    _seen: dict[str, tuple[int, int]]
    _elsewhere: set[str]
    _again: set[str]

    @property
    def manager(self) -> Any:
        """The host's session manager."""
        raise NotImplementedError

    def spawn(self, make: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run something in the background; the runtime knows how."""
        raise NotImplementedError

    def remember_loop(self) -> bool:
        """Note the running event loop."""
        raise NotImplementedError

    def looking(self, session_id: str) -> AbstractContextManager[None]:
        """Hold a session while its thread is repaired."""
        raise NotImplementedError

    async def drive(self, session_id: str) -> None:
        """Resume a session."""
        raise NotImplementedError

    async def after_turn(self, session_id: str) -> None:
        """Triage an idle session."""
        raise NotImplementedError

    def life(self) -> Any:
        """Return the runtime as its sessions see it."""
        return self

    async def sweep(self) -> dict[str, int]:
        """Repair every session the ledger has open rows for; calls no model and no tool.

        Returns:
            counts: sessions, rebuilt, raised, provisional, held (elsewhere), failed.
        """
        counts = dict.fromkeys(
            ("sessions", "rebuilt", "raised", "provisional", "held", "failed"), 0
        )
        wake: list[str] = []
        await asyncio.to_thread(self.guard.adopt)
        for session_id in self._sessions_to_sweep():
            counts["sessions"] += 1
            try:
                with self.looking(session_id):
                    port = HostSession(self.life(), self.manager, session_id)
                    report = await self.settler.triage(port, Trigger.SWEEP)
            except SessionHeld:
                counts["held"] += 1
                self._again.add(session_id)
                continue
            except Exception as exc:
                log.warning("sweep of session %s failed (%s)", session_id, type(exc).__name__)
                counts["failed"] += 1
                self._again.add(session_id)
                continue
            if not port.readable():
                self._again.add(session_id)
            counts["rebuilt"] += report.rebuilt
            counts["raised"] += report.raised
            counts["provisional"] += report.provisional
            if not report.halted and (
                report.retries or report.follow_up_unseen or report.follow_up_blocked
            ):
                wake.append(session_id)
        self.close_settled_items()
        self.tell_conflicts()
        await self._expire()
        self.owner.tidy({r.owner for r in self.ledger.known(rows.open_all())})
        self.last_sweep = counts
        if counts["sessions"]:
            told = any(counts[key] for key in ("raised", "held", "failed"))
            log.log(
                logging.WARNING if told else logging.INFO,
                "recovery at start: %s",
                ", ".join(f"{count} {name}" for name, count in counts.items()),
            )
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
        if not item.tool_call_id or item.kind not in ASKED:
            return False
        if item.state == "resolved" and not allows(item):
            return False
        return self.ledger.first(rows.any_of_call(item.session_id, item.tool_call_id)) is None

    def _wake_later(self, sessions: list[str]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(session_id: str) -> None:
            async with limit:
                await self.drive(session_id)

        for session_id in sessions:
            self.spawn(one, session_id)

    async def _expire(self) -> None:
        day, keep = 86400.0, self.retention
        with contextlib.suppress(LedgerError):
            await self.ledger.ask(
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

    async def sweep_or_later(self) -> None:
        """Sweep; when the ledger cannot be used now, as soon as it can."""
        try:
            await self.sweep()
        except LedgerError as exc:
            log.warning("no sweep yet: %s", exc)
            self._sweep_due = True

    async def _poll(self) -> None:
        while not self._closed:
            try:
                async with self.ledger.watching() as watch:
                    while not self._closed:
                        await self._once(watch)
                        await asyncio.sleep(POLL_SECONDS)
            except Exception as exc:
                log.debug("the ledger cannot be watched now (%s)", type(exc).__name__)
                await asyncio.sleep(POLL_SECONDS)

    async def _once(self, watch: Watch) -> None:
        """One look: take the server's part if it is free, sweep if due, see what changed."""
        if not self._serve():
            return
        if self._sweep_due:
            self._sweep_due = False
            await self.sweep_or_later()
        elif await watch.changed() or self._bereaved():
            await self._look_around(await watch.fetch(rows.open_all()))
        for session_id in list(self._again):
            await self.after_turn(session_id)
        await self.prober.begin(await watch.fetch(rows.probes_due(self.clock())))

    def _serve(self) -> bool:
        """Be the server process if nobody else is; read what the one before left behind.

        Raises:
            OSError: its inbox cannot be read now; this process is not the server process.
        """
        if self.server.held:
            return True
        if not self.server.take():
            return False
        inbox = self.manager.inbox
        own, inbox._items = inbox._items, {}
        try:
            inbox._load()
        except BaseException:
            inbox._items = own
            self.server.close()
            raise
        left = inbox._items
        answered_here = {
            k: i for k, i in own.items()
            if i.state != "pending" and (k not in left or left[k].state == "pending")
        }  # fmt: skip
        inbox._items = {**own, **left, **answered_here}
        self._seen.clear()
        self._sweep_due = True
        inbox._save()
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

    def tell_conflicts(self) -> None:
        """Put evidence that contradicts a settled attempt before the person, each once."""
        if not self.server.held:
            return
        for conflict in self.ledger.known(rows.conflicts()):
            row = self.ledger.first(rows.row(conflict.execution_id, conflict.attempt))
            key = f"recovery:{conflict.execution_id}:{conflict.attempt}:late:{conflict.id}"
            if row is None or self.manager.inbox.for_tool_call(row.session_id, key) is not None:
                continue
            title, body = review.conflict_words(row, State(conflict.state), conflict.at)
            self.manager.inbox.add(
                row.session_id, "notification", title, body=body,
                data={thread.MARK: {"notice": True}}, tool_call_id=key,
            )  # fmt: skip

    def _bereaved(self) -> bool:
        """Say whether a process that held a call has died since we looked."""
        return any(not self.owner.is_alive(name) for name in self._elsewhere)

    async def _look_around(self, open_rows: list[Execution]) -> None:
        """Act on decisions made elsewhere, and on calls whose owner has died."""
        self._elsewhere = {
            r.owner for r in open_rows if r.state == State.DISPATCHED and r.owner != self.owner.name
        }
        self.close_settled_items()
        self.tell_conflicts()
        for session_id in dict.fromkeys(r.session_id for r in open_rows):
            if not self.manager.is_running(session_id):
                await self.after_turn(session_id)
