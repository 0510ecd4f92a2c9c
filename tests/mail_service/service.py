"""Starts the mail service of `server.py` for the tests, and asks it what it saw."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import trustme

from openworker_durable.connectors.mail import MailAccount, MailServer, Security

USER, PASSWORD = "ann", "pässwort"


class Service:
    """A running mail service, as the tests see it from outside."""

    def __init__(self, ports: dict[str, int], trust: ssl.SSLContext) -> None:
        self.ports = ports
        self.trust = trust

    def account(self, **changes: Any) -> MailAccount:
        """Return an account on this service, without TLS unless told otherwise."""
        given = {
            "sender": "ann@example.org", "user": USER, "password": lambda: PASSWORD,
            "smtp": self.at("smtp"), "imap": self.at("imap"), "timeout": 10.0,
            "trust": self.trust,
        }  # fmt: skip
        return MailAccount(**{**given, **changes})

    def at(self, port: str, security: Security = Security.NONE) -> MailServer:
        """Return the server on a named port."""
        return MailServer("127.0.0.1", self.ports[port], security)

    def tell(self, **asked: Any) -> dict[str, Any]:
        """Send the service one order; returns what it saw until now."""
        with socket.create_connection(("127.0.0.1", self.ports["control"]), timeout=10) as line:
            line.sendall(json.dumps(asked).encode() + b"\n")
            with line.makefile("rb") as answer:
                seen: dict[str, Any] = json.loads(answer.readline())
        return seen

    def behave(self, **ways: Any) -> None:
        """Change how the service behaves; see `server.World`."""
        self.tell(set=ways)

    def accepted(self) -> list[EmailMessage]:
        """Return the mails that were accepted: the effects."""
        return [_parsed(entry["raw"]) for entry in self.tell()["accepted"]]

    def envelopes(self) -> list[list[str]]:
        """Return whom each accepted mail went to."""
        return [entry["to"] for entry in self.tell()["accepted"]]

    def filed(self, folder: str = "SENT") -> list[EmailMessage]:
        """Return the copies in a folder."""
        return [_parsed(raw) for raw, _ in self.tell()["filed"][folder]]

    def asked(self) -> list[str]:
        """Return the IMAP commands since the last reset."""
        found: list[str] = self.tell()["asked"]
        return found


def text_of(mail: EmailMessage) -> str:
    """Return a mail's text, its lines ending in LF."""
    text: str = mail.get_content()
    return text.replace("\r\n", "\n")


def _parsed(raw: str) -> EmailMessage:
    made = message_from_bytes(base64.b64decode(raw), policy=policy.default)
    assert isinstance(made, EmailMessage)
    return made


@contextmanager
def running(folder: Path) -> Iterator[Service]:
    """Run the service in a process of its own; it is gone when the block ends."""
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1", "localhost")
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(own.cert_chain_pems[0].bytes())
    key.write_bytes(own.private_key_pem.bytes())
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    command = [sys.executable, str(Path(__file__).with_name("server.py")), str(cert), str(key)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            yield Service(json.loads(child.stdout.readline()), trust)
        finally:
            child.kill()
