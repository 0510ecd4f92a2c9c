"""Staged use without a host: record your own calls with the same guard.

    with record_in(folder) as guard:
        intent = guard.intent("session", "call-1", "send_mail", {"to": "ann"})
        handle = guard.start(intent, Authority(kind=AuthorityKind.PROMPT))
        guard.dispatch(handle)            # committed: now, and only now, call out
        guard.finish(handle, Outcome(state=State.SUCCEEDED, reason=Reason.RETURNED))

A second `start` of the same call raises `AlreadyRecorded` and gives no handle. Killed after
`dispatch`, the row stays `dispatched` with a dead owner, and recovery asks what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .clock import Clock, now
from .failpoints import Failpoint, no_failpoint
from .guard import Guard
from .ledger import DATABASE, Ledger
from .owner import Owner


@contextmanager
def record_in(
    state_dir: Path | str, *, clock: Clock = now, failpoint: Failpoint = no_failpoint
) -> Iterator[Guard]:
    """Yield a guard whose record lies in a folder; this process owns what it dispatches.

    Args:
        state_dir: the folder; it must exist, the database in it is made when missing.
        clock, failpoint: see those modules.
    """
    folder = Path(state_dir)
    owner = Owner(folder)
    ledger = Ledger(folder / DATABASE, failpoint=failpoint)
    guard = Guard(ledger, owner.name, clock=clock, failpoint=failpoint)
    try:
        yield guard
    finally:
        guard.close()
        ledger.close()
        owner.close()
