"""The one door: every protected call, first run and retry alike, goes through `Guard`.

Order, always: `dispatched` committed, then the external call with no transaction open, then
the outcome committed, from the thread the call ran in, so that cancelling whoever waits
loses nothing. When the ledger cannot be written before, the call is not made; when it cannot
be written after, the outcome is kept (bounded) and the write, never the call, is tried again
(G1, G7, G8). Killed anywhere, recovery finds the row as the last commit left it.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from . import finding, rows, verbs
from .clock import Clock, fresh_id, now
from .errors import (
    AlreadyRecorded,
    HandleSpent,
    LedgerError,
    LedgerUnavailable,
    Refused,
    Withdrawn,
)
from .failpoints import Failpoint, no_failpoint
from .identity import execution_id, intent_digest
from .ledger import Ledger
from .models import Authority, Intent, Outcome, ToolIdentity
from .redact import preview
from .snapshot import Snapshot
from .states import Reason, State
from .witness import Witness

log = logging.getLogger("openworker_durable")
T = TypeVar("T")

KEPT_CHARACTERS = 64 * 1024 * 1024
"""Most characters of results kept in memory while the ledger cannot be written."""


@dataclass(frozen=True)
class ExecutionContext:
    """What an adapter may know of the call it is making; never part of its arguments (G6).

    Args:
        execution_id: the same for all attempts.
        attempt: from 1.
        idempotency_key: what may be sent to a service so that it does one thing once.
    """

    execution_id: str
    attempt: int

    @property
    def idempotency_key(self) -> str:
        """Return the key, equal for all attempts."""
        return self.execution_id


_current: contextvars.ContextVar[ExecutionContext | None] = contextvars.ContextVar(
    "openworker_durable_execution", default=None
)


def current_execution() -> ExecutionContext | None:
    """Return the execution this code runs for, or None outside a protected call.

    Works in the call's own thread and in whatever inherits its context.
    """
    return _current.get()


class Withdrawable(Protocol):
    """A call that was allowed and may be taken back before it is claimed."""

    withdrawn: bool


NOT_MADE = Outcome(
    state=State.FAILED,
    reason=Reason.RAISED,
    snapshot=Snapshot("This call was not made."),
    detail="not made",
)
"""Evidence for an attempt whose dispatch could not be confirmed: it never began."""


@dataclass
class Retained:
    """Outcomes that a closed guard of this process could not write, for the one after it.

    Bounded like what a guard itself keeps; gone with the process.
    """

    _outcomes: dict[Path, dict[tuple[str, int], tuple[str, Outcome]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def leave(
        self, path: Path, owners: dict[tuple[str, int], str], kept: dict[tuple[str, int], Outcome]
    ) -> None:
        """Leave what a guard that is closed could not write.

        Args:
            owners: for each attempt, whom it belongs to on record.
        """
        with self._lock:
            there = self._outcomes.setdefault(path, {})
            for key, outcome in kept.items():
                room = KEPT_CHARACTERS - sum(_size(o) for _, o in there.values())
                bounded = outcome if _size(outcome) <= room else _without_result(outcome)
                there[key] = (owners[key], bounded)

    def take(self, path: Path) -> dict[tuple[str, int], tuple[str, Outcome]]:
        """Take over what was left for a ledger: (owner that ended, outcome) by attempt."""
        with self._lock:
            return self._outcomes.pop(path, {})


RETAINED = Retained()
"""What this process still holds for ledgers that could not be written."""


@dataclass
class Handle:
    """The right to dispatch and finish one attempt, once; only `Guard.start` makes one."""

    intent: Intent
    authority: Authority
    retry: bool = False
    attempt: int = 0
    witness: Witness = field(default_factory=Witness, repr=False)
    _used: bool = field(default=False, repr=False)
    _done: bool = field(default=False, repr=False)

    @property
    def execution_id(self) -> str:
        """Return the execution's id."""
        return self.intent.execution_id

    def spend(self) -> None:
        """Use the right to dispatch.

        Raises:
            HandleSpent: it was used before.
        """
        if self._used:
            raise HandleSpent(f"execution {self.execution_id}: this handle was used already")
        self._used = True


class Guard:
    """Dispatches, runs and settles attempts for one process.

    Args:
        ledger: the record.
        owner: this process's owner name.
        clock: seconds since the epoch.
        failpoint: see `failpoints`.
    """

    def __init__(
        self, ledger: Ledger, owner: str, *, clock: Clock = now, failpoint: Failpoint = no_failpoint
    ) -> None:
        self.ledger = ledger
        self.owner = owner
        self.clock = clock
        self._hit = failpoint
        self._lock = threading.Lock()
        self._started: dict[str, Future[None]] = {}
        self._running: dict[tuple[str, int], Future[None]] = {}
        self._kept: dict[tuple[str, int], Outcome] = {}
        self._of_owner: dict[tuple[str, int], str] = {}
        self._writing_again: threading.Thread | None = None
        self._stop = threading.Event()

    # -- staged use
    def intent(
        self, session_id: str, tool_call_id: str, tool: str, arguments: dict[str, Any]
    ) -> Intent:
        """Describe one call of a session that no host engine drives.

        Args:
            session_id, tool_call_id: name the call; the same pair is the same execution.
            tool: the tool's name.
            arguments: what it would be called with; only a digest and a redacted line of it
                are kept.

        Raises:
            LedgerUnavailable: the session cannot be begun in the record.
        """
        coverage = self.ledger.run(verbs.open_session, session_id, fresh_id())
        return Intent(
            session_id=session_id,
            incarnation=coverage.incarnation,
            tool_call_id=tool_call_id,
            execution_id=execution_id(session_id, coverage.incarnation, tool_call_id),
            tool=ToolIdentity(source="own", name=tool),
            intent_digest=intent_digest(tool, arguments),
            preview=preview(arguments),
        )

    def start(
        self,
        intent: Intent,
        authority: Authority,
        *,
        retry: bool = False,
        still: Callable[[], bool] = lambda: True,
    ) -> Handle:
        """Claim the next attempt of an execution in this process; writes nothing yet.

        Args:
            still: asked in the moment of the claim whether the call may still be made; see
                `withdraw`.

        Returns:
            the one-time handle that dispatches it.

        Raises:
            AlreadyRecorded: it is on record, or claimed; do no I/O.
            Withdrawn: `still` said no.
            LedgerUnavailable: the record cannot be read.
        """
        there = self.ledger.known(rows.attempts(intent.execution_id))
        latest = there[-1] if there else None
        with self._lock:
            if intent.execution_id in self._started or (latest is not None and not retry):
                found = str(getattr(latest.state, "value", latest.state)) if latest else "started"
                attempt = latest.attempt if latest else 1
                raise AlreadyRecorded(intent.execution_id, attempt, found, "no row")
            if not still():
                raise Withdrawn(intent.execution_id, 1, "its turn has ended", "a turn that waits")
            self._started[intent.execution_id] = Future()
        return Handle(intent, authority, retry)

    def withdraw(self, calls: Iterable[Withdrawable]) -> None:
        """Take calls back that were allowed but not claimed: they can never be made after this."""
        with self._lock:
            for call in calls:
                call.withdrawn = True

    def starting(self, execution_id: str) -> Future[None] | None:
        """Return a future that ends with a claim, or None when the execution is not claimed."""
        with self._lock:
            return self._started.get(execution_id)

    def dispatch(self, handle: Handle) -> int:
        """Commit that the attempt may start now; after this returns, and only then, call out.

        Returns:
            the attempt's number.

        Raises:
            HandleSpent: the handle was used before.
            Refused, LedgerUnavailable: nothing was committed; the call must not be made.
        """
        handle.spend()
        try:
            if handle.retry:
                handle.attempt = self.ledger.run(
                    verbs.retry, handle.intent, self.owner, self.clock(), handle.authority
                )
            else:
                handle.attempt = self.ledger.run(
                    verbs.dispatch, handle.intent, handle.authority, self.owner, self.clock()
                )
        except BaseException as exc:
            if isinstance(exc, LedgerUnavailable):
                # The commit may have become durable all the same; this process knows better.
                self._keep((handle.execution_id, handle.attempt or 1), NOT_MADE)
            self.abandon(handle)
            raise
        with self._lock:
            self._running[(handle.execution_id, handle.attempt)] = Future()
        return handle.attempt

    def abandon(self, handle: Handle) -> None:
        """Give back a claim that was never dispatched."""
        with self._lock:
            claim = self._started.pop(handle.execution_id, None)
        if claim is not None:
            claim.set_result(None)

    def finish(self, handle: Handle, outcome: Outcome) -> State:
        """Commit how the attempt ended.

        Returns:
            the state on record; when the ledger cannot be written, the outcome is kept, the
            write is tried again in the background, and `outcome.state` is returned.

        Raises:
            HandleSpent: the attempt was not dispatched, or finished before.
        """
        if handle.attempt == 0 or handle._done:
            raise HandleSpent(f"execution {handle.execution_id}: no attempt is running")
        handle._done = True
        key = (handle.execution_id, handle.attempt)
        try:
            return self._write(key, outcome)
        except Refused:
            log.warning("execution %s attempt %d: its outcome came too late", *key)
            return outcome.state
        except LedgerError as exc:
            log.warning("execution %s attempt %d: outcome kept for later (%s)", *key, exc)
            self._keep(key, outcome)
            return outcome.state
        finally:
            self._end(key)

    def _write(self, key: tuple[str, int], outcome: Outcome) -> State:
        before = self._of_owner.get(key)
        if before is not None:
            self.ledger.run(finding.rebind, *key, before, self.owner)
            del self._of_owner[key]
        return self.ledger.run(verbs.finish, *key, self.owner, outcome, self.clock())

    def _end(self, key: tuple[str, int]) -> None:
        with self._lock:
            ended = [self._started.pop(key[0], None), self._running.pop(key, None)]
        for future in ended:
            if future is not None:
                future.set_result(None)

    # -- around one call
    @contextlib.contextmanager
    def call(self, handle: Handle) -> Iterator[ExecutionContext]:
        """Dispatch, then run the body as the call's effect; `finish` stays with the caller.

        The handle's witness sees what the body sends.
        """
        attempt = self.dispatch(handle)
        context = ExecutionContext(handle.execution_id, attempt)
        token = _current.set(context)
        try:
            with handle.witness.watching():
                self._hit("effect.before")
                yield context
                self._hit("effect.after")
        finally:
            _current.reset(token)

    # -- what this process knows
    def running(self, execution_id: str, attempt: int) -> Future[None] | None:
        """Return a future that ends with the attempt, or None when it does not run here."""
        with self._lock:
            return self._running.get((execution_id, attempt))

    def idle(self) -> bool:
        """Say whether no attempt runs in this process."""
        with self._lock:
            return not self._running and not self._started

    def kept(self, execution_id: str, attempt: int) -> Outcome | None:
        """Return the outcome of an attempt whose write has not succeeded yet."""
        with self._lock:
            return self._kept.get((execution_id, attempt))

    def adopt(self) -> int:
        """Take over what an earlier owner of this process could not write, and write it.

        No call is made. Only what still belongs to the owner that ended is written: its attempt
        is given to this one first.

        Returns:
            how many outcomes were taken over.
        """
        left = RETAINED.take(self.ledger.path)
        for key, (owner, outcome) in left.items():
            self._of_owner[key] = owner
            self._keep(key, outcome)
        self.commit_kept()
        return len(left)

    def commit_kept(self) -> bool:
        """Try to write every kept outcome now; true when none is left."""
        with self._lock:
            waiting = list(self._kept.items())
        for key, outcome in waiting:
            try:
                self._write(key, outcome)
            except Refused:
                pass
            except LedgerError:
                return False
            with self._lock:
                self._kept.pop(key, None)
        return True

    def _keep(self, key: tuple[str, int], outcome: Outcome) -> None:
        with self._lock:
            size = sum(map(_size, [*self._kept.values(), outcome]))
            if size > KEPT_CHARACTERS:
                outcome = _without_result(outcome)
            self._kept[key] = outcome
            if self._writing_again is None:
                self._writing_again = threading.Thread(
                    target=self._write_again, name="durable-write-again", daemon=True
                )
                self._writing_again.start()

    def _write_again(self) -> None:
        pause = 0.2
        while not self._stop.wait(pause):
            self.commit_kept()
            with self._lock:
                if not self._kept:
                    self._writing_again = None
                    return
            pause = min(pause * 1.5, 5.0)

    def close(self) -> None:
        """Try once more to write what is kept, and stop trying."""
        self._stop.set()
        with contextlib.suppress(LedgerError):
            self.commit_kept()
        with self._lock:
            left, self._kept = self._kept, {}
        if left:
            owners = {key: self._of_owner.get(key, self.owner) for key in left}
            RETAINED.leave(self.ledger.path, owners, left)


def _without_result(outcome: Outcome) -> Outcome:
    return outcome.model_copy(update={"snapshot": None})


def _size(outcome: Outcome) -> int:
    """Return how many characters of results an outcome holds."""
    shot = outcome.snapshot
    return len(shot.text) + len(shot.display or "") if shot else 0


def run_protected(
    guard: Guard, handle: Handle, effect: Callable[[], T], settle: Callable[[T], Outcome],
    failed: Callable[[BaseException], Outcome],
) -> T:  # fmt: skip
    """Make one protected call from start to outcome, for callers that are no tool engine.

    Args:
        effect: the call itself.
        settle: turns what it returned into an outcome.
        failed: turns what it raised into an outcome; the exception is raised on.
    """
    try:
        with guard.call(handle):
            value = effect()
    except BaseException as exc:
        if handle.attempt:
            guard.finish(handle, handle.witness.judge(failed(exc)))
        raise
    guard.finish(handle, handle.witness.judge(settle(value)))
    return value
