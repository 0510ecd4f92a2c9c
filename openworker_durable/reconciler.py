"""Asking the outside world what happened to one attempt: the reconciler protocol.

A reconciler looks, it never performs the effect. It is asked with the identity, the arguments and
the key of exactly one attempt, has a deadline, and may be cancelled at any time. What it raises,
and not answering in time, are no verdict and decide nothing. Nothing here writes; a process that
dies inside a probe leaves the attempt unknown, with its next probe scheduled.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from .models import ToolIdentity


class VerdictKind(str, Enum):
    """What a probe found out about one attempt."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    FAILED = "failed"
    PENDING = "pending"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True)
class Verdict:
    """What a reconciler says; made by `happened`, `did_not_happen` and the like.

    Args:
        kind: see `VerdictKind`.
        result: for `happened`, what the model is to see as the tool's result; for `failed`, the
            service's own error. It has to pass the tool's declared output schema.
        retry_after: for `pending`, seconds until it is worth asking again.
        note: one short line for the person, without secrets, bodies or results.
    """

    kind: VerdictKind
    result: Any = None
    retry_after: float | None = None
    note: str = ""


def happened(result: Any, note: str = "") -> Verdict:
    """The effect is there; `result` is what the call would have returned."""
    return Verdict(VerdictKind.HAPPENED, result, note=note)


def did_not_happen(note: str = "") -> Verdict:
    """The effect is not there, and will not come."""
    return Verdict(VerdictKind.DID_NOT_HAPPEN, note=note)


def failed(error: Any, note: str = "") -> Verdict:
    """The service says with authority that it refused, with this error."""
    return Verdict(VerdictKind.FAILED, error, note=note)


def pending(retry_after: float | None = None, note: str = "") -> Verdict:
    """The service is still at it; ask again after so many seconds."""
    return Verdict(VerdictKind.PENDING, retry_after=retry_after, note=note)


def cannot_tell(note: str = "") -> Verdict:
    """Neither can be shown."""
    return Verdict(VerdictKind.CANNOT_TELL, note=note)


@dataclass(frozen=True)
class Call:
    """The call that a reconciler is asked about.

    Args:
        execution_id, attempt: which attempt.
        tool: the tool's identity, the same at dispatch and now.
        arguments: as the call was made.
        workspace: folder that the session works in, where it has one.
    """

    execution_id: str
    attempt: int
    tool: ToolIdentity
    arguments: Mapping[str, Any]
    workspace: Path | None = None

    @property
    def idempotency_key(self) -> str:
        """Return the key that every attempt had at hand (G6)."""
        return self.execution_id


@dataclass(frozen=True)
class Probe(Call):
    """One look at what happened.

    Args:
        dispatched_at, ended_at: when the attempt began and when it was found unknown, epoch
            seconds.
        prepared: what the reconciler's `prepare` returned before the attempt, empty if nothing.
        number: which probe of the attempt this is, from 1.
    """

    dispatched_at: float = 0.0
    ended_at: float = 0.0
    prepared: str = ""
    number: int = 1


Look = Callable[[Probe], "Verdict | Awaitable[Verdict]"]

DELAYS = (0.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds before each probe, counted from the one before: the schedule when none is declared."""

MAX_PROBES = 20
MAX_DELAY = 86400.0
PREPARED_CHARACTERS = 4000


@dataclass(frozen=True)
class Reconciler:
    """How to find out what happened to calls of one tool.

    Args:
        look: takes a `Probe`, returns a `Verdict`; a coroutine function, or a plain one, which
            is run in a thread. It must not perform the effect.
        name: for people and the audit table.
        reads_see_writes: True when a look that comes after the call sees its effect for certain,
            so that "not there" proves that it did not happen.
        settle: where reads may lag: seconds after the end of the attempt from which on "not
            there" is proof all the same; None: it never is.
        timeout: seconds that one probe may take.
        delays: seconds before each probe; their number bounds how often is asked.
        prepare: called with the `Call` before its effect, in the call's own thread; what it
            returns (a short text without secrets, such as digests) is kept with the attempt. It
            must not have effects; what it raises is ignored.
        covers: says whether the reconciler knows calls with these arguments; one that does not
            leaves the call `manual`.
    """

    look: Look
    name: str = ""
    reads_see_writes: bool = False
    settle: float | None = None
    timeout: float = 20.0
    delays: tuple[float, ...] = DELAYS
    prepare: Callable[[Call], str] | None = None
    covers: Callable[[Mapping[str, Any]], bool] | None = None

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError("a reconciler's timeout is a number of seconds above 0")
        if not 1 <= len(self.delays) <= MAX_PROBES:
            raise ValueError(f"a reconciler is asked between 1 and {MAX_PROBES} times")
        if any(not 0 <= d <= MAX_DELAY for d in self.delays):
            raise ValueError(f"a delay between probes is between 0 and {MAX_DELAY:.0f} seconds")

    def knows(self, arguments: Mapping[str, Any]) -> bool:
        """Say whether calls with these arguments can be looked up."""
        return self.covers is None or bool(self.covers(arguments))

    def proves_absence(self, probe: Probe, at: float) -> bool:
        """Say whether "not there", seen at this time, shows that it did not happen."""
        if self.reads_see_writes:
            return True
        return self.settle is not None and at >= probe.ended_at + self.settle


@dataclass(frozen=True)
class NoVerdict:
    """A probe that came to nothing: it raised, did not answer in time, or answered nonsense.

    Args:
        why: the exception's name, or a word.
    """

    why: str


async def ask(reconciler: Reconciler, probe: Probe) -> Verdict | NoVerdict:
    """Make one probe within its deadline; never raises but for cancellation of whoever asks.

    A plain function that does not come back in time goes on in its thread; what it returns is
    dropped.
    """
    try:
        return await asyncio.wait_for(_look(reconciler, probe), reconciler.timeout)
    except asyncio.TimeoutError:
        return NoVerdict("no answer in time")
    except asyncio.CancelledError:
        if _cancelled_from_outside():
            raise
        return NoVerdict("CancelledError")
    except BaseException as exc:
        if isinstance(exc, (KeyboardInterrupt, SystemExit)):
            raise
        return NoVerdict(type(exc).__name__)


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    asked = getattr(task, "cancelling", None)  # Python 3.11 and newer can tell
    return asked is None or bool(asked())


async def _look(reconciler: Reconciler, probe: Probe) -> Verdict | NoVerdict:
    if inspect.iscoroutinefunction(reconciler.look):
        answer = await reconciler.look(probe)
    else:
        answer = await asyncio.to_thread(reconciler.look, probe)
        if inspect.isawaitable(answer):
            answer = await answer
    return answer if isinstance(answer, Verdict) else NoVerdict("no verdict")


@dataclass(frozen=True)
class Finding:
    """What one probe came to, as it is committed.

    Args:
        verdict: the kind, or None for no verdict.
        word: for the audit and the person: the kind's value, `error`, or why it does not count.
        note: the reconciler's line.
        result: see `Verdict`.
        wait: seconds until the next probe, as the service asks; None: by the schedule.
    """

    verdict: VerdictKind | None
    word: str
    note: str = ""
    result: Any = field(default=None, repr=False)
    wait: float | None = None


def weigh(answer: Verdict | NoVerdict, reconciler: Reconciler, probe: Probe, at: float) -> Finding:
    """Return what an answer counts for: "not there" counts only where it proves something.

    Args:
        at: when the look began, epoch seconds.
    """
    if isinstance(answer, NoVerdict):
        return Finding(None, f"error: {answer.why}")
    kind, wait = answer.kind, None
    word = kind.value
    if kind is VerdictKind.DID_NOT_HAPPEN and not reconciler.proves_absence(probe, at):
        kind, word = VerdictKind.CANNOT_TELL, "not seen, which proves nothing yet"
        if reconciler.settle is not None:
            wait = probe.ended_at + reconciler.settle - at
    if kind is VerdictKind.PENDING and answer.retry_after is not None:
        wait = answer.retry_after
    if wait is not None:
        wait = min(max(wait, 0.0), MAX_DELAY)
    return Finding(kind, word, answer.note, answer.result, wait)
