"""Every error this package raises; a subclass exists where a caller would act differently.

Messages name the execution, the state found and the state wanted, and what to do about it.
They never hold arguments, results or credentials (guarantee G10).
"""

from __future__ import annotations


class DurableError(Exception):
    """Base of all errors of openworker-durable."""


class LedgerError(DurableError):
    """Base of the errors of the record itself; never shown as a tool's own error."""


class LedgerUnavailable(LedgerError):
    """The record cannot be written or read now (locked, full, read-only, damaged).

    Before a call this means the call is not made; after it, the outcome is kept in memory
    and written again later. Works again without a restart when the cause is gone.
    """


class LedgerNotFound(LedgerError):
    """The folder holds no record: nothing protected has run there yet, or it is the wrong one."""


class LedgerTooNew(LedgerError):
    """The record was written by a newer version; it is left untouched. Remedy: upgrade."""


class LedgerCorrupt(LedgerError):
    """The database file is not readable as one. Remedy: see `openworker-durable doctor`."""


class Refused(LedgerError):
    """A guarded move did not apply, because the row was not in the state it needs.

    Args:
        execution_id: the execution concerned.
        attempt: the attempt concerned, from 1.
        found: the state or fact found, in words.
        wanted: the state or fact the move needs, in words.
    """

    def __init__(self, execution_id: str, attempt: int, found: str, wanted: str) -> None:
        super().__init__(
            f"execution {execution_id} attempt {attempt}: found {found}, wanted {wanted}"
        )
        self.execution_id = execution_id
        self.attempt = attempt
        self.found = found
        self.wanted = wanted


class AlreadyRecorded(Refused):
    """A start or dispatch found the attempt on record: do no I/O, use what is recorded."""


class Withdrawn(Refused):
    """The turn that asked for the call is gone; the call is not made."""


class AlreadyDecided(Refused):
    """A final decision was made before this one; the first stands."""


class NotOwner(Refused):
    """The attempt belongs to another process; only its owner writes its outcome."""


class ApprovalSpent(Refused):
    """The approval named as authority already started another attempt."""


class HandleSpent(DurableError):
    """A one-time handle was used twice, or by a process it was not given to."""


class SessionHeld(DurableError):
    """Another process drives this session; the message names it."""

    def __init__(self, session_id: str, holder: str) -> None:
        super().__init__(
            f"session {session_id} is in use by {holder}; "
            "wait until it is done there, or close it, and try again"
        )
        self.session_id = session_id
        self.holder = holder


class SeamsDoNotFit(DurableError):
    """The host lacks a method this plugin attaches to, so nothing was attached."""


class PolicyError(DurableError):
    """A tool declares a recovery policy that this version cannot honour."""
