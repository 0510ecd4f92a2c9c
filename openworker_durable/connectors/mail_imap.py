"""Looking for the copy of a mail by IMAP, and filing one; looking changes nothing on the server.

Folders are opened with EXAMINE and headers read with BODY.PEEK, so that not even a flag changes.
What SEARCH names is compared once more, as it matches parts of a header too. Whatever the server
or the network does wrong is raised: it says nothing about the mail.
"""

from __future__ import annotations

import base64
import imaplib
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from .mail_account import MailAccount, Security
from .mail_message import ENVELOPE_HEADER, headers

T = TypeVar("T")

_HEAD = f"(BODY.PEEK[HEADER.FIELDS (MESSAGE-ID {ENVELOPE_HEADER.upper()})])"


@dataclass
class ImapSession:
    """One connection to an account's folders, which ends by itself and can be cut by any thread.

    Args:
        seconds: from now, for all that is asked of it; a server that is silent for longer than
            what is left of them is given up.
    """

    account: MailAccount
    seconds: float
    _end: float = field(init=False)
    _imap: imaplib.IMAP4 | None = field(default=None, init=False, repr=False)
    _cut: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds

    def copy_of(self, message_id: str) -> str | None:
        """Look through the account's folders for a mail with exactly this Message-ID.

        Returns:
            its envelope header, empty when it has none; None when there is no such mail.

        Raises:
            OSError, imaplib.IMAP4.error: a folder could not be looked through.
        """
        with self._open() as imap:
            for folder in self.account.folders:
                found = self._in_folder(imap, folder, message_id)
                if found is not None:
                    return found
        return None

    def file(self, raw: bytes) -> None:
        """Put a copy of a sent mail, marked as read, into the account's first folder.

        Raises:
            OSError, imaplib.IMAP4.error: that failed, or it is not known whether it did.
        """
        with self._open() as imap:
            self._bound(imap)
            folder = quoted(folder_name(self.account.folders[0]))
            _ok(imap.append(folder, r"(\Seen)", "", raw), "APPEND")

    def cut(self) -> None:
        """End the session from another thread: what waits for the server fails at once."""
        self._cut = True
        if self._imap is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._imap.socket(), socket.SHUT_RDWR)

    def _in_folder(self, imap: imaplib.IMAP4, folder: str, message_id: str) -> str | None:
        self._bound(imap)
        _ok(imap.select(quoted(folder_name(folder)), readonly=True), "EXAMINE")
        self._bound(imap)
        named = _ok(imap.search(None, "HEADER", "Message-ID", quoted(message_id)), "SEARCH")
        for number in b" ".join(part for part in named if part).split():
            self._bound(imap)
            for part in _ok(imap.fetch(number.decode("ascii"), _HEAD), "FETCH"):
                if isinstance(part, tuple):
                    there, envelope = headers(part[1])
                    if there == message_id:
                        return envelope
        return None

    @contextmanager
    def _open(self) -> Iterator[imaplib.IMAP4]:
        password = self.account.password()
        imap = self._connect()
        try:
            self._imap = imap
            self._bound(imap)
            if self.account.imap.security is Security.STARTTLS:
                _ok(imap.starttls(ssl_context=self.account.tls()), "STARTTLS")
            _log_in(imap, self.account.user, password)
            yield imap
            with suppress(OSError, imaplib.IMAP4.error):
                self._bound(imap)
                imap.logout()
        finally:
            self._imap = None
            with suppress(OSError):
                imap.shutdown()

    def _connect(self) -> imaplib.IMAP4:
        server, left = self.account.imap, self._left()
        if server.security is Security.TLS:
            return imaplib.IMAP4_SSL(
                server.host, server.port, ssl_context=self.account.tls(), timeout=left
            )
        return imaplib.IMAP4(server.host, server.port, timeout=left)

    def _bound(self, imap: imaplib.IMAP4) -> None:
        """Let what comes next last no longer than what is left of the time."""
        imap.socket().settimeout(self._left())

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if self._cut or left <= 0:
            raise TimeoutError("the time for this look is over")
        return left


def _log_in(imap: imaplib.IMAP4, user: str, password: str) -> None:
    if "AUTH=PLAIN" in imap.capabilities:
        proof = f"\0{user}\0{password}".encode()
        _ok(imap.authenticate("PLAIN", lambda _: proof), "AUTHENTICATE")
    elif password.isascii() and user.isascii():
        _ok(imap.login(user, password), "LOGIN")
    else:
        raise imaplib.IMAP4.error("the server cannot be told this name or password")


def _ok(reply: tuple[str, T], command: str) -> T:
    if reply[0] != "OK":
        raise imaplib.IMAP4.error(f"{command} was refused")
    return reply[1]


def quoted(text: str) -> str:
    """Return a text as a quoted string of IMAP."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def folder_name(name: str) -> str:
    """Return a folder's name as IMAP writes it: modified UTF-7 (RFC 3501, 5.1.3)."""

    def coded(found: re.Match[str]) -> str:
        text = base64.b64encode(found[0].encode("utf-16-be")).decode("ascii")
        return "&" + text.rstrip("=").replace("/", ",") + "-"

    return re.sub(r"[^\x20-\x7e]+", coded, name.replace("&", "&-"))
