"""A mail tool whose sends can be looked up afterwards: the model for authors of connectors.

What proves what. The mail's Message-ID is a digest of the idempotency key; the SMTP server accepts
the mail first, and a copy is filed after that, by the server or by the tool. So:

- a copy in one of the account's folders: the mail was accepted, and the copy's own header says
  for whom; the reconciler answers with the result that the call would have returned;
- no copy, where the server files every mail that it accepts: the mail was not accepted, once the
  account's `settle` has passed, and for a day after the dispatch, until somebody may have cleared
  the copy away;
- no copy, where the tool files it: nothing. It may have died after the mail was accepted and
  before the copy was there.

The tool does not file before it sends: such a copy would prove only that the attempt began, which
the record says anyway, and would stand in "Sent" for a mail that nobody got. Killed anywhere, at
most one mail is out, and a look sends nothing.
"""
# No `from __future__ import annotations`: hosts read the tool's annotations as they are.

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from ..clock import Clock, now
from ..declare import recoverable
from ..guard import current_execution
from ..policy import RecoveryPolicy, reconcile
from ..reconciler import Probe, Reconciler, Verdict, cannot_tell, did_not_happen, happened
from .mail_account import Filing, MailAccount, MailInDoubt, MailNotSent, MailServer, Security
from .mail_imap import ImapSession
from .mail_message import Letter, letter, message_id, seal, unseal
from .mail_smtp import deliver

__all__ = [
    "ABSENCE_HOLDS",
    "ACCOUNT_FIELD",
    "RESULT",
    "Filing",
    "MailAccount",
    "MailInDoubt",
    "MailNotSent",
    "MailServer",
    "Security",
    "mail_reconciler",
    "mail_tool",
]

ABSENCE_HOLDS = 86400.0
"""Seconds after the dispatch for which "no copy" is taken as a proof; later it may be cleared."""

RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message_id": {"type": "string"},
        "sent_to": {"type": "array", "items": {"type": "string"}},
        "refused": {"type": "array", "items": {"type": "string"}},
        "note": {"type": "string"},
    },
    "required": ["message_id", "sent_to", "refused", "note"],
    "additionalProperties": False,
}
"""JSON Schema of what the tool returns."""

ACCOUNT_FIELD = "__durable_account__"
"""The attribute of a tool's function that says whose account it acts for."""

Sent = dict[str, str | list[str]]


def execution_key() -> str | None:
    """Return the idempotency key of the protected call this code runs for; None outside one."""
    execution = current_execution()
    return execution.idempotency_key if execution else None


def mail_tool(
    account: MailAccount,
    *,
    policy: RecoveryPolicy | None = None,
    key: Callable[[], str | None] = execution_key,
) -> Callable[..., Sent]:
    """Return a tool that sends mail from an account, with its recovery declared on it.

    Args:
        account: whose mail it is; part of the tool's identity.
        policy: None: `reconcile()`, then a person decides. `reconcile(attempts=2)` lets a mail
            that provably was not sent be sent again.
        key: returns the idempotency key; None outside a protected call, where the Message-ID is
            random and nothing can be looked up.

    Returns:
        `send_mail(to, subject, body, cc=None, bcc=None)`. It raises `ValueError` for what no mail
        can hold, `MailNotSent` and `MailInDoubt`. Killed in it, at most one mail is out.
    """

    @recoverable(
        policy or reconcile(),
        reconciler=mail_reconciler(account),
        output=RESULT,
        never_began=(MailNotSent,),
        may_have_begun=(MailInDoubt,),
    )
    def send_mail(
        to: str, subject: str, body: str, cc: str | None = None, bcc: str | None = None
    ) -> Sent:
        """Send one mail as plain text.

        Args:
            to: Addresses of the form name@domain, with commas between them.
            subject: The subject, one line.
            body: The text.
            cc: Further addresses that everybody sees.
            bcc: Further addresses that nobody sees.
        """
        mail = letter(account.sender, to, subject, body, cc, bcc)
        return _send(account, mail, key() or secrets.token_hex(32))

    setattr(send_mail, ACCOUNT_FIELD, account.identity)
    return send_mail


def _send(account: MailAccount, mail: Letter, key: str) -> Sent:
    raw = b""

    def wire(refused: frozenset[int]) -> bytes:
        nonlocal raw
        envelope = seal(refused, account.identity, key)
        raw = mail.wire(_id_for(account, key), envelope, datetime.now(timezone.utc))
        return raw

    refused = deliver(account, mail, wire)
    note = ""
    if account.filing is Filing.CLIENT:
        note = "sent, but no copy could be filed"
        with suppress(Exception):  # the mail is out, whatever becomes of its copy
            ImapSession(account, account.timeout).file(raw)
            note = ""
    return _result(account, mail, key, refused, note)


def _id_for(account: MailAccount, key: str) -> str:
    return message_id(account.identity, key, account.sender.rpartition("@")[2])


def _result(
    account: MailAccount, mail: Letter, key: str, refused: frozenset[int] | None, note: str = ""
) -> Sent:
    """Return what the tool returns; `refused` is None when a copy does not tell."""
    sent_to: list[str] = []
    not_to: list[str] = []
    for at, address in enumerate(mail.recipients if refused is not None else ()):
        (not_to if at in (refused or ()) else sent_to).append(address)
    if refused is None:
        note = "sent; which recipients the server accepted is not known"
    named = _id_for(account, key)
    return {"message_id": named, "sent_to": sent_to, "refused": not_to, "note": note}


def mail_reconciler(
    account: MailAccount, *, timeout: float = 20.0, clock: Clock = now
) -> Reconciler:
    """Return the reconciler of an account's mail tool: it looks for the copy, and sends nothing.

    Args:
        timeout: seconds for one look.
        clock: tells how long ago the dispatch was.

    Returns:
        a reconciler that raises when the server cannot be asked, which is no verdict.
    """

    async def look(probe: Probe) -> Verdict:
        session = ImapSession(account, timeout)
        try:
            return await asyncio.to_thread(_verdict, session, probe, clock)
        finally:
            session.cut()

    return Reconciler(
        look, name=f"IMAP {account.imap.host}", settle=account.settle, timeout=timeout
    )


def _verdict(session: ImapSession, probe: Probe, clock: Clock) -> Verdict:
    account, key, given = session.account, probe.idempotency_key, probe.arguments
    mail = letter(
        account.sender, given["to"], given["subject"], given["body"],
        given.get("cc"), given.get("bcc"),
    )  # fmt: skip
    since = clock() - probe.dispatched_at
    envelope = session.copy_of(_id_for(account, key))
    if envelope is not None:
        refused = unseal(envelope, account.identity, key, mail.recipients)
        return happened(_result(account, mail, key, refused), "a copy of the mail is there")
    if account.filing is Filing.CLIENT:
        return cannot_tell("no copy of the mail is there; it may have been sent all the same")
    if not 0 <= since < ABSENCE_HOLDS:
        return cannot_tell("no copy of the mail is there; it may have been cleared away")
    return did_not_happen("no copy of the mail is there")
