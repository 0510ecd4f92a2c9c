"""Handing one mail to an SMTP server, with every failure sorted into "not sent" and "in doubt".

A server acts on a mail when it has the line with a single dot that ends its text (RFC 5321,
4.1.1.4), and not before. So the text goes out first, and that line by itself: whatever fails
before it is handed to the network proves that nothing was sent; whatever fails from then on, but
for the server's own refusal, leaves it open. Nothing is sent twice.
"""

from __future__ import annotations

import base64
import re
import smtplib
from collections.abc import Callable
from contextlib import suppress

from .mail_account import MailAccount, MailInDoubt, MailNotSent, Security
from .mail_message import Letter

_CLOSING = 421
"""The code that a server, or what stands in front of it, gives up with at any time."""


def deliver(
    account: MailAccount, mail: Letter, wire: Callable[[frozenset[int]], bytes]
) -> frozenset[int]:
    """Send a mail to all its recipients whom the server accepts.

    Args:
        wire: called with the positions of the refused recipients; returns the mail's bytes.

    Returns:
        the positions, among `mail.recipients`, of those whom the server refused.

    Raises:
        MailNotSent: it was provably not sent.
        MailInDoubt: it may have been sent.
    """
    password = _password(account)
    smtp = None
    try:
        try:
            smtp = _connect(account)
            _log_in(smtp, account.user, password)
            refused = _address(smtp, mail)
            _text(smtp, wire(refused))
        except MailNotSent:
            raise
        except Exception as exc:
            raise MailNotSent(f"the mail was not sent: {_why(exc)}") from exc
        _end(smtp)
        with suppress(Exception):
            smtp.quit()
        return refused
    finally:
        if smtp is not None:
            smtp.close()


def _password(account: MailAccount) -> str:
    try:
        return account.password()
    except Exception as exc:  # its text may hold what it tells nobody
        name = type(exc).__name__
    raise MailNotSent(f"the mail was not sent: no password ({name})")


def _connect(account: MailAccount) -> smtplib.SMTP:
    server = account.smtp
    domain = account.sender.rpartition("@")[2]
    if server.security is Security.TLS:
        return smtplib.SMTP_SSL(
            server.host, server.port, domain, timeout=account.timeout, context=account.tls()
        )
    smtp = smtplib.SMTP(server.host, server.port, domain, timeout=account.timeout)
    try:
        if server.security is Security.STARTTLS:
            smtp.starttls(context=account.tls())
    except BaseException:
        smtp.close()
        raise
    return smtp


def _log_in(smtp: smtplib.SMTP, user: str, password: str) -> None:
    _wanted(smtp.ehlo(), 250)
    if "PLAIN" not in smtp.esmtp_features.get("auth", "").upper().split():
        if not (user + password).isascii():
            raise MailNotSent("the mail was not sent: the server takes ASCII passwords only")
        smtp.login(user, password)
        return
    proof = base64.b64encode(f"\0{user}\0{password}".encode()).decode("ascii")
    code, _ = smtp.docmd("AUTH", f"PLAIN {proof}")
    if code != 235:
        raise MailNotSent(f"the mail was not sent: the login was refused ({code})")


def _address(smtp: smtplib.SMTP, mail: Letter) -> frozenset[int]:
    """Name sender and recipients; return the positions of the refused ones."""
    options = []
    if mail.international:
        if not smtp.has_extn("smtputf8"):
            raise MailNotSent("the mail was not sent: the server takes ASCII addresses only")
        options.append("SMTPUTF8")
        smtp.command_encoding = "utf-8"
    _wanted(smtp.mail(mail.sender, options), 250)
    replies = [smtp.rcpt(address) for address in mail.recipients]
    refused = frozenset(at for at, (code, _) in enumerate(replies) if code not in (250, 251))
    if len(refused) == len(replies):
        raise MailNotSent(f"the mail was not sent: no recipient was accepted ({_said(replies[0])})")
    return refused


def _text(smtp: smtplib.SMTP, raw: bytes) -> None:
    """Send the text, but not the line that ends it."""
    _wanted(smtp.docmd("DATA"), 354)
    smtp.send(re.sub(rb"(?m)^\.", b"..", raw))


def _end(smtp: smtplib.SMTP) -> None:
    """Send the line that ends the text, and hear what the server says."""
    try:
        smtp.send(b".\r\n")
        code, text = smtp.getreply()
    except Exception as exc:
        raise MailInDoubt(f"the mail may have been sent: {_why(exc)}") from exc
    if code == 250:
        return
    if 400 <= code <= 599 and code != _CLOSING:
        raise MailNotSent(f"the mail was not sent: the server refused it ({_said((code, text))})")
    raise MailInDoubt(f"the mail may have been sent: the server said {code}")


def _wanted(reply: tuple[int, bytes], code: int) -> None:
    if reply[0] != code:
        raise MailNotSent(f"the mail was not sent: the server refused it ({_said(reply)})")


def _said(reply: tuple[int, bytes]) -> str:
    text = reply[1].decode("utf-8", "replace")
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"{reply[0]} {line[:120]}".strip()


def _why(exc: BaseException) -> str:
    code = getattr(exc, "smtp_code", None)
    return type(exc).__name__ + (f" {code}" if code is not None else "")
