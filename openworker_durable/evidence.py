"""Evidence by hand: a named source says how one exact unknown attempt ended.

The right to give evidence is the person's to grant, tool by tool (`[sources]` in `durable.toml`),
and is apart from the right to decide. What is given is checked, then committed in one transaction
with its own audit row: the first that settles an attempt stands, the same event again changes
nothing, and anything else after it is refused. No tool is run, and only the ledger is read or
written. Neither the audit nor an error holds any of what was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from . import finding, rows
from .clock import Clock, now
from .config import Settings, source_name
from .declare import tool_key
from .errors import DurableError, Refused
from .ledger import Ledger
from .models import Evidence, Outcome
from .policy import identity_of
from .states import Reason, State
from .validate import ResultRefused, outcome_from

MAX_EVENT = 200
"""Most characters of an event's id."""

Declared = Callable[[str], Any]
"""Takes a tool's key; returns the output that is declared for it, or None (see `Declaration`)."""


class NotAllowed(DurableError):
    """A source may not give evidence about a tool; nothing was written.

    Args:
        source: who tried.
        tool: the tool's key, empty when the source has no right at all.
    """

    def __init__(self, source: str, tool: str = "") -> None:
        about = f"about {tool}" if tool else "about any tool"
        super().__init__(
            f"source {source!r} may not give evidence {about}; the person can allow it under "
            "[sources] in durable.toml"
        )
        self.source = source
        self.tool = tool


class _Nothing:
    """Stands for a result or an error that was not given; None is a result."""


NOTHING = _Nothing()


async def submit(
    ledger: Ledger,
    *,
    execution_id: str,
    attempt: int,
    source: str,
    event: str,
    settings: Settings,
    result: Any = NOTHING,
    error: Any = NOTHING,
    declared: Declared | None = None,
    clock: Clock = now,
) -> bool:
    """Settle one unknown attempt by what a source says of it.

    Args:
        ledger: the record.
        execution_id, attempt: the exact attempt.
        source: who says it; see `Settings.sources`.
        event: the source's own id of this statement, without spaces; the same event again is
            the same statement. It is kept and shown, so it must hold nothing secret.
        settings: the person's, as read now.
        result: what the call returned, as the model is to see it; it has to pass the tool's
            declared output.
        error: the service's own error, when it says with authority that it refused. Exactly one
            of the two is given.
        declared: the output that a tool's author declared, by the tool's key; one in `settings`
            goes before it.
        clock: see that module.

    Returns:
        True when it settled the attempt; False when this very event had done so before. After
        a crash, or when whoever awaits this was cancelled, give the same event again: it tells.

    Raises:
        NotAllowed: the source may not give evidence about the row's tool.
        ResultRefused: what was given does not pass.
        PolicyError: the declared output cannot be used.
        AlreadyRecorded: the event was given before with another content, or for another attempt.
        AlreadyDecided: the attempt is settled; nothing changed.
        Refused: there is no such attempt, or it is not unknown.
        LedgerUnavailable: nothing was committed that is known of; give the same event again.
        TypeError: both of `result` and `error` are given, or neither.
    """
    if (result is NOTHING) == (error is NOTHING):
        raise TypeError("exactly one of `result` and `error` is to be given")
    key = _tool_of(ledger, execution_id, attempt, source, settings)
    _check_event(event)
    output = settings.outputs.get(key)
    if output is None and declared is not None:
        output = declared(key)
    outcome = await asyncio.to_thread(_outcome, result, error, output)
    said = Evidence(source=source, event=event, outcome=outcome)
    return await ledger.ask(finding.give_evidence, execution_id, attempt, said, clock())


def _tool_of(
    ledger: Ledger, execution_id: str, attempt: int, source: str, settings: Settings
) -> str:
    """Return the key of the tool that an attempt called, if the source has a right to it."""
    if not source_name(source) or source not in settings.sources:
        raise NotAllowed(source[:100])
    row = ledger.first(rows.row(execution_id, attempt))
    if row is None:
        raise Refused(execution_id, attempt, "no row", "unknown and undecided")
    key = tool_key(identity_of(row))
    if not settings.may_give(source, key):
        raise NotAllowed(source, key)
    return key


def _check_event(event: str) -> None:
    if not (0 < len(event) <= MAX_EVENT and event.isascii() and event.isprintable()):
        raise ResultRefused(f"an event's id has 1 to {MAX_EVENT} visible ASCII characters")
    if " " in event:
        raise ResultRefused("an event's id has no spaces")


def _outcome(result: Any, error: Any, output: Any) -> Outcome:
    if error is NOTHING:
        return outcome_from(State.SUCCEEDED, result, Reason.EVIDENCE, output)
    return outcome_from(State.FAILED, error, Reason.EVIDENCE)
