"""One state folder in one process: ledger, owner, guard, settler, and who may write items.

The runtime drives what no person drives: the start-up sweep, the turn after a decision, and
decisions that another process wrote to the ledger, which it sees within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import rows, thread
from ..clock import Clock, IdFactory, fresh_id, now
from ..config import Settings, check, read_settings, settings_path
from ..declare import DECLARATIONS, Declaration, tool_key
from ..errors import LedgerError, PolicyError, SessionHeld
from ..failpoints import Failpoint, no_failpoint
from ..guard import Guard
from ..ledger import DATABASE, Ledger
from ..models import Intent
from ..owner import Owner, ServerLock, SessionHold
from ..protection import tool_identity
from ..reconcilers import BUILT_IN
from ..recovery import Trigger
from ..retention import KEEP, Retention
from ..settle import Report, Settler
from ..thread import Message
from . import threads
from .binding import binding_of
from .deciding import Deciding
from .files import mend_thread
from .names import HostNames
from .opening import Opening
from .probing import Prober
from .session import HostSession
from .views import relay, turn_done
from .watching import Watching

log = logging.getLogger("openworker_durable")


class Runtime(Deciding, Watching):
    """See the module's docstring.

    Args:
        state_dir: the host's state folder.
        names: the host's names.
        retention: how long settled rows are kept.
        serve: whether to be the server process, if nobody else is.
        clock, fresh, failpoint: see those modules.

    Raises:
        PolicyError: the person's configuration file cannot be used; nothing was opened.
    """

    def __init__(
        self, state_dir: Path, names: HostNames, *, clock: Clock = now,
        fresh: IdFactory = fresh_id, failpoint: Failpoint = no_failpoint,
        retention: Retention = KEEP, serve: bool = True,
    ) -> None:  # fmt: skip
        self.settings = _settings(state_dir)
        self.retention = retention
        self.state_dir = state_dir
        self.gave_up: set[tuple[str, int]] = set()
        self.unopened: set[str] = set()
        self.names = names
        self.clock, self.fresh, self.failpoint = clock, fresh, failpoint
        self.owner = Owner(state_dir, fresh=fresh)
        self.server = ServerLock(state_dir)
        if serve:
            self.server.take()
        self.ledger = Ledger(state_dir / DATABASE, failpoint=failpoint)
        self.guard = Guard(self.ledger, self.owner.name, clock=clock, failpoint=failpoint)
        self.settler = Settler(
            self.guard, self.owner, clock=clock, fresh=fresh, failpoint=failpoint
        )
        self.opening = Opening(None)
        self.prober = Prober(self)
        self._unmirrored: list[Any] | None = []
        self.asking: dict[tuple[str, str | None], Intent] = {}
        self.warnings: dict[tuple[str, str | None], str] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self._saved: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._poller: asyncio.Task[None] | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        self._closed = False
        self._elsewhere: set[str] = set()
        self._again: set[str] = set()
        self._looking: set[str] = set()
        self._missed: set[str] = set()
        self.saving = threading.RLock()
        self.torn: set[str] = set()
        self.deleted: set[str] = set()
        self.last_sweep: dict[str, int] = {}

    # -- tools
    def declared(self, spec: Any) -> Declaration:
        """Return all that is declared about a tool.

        Raises:
            PolicyError: it contradicts itself.
        """
        tool = tool_identity(spec)
        settings = self.settings
        found = DECLARATIONS.of(spec, tool, person=settings.policies, built_in=BUILT_IN)
        output = settings.outputs.get(tool_key(tool))
        return found if output is None else replace(found, output=output)

    # -- bookkeeping
    def note_saved(self, manager: Any, session_id: str, messages: list[Message]) -> None:
        """Note that these messages of a session, and no others, are on disk."""
        self._saved[session_id] = len(messages)
        threads.remember(manager.session_store, session_id, messages)
        binding = binding_of(manager._engines.get(session_id))
        if binding is not None:
            binding.remember_file()

    def own_write_failed(self, manager: Any, session_id: str) -> None:
        """A save of ours may be half on disk: the next one writes the whole thread."""
        self.torn.add(session_id)
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

    @property
    def manager(self) -> Any:
        """The host's session manager."""
        return self.opening.manager

    @manager.setter
    def manager(self, manager: Any) -> None:
        self.opening.manager = manager

    # -- chat
    def tell(self, item: Any) -> None:
        """Mirror a recovery item to the chat its inbox is bound to, once the gateway is up."""
        if self._unmirrored is not None:
            self._unmirrored.append(item)
        elif hasattr(self.manager, "mirror_inbox_item"):
            self.spawn(self.manager.mirror_inbox_item, item)

    def mirror_waiting(self) -> None:
        """The message gateway is up: mirror what was raised before."""
        waiting, self._unmirrored = self._unmirrored or [], None
        for item in waiting:
            if item.state == "pending":
                self.tell(item)

    # -- driving sessions
    @contextlib.contextmanager
    def looking(self, session_id: str) -> Iterator[None]:
        """Hold a session while its thread is repaired; turns of this process wait for it.

        An engine that is there has the thread as it is on disk, whoever wrote it.

        Raises:
            SessionHeld: somebody else has it.
        """
        with self.owner.hold(session_id):
            self._looking.add(session_id)
            try:
                binding = binding_of(self.manager._engines.get(session_id))
                if binding is not None:
                    binding.look_again()
                yield
            finally:
                self._looking.discard(session_id)
        if session_id in self._missed:  # what came while we looked may not have been seen
            self._missed.discard(session_id)
            self.turn_ended(session_id)

    @contextlib.contextmanager
    def writing(self, session_id: str) -> Iterator[bool]:
        """Yield whether this process may save the session's thread now.

        Not while another process drives the session, and not from an engine that has not seen
        what another process saved: that engine reads the thread again instead.
        """
        if session_id in self.deleted:
            yield False
            return
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
            yield not self._took_over(session_id)

    def _took_over(self, session_id: str) -> bool:
        """Read the thread again when another process wrote it; true when that was so."""
        binding = binding_of(self.manager._engines.get(session_id))
        if binding is None or not binding.is_stale():
            return False
        with contextlib.suppress(OSError, ValueError):
            binding.reload_if_stale()
        return True

    async def hold_for_turn(self, session_id: str) -> SessionHold:
        """Take a session for a turn; waits for a triage of this process, for nobody else.

        Raises:
            SessionHeld: another process, or another turn of this one, has it.
        """
        while True:
            try:
                return self.owner.hold(session_id)
            except SessionHeld:
                if session_id not in self._looking:
                    raise
            await asyncio.sleep(0.005)

    def mend(self, manager: Any, session_id: str) -> None:
        """Mend a torn thread before it is loaded, unless somebody is writing it."""
        try:
            with self.owner.hold(session_id):
                mend_thread(manager.session_store._file(session_id))
        except SessionHeld:
            pass

    def let_die(self, session_id: str) -> None:
        """A session is being deleted: what still runs of it neither saves nor starts anything."""
        self.deleted.add(session_id)
        self.opening.deletions[session_id] = self.opening.deletions.get(session_id, 0) + 1
        parked = self.opening.parked.pop(session_id, None)
        if parked is not None:
            parked.request_interrupt()
        for engine in (parked, self.manager._engines.get(session_id)):
            binding = binding_of(engine)
            if binding is not None:
                binding.dead = True

    def let_live(self, session_id: str) -> None:
        """The host would not delete it: it goes on as if nothing had been asked."""
        self.deleted.discard(session_id)
        binding = binding_of(self.manager._engines.get(session_id))
        if binding is not None:
            binding.dead = False

    async def drive(self, session_id: str) -> None:
        """Resume a session as durable resume does: claimed first, its tools connected, saved."""
        manager = self.manager
        if manager is None or not HostSession(self, manager, session_id).exists():
            return
        if not manager.try_mark_running(session_id):
            return
        try:
            engine = await self.opening.engine(session_id)
            if engine is None:
                self.not_opened(session_id)
                return
            self.unopened.discard(session_id)
            await relay(manager, session_id, engine, engine.resume())
            manager.save(session_id, engine)
        finally:
            manager.mark_idle(session_id)
            await turn_done(manager, session_id)

    def not_opened(self, session_id: str) -> None:
        """A session cannot be opened: what waits for its tools is put before a person."""
        if session_id not in self.unopened:
            self.unopened.add(session_id)
            self._again.add(session_id)

    async def drive_settled(self, session_id: str) -> None:
        """After a decision: repair the thread of an idle session and go on where it halted."""
        if await self._look_after(session_id):
            await self.drive(session_id)

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
        """Triage an idle session; say whether its turn is to go on.

        What cannot be looked at now (held, unreadable, ledger down) is looked at again.
        """
        manager = self.manager
        if session_id in self._looking:
            self._missed.add(session_id)
            return False
        if manager is None or manager.is_running(session_id):
            return False
        if not self._anything_waits(session_id):
            self._again.discard(session_id)
            return False
        try:
            with self.looking(session_id):
                port = HostSession(self, manager, session_id)
                report = await self.settler.triage(port, Trigger.TURN_END)
        except Exception as exc:
            self._again.add(session_id)
            log.warning("session %s: looked at again later (%s)", session_id, type(exc).__name__)
            return False
        if not port.readable():  # its calls are settled; its thread is told when it can be
            self._again.add(session_id)
            return False
        self._again.discard(session_id)
        return self._to_go_on(session_id, report)

    def _to_go_on(self, session_id: str, report: Report) -> bool:
        binding = binding_of(self.manager._engines.get(session_id))
        unrunnable = binding.unrunnable if binding else set()
        retries = [r for r in report.retries if r.key not in unrunnable]
        proceed = report.proceed and not (binding and binding.cut_short)
        due = retries or proceed or report.follow_up_unseen or report.follow_up_blocked
        if report.halted or not due:
            return False
        said = HostSession(self, self.manager, session_id).messages()
        mark = (sum(m.get("role") != "notice" for m in said), self.ledger.commits)
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
        await self.prober.aclose()
        self.close()

    def close(self) -> None:
        """Close the ledger and end this life as an owner; running calls keep their evidence."""
        self._closed = True
        forget(self)
        if not self.guard.idle():
            # A call still runs: this life lasts until it has ended and its outcome is kept.
            threading.Thread(target=self._close_when_idle, daemon=True).start()
            return
        self._close_now()

    def _close_when_idle(self) -> None:
        while not self.guard.idle():
            time.sleep(0.02)
        self._close_now()

    def _close_now(self) -> None:
        self.guard.close()
        self.ledger.close()
        self.server.close()
        self.owner.close()


def _settings(state_dir: Path) -> Settings:
    """Return what the person configured.

    Raises:
        PolicyError: it cannot be used, or contradicts what is declared about the tools.
    """
    settings = read_settings(settings_path(state_dir))
    for problem in check(settings, lambda key: DECLARATIONS.anything_about(key, BUILT_IN)):
        if problem.fatal:
            raise PolicyError(problem.text)
        log.warning("%s", problem.text)
    return settings


async def _logged(make: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
    try:
        await make(*args)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("background recovery failed")


_runtimes: dict[Path, Runtime] = {}
_lock = threading.Lock()


def runtime_for(
    state_dir: Path, names: HostNames, failpoint: Failpoint, retention: Retention = KEEP,
    *, serve: bool = True,
) -> Runtime:  # fmt: skip
    """Return this process's runtime of a state folder, made when there is none.

    Args:
        serve: whether it may be the server process, which has a session manager.
    """
    key = state_dir.resolve()
    with _lock:
        if key not in _runtimes:
            _runtimes[key] = Runtime(
                key, names, failpoint=failpoint, retention=retention, serve=serve
            )
        return _runtimes[key]


def forget(runtime: Runtime) -> None:
    """Take a closed runtime off the list, so that the folder can be opened anew."""
    with _lock:
        for key in [k for k, r in _runtimes.items() if r is runtime]:
            del _runtimes[key]
