"""A mail service in a process of its own: aiosmtpd takes mail, Twisted's IMAP server shows folders.

Started as a file with the paths of a certificate and its key. Says its ports as one line of JSON,
ends when its standard input does. A control port takes one JSON object a connection: `set` changes
how it behaves, `do` is `reset`, `seen` (what it accepted, filed and was asked) or `file` (what
was held back). Each accepted mail counts once, whether or not its sender heard of it.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import sys
import threading
import warnings
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from twisted.cred import checkers, portal
from twisted.internet import asyncioreactor, defer
from twisted.internet.protocol import Factory
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.mail import imap4
from zope.interface import implementer

LOOP = asyncio.SelectorEventLoop()
USER, PASSWORD = "ann", "pässwort"
SENT = "SENT"
FOLDERS = ("INBOX", SENT, "ENVOYÉS & CO", "[ALL] MAIL")


@dataclass
class World:
    """What the service holds, and how it behaves.

    Args:
        data: what the end of a mail's text is answered with: `ok`, `refuse`, `busy`, `closing`,
            `drop` (accepted, the connection is dropped), `silent` (accepted, no reply), `cut`
            (dropped while the text comes in).
        refused: recipients that are refused.
        filing: `now`, `later` (when told), `never`.
        folder: where the service files.
        keep_envelope: False: the filed copy lacks our second header.
        imap: `ok`, `mute` (never says a word), `stuck` (silent in SEARCH), `no_append`.
        plain: the SMTP server offers more than ASCII addresses.
    """

    data: str = "ok"
    refused: list[str] = field(default_factory=list)
    filing: str = "now"
    folder: str = SENT
    keep_envelope: bool = True
    imap: str = "ok"
    accepted: list[dict[str, Any]] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    flags: dict[str, list[str]] = field(default_factory=dict)

    def accept(self, envelope: Envelope) -> None:
        raw = envelope.content
        assert isinstance(raw, bytes)
        entry = {"from": envelope.mail_from, "to": list(envelope.rcpt_tos)}
        self.accepted.append({**entry, "raw": base64.b64encode(raw).decode()})
        if not self.keep_envelope:
            raw = b"\r\n".join(x for x in raw.split(b"\r\n") if not x.startswith(b"X-Openworker"))
        if self.filing == "later":
            self.held.append(raw)
        elif self.filing == "now":
            BOXES[self.folder].messages.append(Message(raw))

    def file_held(self) -> None:
        BOXES[self.folder].messages.extend(map(Message, self.held))
        self.held.clear()

    def seen(self) -> dict[str, Any]:
        filed = {
            name: [[base64.b64encode(m.raw).decode(), m.flags] for m in box.messages]
            for name, box in BOXES.items()
        }
        return {"accepted": self.accepted, "filed": filed, "asked": self.asked}


# -- IMAP
class Head(dict[str, str]):
    """Headers of a mail: Twisted's FETCH takes them as text, its SEARCH as bytes."""

    def get(self, name: Any, default: Any = None) -> Any:
        if isinstance(name, bytes):
            return super().get(name.decode(), "").encode()
        return super().get(name, default)


@implementer(imap4.IMessage)
class Message:
    """A mail in a folder, as Twisted's IMAP server asks for it."""

    def __init__(self, raw: bytes, flags: list[str] | None = None) -> None:
        self.raw = raw
        self.flags = flags or []

    def getHeaders(self, negate: bool, *names: Any) -> Head:
        head = self.raw.split(b"\r\n\r\n", 1)[0].decode().replace("\r\n ", " ")
        there = [line.partition(": ") for line in head.split("\r\n")]
        wanted = {(n.decode() if isinstance(n, bytes) else n).lower() for n in names}
        kept = ((n.lower(), value) for n, _, value in there if (n.lower() in wanted) is not negate)
        return Head(kept)

    def getUID(self) -> int:
        return 1

    def getFlags(self) -> list[str]:
        return self.flags

    def getInternalDate(self) -> str:
        return "Mon, 01 Jan 2024 00:00:00 +0000"

    def getBodyFile(self) -> BytesIO:
        return BytesIO(self.raw.split(b"\r\n\r\n", 1)[1])

    def getSize(self) -> int:
        return len(self.raw)

    def isMultipart(self) -> bool:
        return False


@implementer(imap4.IMailbox)
class Box:
    """One folder."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def getFlags(self) -> list[str]:
        return [r"\Seen"]

    def getHierarchicalDelimiter(self) -> str:
        return "/"

    def getUIDValidity(self) -> int:
        return 1

    def getUIDNext(self) -> int:
        return len(self.messages) + 1

    def getMessageCount(self) -> int:
        return len(self.messages)

    def getRecentCount(self) -> int:
        return 0

    def isWriteable(self) -> bool:
        return True

    def addListener(self, listener: Any) -> None: ...

    def removeListener(self, listener: Any) -> None: ...

    def addMessage(self, body: Any, flags: Any = (), date: Any = None) -> Any:
        if WORLD.imap == "no_append":
            return defer.fail(imap4.MailboxException("over quota"))
        self.messages.append(Message(body.read(), [str(flag) for flag in flags]))
        return defer.succeed(len(self.messages))

    def fetch(self, messages: Any, uid: bool) -> list[tuple[int, Message]]:
        messages.last = len(self.messages)
        return [(n, self.messages[n - 1]) for n in messages if 1 <= n <= len(self.messages)]

    def store(self, messages: Any, flags: Any, mode: int, uid: bool) -> dict[int, Any]:
        for number, message in self.fetch(messages, uid):
            message.flags.extend(flags)
            WORLD.asked.append(f"flags of {number} changed")
        return {}


class Imap(imap4.IMAP4Server):
    """Twisted's server, noting what it is asked."""

    def connectionMade(self) -> None:
        if WORLD.imap != "mute":
            super().connectionMade()

    def connectionLost(self, reason: Any = None) -> None:
        if self.tags is not None:
            super().connectionLost(reason)

    def dispatchCommand(self, tag: bytes, cmd: bytes, rest: Any, uid: Any = None) -> Any:
        marks = cmd == b"FETCH" and b"PEEK" not in rest
        WORLD.asked.append(cmd.decode() + (" that marks as read" if marks else ""))
        if WORLD.imap == "stuck" and cmd == b"SEARCH":
            return None
        return super().dispatchCommand(tag, cmd, rest, uid)


class Realm:
    def requestAvatar(self, avatar: Any, mind: Any, *interfaces: Any) -> Any:
        account = imap4.MemoryAccount(avatar)
        account.mailboxes = BOXES
        return imap4.IAccount, account, lambda: None


class ImapFactory(Factory):
    def __init__(self, tls: Any) -> None:
        self.tls = tls
        known = checkers.InMemoryUsernamePasswordDatabaseDontUse()
        known.addUser(USER.encode(), PASSWORD.encode())
        self.portal = portal.Portal(Realm(), [known])

    def buildProtocol(self, addr: Any) -> Any:
        made = Imap({b"PLAIN": imap4.PLAINCredentials}, contextFactory=self.tls)
        made.portal = self.portal
        made.factory = self
        return made


# -- SMTP
class Handler:
    """What aiosmtpd asks about each mail."""

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in WORLD.refused:
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        said = {
            "refuse": "554 5.7.1 refused as spam", "busy": "451 4.3.0 try later",
            "closing": "421 4.3.2 shutting down",
        }.get(WORLD.data)  # fmt: skip
        if said:
            return said
        WORLD.accept(envelope)
        if WORLD.data == "drop":
            server.transport.abort()
        if WORLD.data == "silent":
            await asyncio.Event().wait()
        return "250 OK"


class Smtp(SMTP):
    async def smtp_DATA(self, arg: str) -> None:
        if WORLD.data == "cut":
            await self.push("354 go on")
            assert self.transport is not None
            self.transport.abort()
            return
        await super().smtp_DATA(arg)


def _checked(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    right = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=right, handled=False)


def _smtp(tls: ssl.SSLContext | None = None) -> Smtp:
    return Smtp(
        Handler(), enable_SMTPUTF8=True, authenticator=_checked, auth_required=True,
        auth_require_tls=False, tls_context=tls, hostname="localhost", loop=LOOP,
        data_size_limit=None,
    )  # fmt: skip


# -- the whole
WORLD = World()
BOXES: dict[str, Box] = {name: Box() for name in FOLDERS}


async def _control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    asked = json.loads(await reader.readline())
    if asked.get("do") == "reset":
        vars(WORLD).update(vars(World()))
        for box in BOXES.values():
            box.messages.clear()
    if asked.get("do") == "file":
        WORLD.file_held()
    for name, value in asked.get("set", {}).items():
        assert hasattr(WORLD, name)
        setattr(WORLD, name, value)
    writer.write(json.dumps(WORLD.seen()).encode() + b"\n")
    await writer.drain()
    writer.close()


async def _serve(reactor: Any, cert: str, key: str) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    made = {
        "smtp": await LOOP.create_server(lambda: _smtp(tls), "127.0.0.1", 0),
        "smtps": await LOOP.create_server(_smtp, "127.0.0.1", 0, ssl=tls),
        "control": await asyncio.start_server(_control, "127.0.0.1", 0, limit=2**26),
    }
    ports = {name: server.sockets[0].getsockname()[1] for name, server in made.items()}
    imap_tls = DefaultOpenSSLContextFactory(key, cert)
    factory = ImapFactory(imap_tls)
    here = "127.0.0.1"
    ports["imap"] = reactor.listenTCP(0, factory, interface=here).getHost().port
    ports["imaps"] = reactor.listenSSL(0, factory, imap_tls, interface=here).getHost().port
    print(json.dumps(ports), flush=True)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve until standard input ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore", UserWarning)  # logging in without TLS, on loopback
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    cert, key = (str(Path(path)) for path in sys.argv[1:3])
    asyncio.set_event_loop(LOOP)
    asyncioreactor.install(LOOP)
    from twisted.internet import reactor as installed

    reactor: Any = installed
    tasks: list[Any] = []
    reactor.callWhenRunning(lambda: tasks.append(LOOP.create_task(_serve(reactor, cert, key))))
    reactor.run(installSignalHandlers=False)


if __name__ == "__main__":
    main()
