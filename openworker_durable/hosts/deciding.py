"""Decisions: the one path of every surface from a person's word to the ledger and back.

A decision is committed first; what follows from it (items closed, a halted turn woken) may be
done again by whoever looks next, so that a kill in between loses nothing.
"""

from __future__ import annotations

import logging
from typing import Any

from .. import review, rows, verbs
from ..clock import Clock
from ..errors import AlreadyDecided, LedgerError, Refused
from ..ledger import Ledger
from ..models import Execution
from ..owner import ServerLock
from ..states import Decision
from .items import close, recovery_of
from .session import HostSession

log = logging.getLogger("openworker_durable")


class Deciding:
    """The part of `Runtime` that takes decisions; its constructor sets the attributes."""

    ledger: Ledger
    server: ServerLock
    clock: Clock

    @property
    def manager(self) -> Any:
        """The host's session manager."""
        raise NotImplementedError

    def life(self) -> Any:
        """Return the runtime as its sessions see it."""
        return self

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
        HostSession(self.life(), self.manager, row.session_id).close_items(
            row.execution_id, 0, word
        )

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

    def ask_without_retry(self, session_id: str) -> None:
        """Ask about a deleted session's unknown calls again: nothing can run there any more."""
        port = HostSession(self.life(), self.manager, session_id)
        for row in self.ledger.known(rows.open_in_session(session_id)):
            if row.undecided and self.server.held:
                port.close_items(row.execution_id, 0, "session deleted")
                port.raise_item(review.draft(row, retry=False), row.execution_id, row.attempt)
