"""A mail as it goes over the wire, with a Message-ID of ours that names its execution.

The id is a digest of the account and the idempotency key, the same in every attempt: whoever knows
both can look for the mail, and nobody can read either from it. A second header, which only the
holder of the key can read, says which recipients the server refused, so that a copy that is found
later tells the whole result. Addresses and subject that would add a header are refused. Pure.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import format_datetime

ENVELOPE_HEADER = "X-Openworker-Envelope"
"""The header that says, under the key, which recipients were refused."""

MOST_RECIPIENTS = 100
"""Every server takes as many (RFC 5321, 4.5.3.1.8)."""

_LONGEST_LINE = 900
_LOCAL = re.compile(r"[^\s\"(),:;<>@\[\\\]]{1,64}\Z")
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_BREAKS = frozenset({"Cc", "Cs", "Zl", "Zp"})


def checked_address(text: str) -> str:
    """Return a plain address, its domain in ASCII.

    Raises:
        ValueError: it is not of the form `name@domain`.
    """
    local, at, domain = text.strip(" ").rpartition("@")
    if not at or not _LOCAL.match(local) or _has(text, _INVISIBLE):
        raise ValueError(f"{text[:100]!r} is no address of the form name@domain")
    try:
        domain = domain if domain.isascii() else domain.encode("idna").decode("ascii")
    except UnicodeError:
        domain = ""
    if not _DOMAIN.match(domain) or ".." in domain:
        raise ValueError(f"{text[:100]!r}: its domain is not valid")
    return f"{local}@{domain}"


def addresses(text: str | None) -> tuple[str, ...]:
    """Return the addresses of a comma-separated list, each once.

    Raises:
        ValueError: one of them is not of the form `name@domain`.
    """
    parts = (text or "").split(",")
    return tuple(dict.fromkeys(checked_address(part) for part in parts if part.strip()))


def _checked_text(given: object) -> None:
    if not isinstance(given, str):
        raise ValueError("write addresses (with commas between them), subject and body as text")


def _has(text: str, categories: frozenset[str]) -> bool:
    return any(unicodedata.category(c) in categories for c in text)


@dataclass(frozen=True)
class Letter:
    """One mail, checked; made by `letter`."""

    sender: str
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    subject: str
    body: str

    @property
    def recipients(self) -> tuple[str, ...]:
        """Return all whom the mail goes to, each once, in order."""
        return tuple(dict.fromkeys((*self.to, *self.cc, *self.bcc)))

    @property
    def international(self) -> bool:
        """Say whether an address needs a server that takes more than ASCII."""
        return not all(a.isascii() for a in (self.sender, *self.recipients))

    def wire(self, message_id: str, envelope: str, date: datetime) -> bytes:
        """Return the mail as sent, but for its end: lines end in CRLF; `bcc` is not in it.

        Args:
            message_id: with its angle brackets.
            envelope: see `seal`.
            date: with its time zone.
        """
        rules = policy.SMTP.clone(
            cte_type="7bit", utf8=self.international, max_line_length=_LONGEST_LINE
        )
        made = EmailMessage(policy=rules)
        made["From"] = self.sender
        for name, among in (("To", self.to), ("Cc", self.cc)):
            if among:
                made[name] = ", ".join(among)
        made["Subject"] = self.subject
        made["Date"] = format_datetime(date)
        made["Message-ID"] = message_id
        made[ENVELOPE_HEADER] = envelope
        made.set_content(self.body, charset="utf-8")
        return made.as_bytes()


def letter(
    sender: str, to: str, subject: str, body: str, cc: str | None = None, bcc: str | None = None
) -> Letter:
    """Return a mail, checked.

    Args:
        to, cc, bcc: comma-separated addresses.

    Raises:
        ValueError: no recipient or too many, an address that is none, a subject of more than
            one line, or text that no mail can hold.
    """
    for given in (to, subject, body, cc or "", bcc or ""):
        _checked_text(given)
    if _has(subject, _BREAKS):
        raise ValueError("a subject is one line, without control characters")
    if "\0" in body or any(unicodedata.category(c) == "Cs" for c in body):
        raise ValueError("the body holds characters that no mail can hold")
    made = Letter(sender, addresses(to), addresses(cc), addresses(bcc), subject, body)
    if not 1 <= len(made.recipients) <= MOST_RECIPIENTS:
        raise ValueError(f"a mail has between 1 and {MOST_RECIPIENTS} recipients")
    return made


def message_id(account: str, key: str, domain: str) -> str:
    """Return the Message-ID of an execution's mail, with its angle brackets.

    Args:
        account: the account's identity.
        key: the idempotency key.
        domain: ASCII.
    """
    return f"<owd-{_digest('message-id', account, key)[:40]}@{domain}>"


def seal(refused: Iterable[int], account: str, key: str) -> str:
    """Return what `unseal` reads with the same account and key, and nobody without.

    Args:
        refused: positions, from 0, of the recipients that the server refused.
    """
    mask = sum(1 << at for at in set(refused))
    return f"{mask ^ _pad(account, key):032x}"


def unseal(text: str, account: str, key: str, recipients: Collection[str]) -> frozenset[int] | None:
    """Return the positions that `seal` was given; None when the text is no such thing."""
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        return None
    mask = int(text, 16) ^ _pad(account, key)
    if mask >> len(recipients):
        return None
    return frozenset(at for at in range(len(recipients)) if mask >> at & 1)


def _pad(account: str, key: str) -> int:
    return int(_digest("envelope", account, key)[:32], 16)


def _digest(use: str, account: str, key: str) -> str:
    text = "\0".join(("openworker-durable mail 1", use, account, key))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def headers(raw: bytes) -> tuple[str, str]:
    """Return (Message-ID, envelope header) of a mail's head; empty where one is missing."""
    head = message_from_bytes(raw)
    return str(head.get("Message-ID", "")).strip(), str(head.get(ENVELOPE_HEADER, "")).strip()
