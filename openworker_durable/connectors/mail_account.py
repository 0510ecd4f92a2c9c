"""A mail account, as the mail tool and its reconciler need it, and what a send can end in.

Nothing here does I/O. The password is asked for when a connection is made and kept nowhere: it is
in no representation, message, exception or record.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ..errors import DurableError
from .mail_message import checked_address


class MailNotSent(DurableError):
    """The mail was provably not sent: the end of its text never left, or the server refused it."""


class MailInDoubt(DurableError):
    """The end of the mail's text was handed over and no reply came: it may have been sent."""


class Security(str, Enum):
    """How a connection is protected; certificates are checked wherever there is TLS."""

    TLS = "tls"
    """TLS from the first byte on (SMTP 465, IMAP 993)."""
    STARTTLS = "starttls"
    """Plain first, TLS before anything is said (SMTP 587, IMAP 143)."""
    NONE = "none"
    """No TLS; only to this machine."""


class Filing(str, Enum):
    """Who puts the copy of a sent mail into a folder."""

    SERVER = "server"
    """The server that accepts a mail files a copy, for every mail that it accepts."""
    CLIENT = "client"
    """The tool puts a copy there by IMAP, after the mail was accepted."""


@dataclass(frozen=True)
class MailServer:
    """Where one of an account's servers is.

    Args:
        host, port: its address; the host's name is checked against its certificate.
        security: see `Security`.

    Raises:
        ValueError: no TLS, and the host is not this machine.
    """

    host: str
    port: int
    security: Security = Security.TLS

    def __post_init__(self) -> None:
        if self.security is Security.NONE and not _this_machine(self.host):
            raise ValueError(f"{self.host}: a connection without TLS goes to this machine only")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _this_machine(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


@dataclass(frozen=True, kw_only=True)
class MailAccount:
    """An account that mail is sent from and looked up in.

    Args:
        sender: the address that mail comes from.
        user: the name to log in with, at both servers.
        password: called when a connection is made; returns the password.
        smtp: the server that takes mail.
        imap: the server that holds the folders.
        folders: folders in which a copy of a sent mail is looked for, as people see their names.
            All that a copy may be moved to should be among them ("All mail" where there is one).
            Under `Filing.CLIENT` copies are put into the first.
        filing: who files the copy; see `Filing`. Only under `SERVER` can a look show that a
            mail was not sent.
        settle: seconds after the end of an attempt from which on "no copy" proves that the mail
            was not sent. They have to cover the slowest acceptance that the server goes on with
            after the connection was lost, and the filing. None: it never proves that; leave it
            so where the server may give mail another Message-ID or leaves copies out.
        timeout: seconds that the servers have for one step of a call.
        trust: which certificates count; None: those that this machine trusts.

    Raises:
        ValueError: the parts contradict each other, or the sender is no address.
    """

    sender: str
    user: str
    password: Callable[[], str] = field(repr=False)
    smtp: MailServer
    imap: MailServer
    folders: tuple[str, ...] = ("Sent",)
    filing: Filing = Filing.SERVER
    settle: float | None = None
    timeout: float = 60.0
    trust: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sender", checked_address(self.sender))
        if not self.folders:
            raise ValueError("name at least one folder to look in")
        if not self.timeout > 0:
            raise ValueError("a timeout is a number of seconds above 0")
        if self.settle is not None and not self.settle > 0:
            raise ValueError(
                "`settle` is a number of seconds above 0; leave it out if none is known"
            )
        if self.settle is not None and self.filing is Filing.CLIENT:
            raise ValueError("`settle` needs a server that files the copies; leave it out")

    @property
    def identity(self) -> str:
        """Return who this account is: another one, or one looked up elsewhere, differs.

        A "no copy" counts only where the copy would be. So everything that says where that is
        belongs to the identity, and recovery by machine stops when it was changed.
        """
        parts = (
            self.sender, self.user, str(self.smtp), str(self.imap), self.filing.value,
            str(self.settle), *self.folders,
        )  # fmt: skip
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.sender} by {self.smtp.host} {digest[:12]}"

    def tls(self) -> ssl.SSLContext:
        """Return what checks the servers' certificates."""
        return self.trust or ssl.create_default_context()
