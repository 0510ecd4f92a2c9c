"""Sending: what reaches the server, and what each failure proves. Effects count at the server."""

from __future__ import annotations

import base64
import inspect
import smtplib
from dataclasses import replace
from typing import Any

import pytest

from openworker_durable.connectors.mail import (
    ACCOUNT_FIELD,
    RESULT,
    Filing,
    MailAccount,
    MailInDoubt,
    MailNotSent,
    MailServer,
    Security,
    mail_tool,
)
from openworker_durable.declare import DECLARED_FIELD
from openworker_durable.policy import PolicyKind
from tests.mail_service.service import PASSWORD, Service, text_of

CALL = {"to": "bob@example.org", "subject": "Hello", "body": "How are you?"}


def test_a_mail_is_sent_once_and_the_server_files_it(service: Service) -> None:
    result = mail_tool(service.account())(**CALL)
    (mail,) = service.accepted()
    assert (mail["To"], mail["Subject"], mail["From"]) == (*list(CALL.values())[:2], mail["From"])
    assert text_of(mail) == "How are you?\n"
    assert mail["Message-ID"] == result["message_id"]
    assert service.filed()[0]["Message-ID"] == result["message_id"]
    assert (result["sent_to"], result["refused"], result["note"]) == (["bob@example.org"], [], "")
    assert list(result) == RESULT["required"]


def test_outside_a_protected_call_every_mail_has_an_id_of_its_own(service: Service) -> None:
    send = mail_tool(service.account())
    assert send(**CALL)["message_id"] != send(**CALL)["message_id"]


def test_subject_body_and_addresses_may_be_of_any_language(service: Service) -> None:
    mail_tool(service.account())(
        "jörg@müller.example", "Grüße aus 台北 👩‍🚀", "Schöne Grüße\n台北\n" + "ü" * 5000
    )
    (mail,) = service.accepted()
    assert service.envelopes() == [["jörg@xn--mller-kva.example"]]
    assert text_of(mail) == "Schöne Grüße\n台北\n" + "ü" * 5000 + "\n"
    raw = base64.b64decode(service.tell()["accepted"][0]["raw"])
    assert "Grüße aus 台北 👩‍🚀".encode() in raw
    assert "jörg@xn--mller-kva.example".encode() in raw


def test_an_ascii_mail_with_a_subject_of_any_language_needs_no_more_than_ascii(
    service: Service,
) -> None:
    mail_tool(service.account())("bob@example.org", "Grüße aus 台北", "ü")
    (mail,) = service.accepted()
    assert mail["Subject"] == "Grüße aus 台北"
    assert mail.as_bytes().isascii()


@pytest.mark.parametrize("end", ["\n.\n", "\r\n.\r\n", "\r.\r", "\n.\r", "\r\n.\n", "\r.\n"])
def test_no_body_ends_a_mail_and_begins_another(service: Service, end: str) -> None:
    more = "MAIL FROM:<eve@example.org>\r\nRCPT TO:<eve@example.org>\r\nDATA\r\nhi"
    mail_tool(service.account())("bob@example.org", "A", f".one{end}{more}{end}two")
    (mail,) = service.accepted()
    assert text_of(mail).startswith(".one\n.\n")
    assert text_of(mail).endswith("two\n")


def test_everybody_gets_the_mail_and_nobody_sees_bcc(service: Service) -> None:
    mail_tool(service.account())(**CALL, cc="carl@example.org", bcc="eve@example.org")
    assert service.envelopes() == [["bob@example.org", "carl@example.org", "eve@example.org"]]
    assert "eve@" not in service.accepted()[0].as_string()


def test_a_mail_that_reached_some_says_whom_it_did_not_reach(service: Service) -> None:
    service.behave(refused=["no@example.org"])
    result = mail_tool(service.account())("no@example.org, bob@example.org", "A", "hi")
    assert service.envelopes() == [["bob@example.org"]]
    assert (result["sent_to"], result["refused"]) == (["bob@example.org"], ["no@example.org"])


@pytest.mark.parametrize(
    "bad",
    [
        {"subject": "A\r\nBcc: eve@example.org"}, {"to": "bob@example.org\nBcc: eve@example.org"},
        {"cc": "x\r\ny@example.org"}, {"bcc": "<>"}, {"to": ""}, {"body": "\ud800"},
    ],
)  # fmt: skip
def test_what_would_add_a_header_is_refused_before_the_server_is_asked(
    service: Service, bad: dict[str, Any]
) -> None:
    dead = service.account(smtp=_nobody())
    with pytest.raises(ValueError):
        mail_tool(dead)(**{**CALL, **bad})


def _nobody() -> MailServer:
    return MailServer("127.0.0.1", 9, Security.NONE)


# -- provably not sent
@pytest.mark.parametrize(
    "ways",
    [
        {"data": "refuse"}, {"data": "busy"}, {"refused": ["bob@example.org"]},
    ],
)  # fmt: skip
def test_c29_what_the_server_refuses_was_not_sent(service: Service, ways: dict[str, Any]) -> None:
    service.behave(**ways)
    with pytest.raises(MailNotSent):
        mail_tool(service.account())(**CALL)
    assert service.accepted() == []


def test_a_connection_that_ends_inside_the_text_proves_that_nothing_was_sent(
    service: Service,
) -> None:
    service.behave(data="cut")
    with pytest.raises(MailNotSent):
        mail_tool(service.account())("bob@example.org", "A", "long lines of text\n" * 500_000)
    assert service.accepted() == []


def test_c29_a_server_that_cannot_be_reached_got_nothing(service: Service) -> None:
    with pytest.raises(MailNotSent, match="ConnectionRefusedError"):
        mail_tool(service.account(smtp=_nobody()))(**CALL)


@pytest.mark.parametrize("password", ["wrong", "wröng"])
def test_c24_a_refused_login_sends_nothing_and_does_not_tell_the_password(
    service: Service, password: str
) -> None:
    with pytest.raises(MailNotSent) as found:
        mail_tool(service.account(password=lambda: password))(**CALL)
    assert password not in _all_words(found.value)
    assert service.accepted() == []


def test_c24_a_password_that_cannot_be_had_is_not_told(service: Service) -> None:
    def password() -> str:
        raise RuntimeError(f"keyring said {PASSWORD}")

    with pytest.raises(MailNotSent) as found:
        mail_tool(service.account(password=password))(**CALL)
    assert PASSWORD not in _all_words(found.value)
    assert found.value.__context__ is None


def _all_words(exc: BaseException | None) -> str:
    words = ""
    while exc is not None:
        words += f"{exc!r} {exc} {vars(exc)} "
        exc = exc.__cause__ or exc.__context__
    return words


def test_c24_an_account_does_not_tell_its_password(service: Service) -> None:
    account = service.account()
    assert PASSWORD not in repr(account) + account.identity
    result = mail_tool(account)(**CALL)
    assert PASSWORD not in str(result) + service.accepted()[0].as_string()


def test_a_server_that_takes_ascii_only_is_not_given_more(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smtplib.SMTP, "has_extn", lambda self, name: name != "smtputf8")
    with pytest.raises(MailNotSent, match="ASCII"):
        mail_tool(service.account())("jörg@example.org", "A", "hi")
    assert service.accepted() == []


# -- in doubt
@pytest.mark.parametrize("data", ["drop", "silent", "closing"])
def test_c04_no_reply_after_the_end_of_the_text_leaves_it_open(service: Service, data: str) -> None:
    service.behave(data=data)
    with pytest.raises(MailInDoubt):
        mail_tool(service.account(timeout=0.5))(**CALL)
    assert len(service.accepted()) == (data != "closing")


def test_an_error_while_the_end_of_the_text_is_handed_over_leaves_it_open(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = smtplib.SMTP.send

    def send(smtp: smtplib.SMTP, data: bytes | str) -> None:
        real(smtp, data)
        if isinstance(data, bytes) and data.endswith(b".\r\n"):
            smtp.getreply()  # all of it arrived
            raise smtplib.SMTPServerDisconnected("Server not connected")

    monkeypatch.setattr(smtplib.SMTP, "send", send)
    with pytest.raises(MailInDoubt):
        mail_tool(service.account())(**CALL)
    assert len(service.accepted()) == 1


def test_what_is_raised_proves_to_the_guard_what_it_says(service: Service) -> None:
    declared = getattr(mail_tool(service.account()), DECLARED_FIELD)
    assert declared.never_began == (MailNotSent,)
    assert declared.may_have_begun == (MailInDoubt,)
    assert declared.policy.kind is PolicyKind.RECONCILE
    assert declared.reconciler is not None


# -- copies that the tool files
def test_the_tool_files_the_copy_where_the_server_does_not(service: Service) -> None:
    service.behave(filing="never")
    account = service.account(filing=Filing.CLIENT, folders=("Envoyés & Co", "Sent"))
    result = mail_tool(account)(**CALL)
    (copy,) = service.filed("ENVOYÉS & CO")
    assert copy.as_bytes() == service.accepted()[0].as_bytes()
    assert copy["Message-ID"] == result["message_id"]
    assert result["note"] == ""


@pytest.mark.parametrize("imap", ["no_append", "mute"])
def test_a_copy_that_cannot_be_filed_does_not_unsend_the_mail(service: Service, imap: str) -> None:
    service.behave(filing="never", imap=imap)
    result = mail_tool(service.account(filing=Filing.CLIENT, timeout=0.5))(**CALL)
    assert result["note"] == "sent, but no copy could be filed"
    assert result["sent_to"] == ["bob@example.org"]
    assert len(service.accepted()) == 1


def test_nothing_is_filed_that_was_not_accepted(service: Service) -> None:
    service.behave(filing="never", data="refuse")
    with pytest.raises(MailNotSent):
        mail_tool(service.account(filing=Filing.CLIENT))(**CALL)
    assert service.filed() == []
    assert service.asked() == []


# -- TLS
@pytest.mark.parametrize(
    ("port", "security"), [("smtps", Security.TLS), ("smtp", Security.STARTTLS)]
)
def test_certificates_are_checked(service: Service, port: str, security: Security) -> None:
    trusting = service.account(smtp=service.at(port, security))
    mail_tool(trusting)(**CALL)
    assert len(service.accepted()) == 1
    with pytest.raises(MailNotSent, match="SSLCertVerificationError"):
        mail_tool(replace(trusting, trust=None))(**CALL)
    assert len(service.accepted()) == 1


def test_starttls_is_not_gone_without(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    real = smtplib.SMTP.has_extn
    monkeypatch.setattr(smtplib.SMTP, "has_extn", lambda s, n: n != "starttls" and real(s, n))
    with pytest.raises(MailNotSent):
        mail_tool(service.account(smtp=service.at("smtp", Security.STARTTLS)))(**CALL)
    assert service.accepted() == []


# -- the account
def test_an_account_that_contradicts_itself_is_refused(service: Service) -> None:
    for changes in (
        {"settle": 5.0, "filing": Filing.CLIENT}, {"settle": 0.0}, {"folders": ()},
        {"timeout": 0.0}, {"sender": "ann"}, {"sender": "ann@example.org\r\nX: y"},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            service.account(**changes)
    with pytest.raises(ValueError):
        MailServer("mail.example.org", 25, Security.NONE)


def test_whatever_says_where_the_copy_is_belongs_to_the_tools_identity(service: Service) -> None:
    account = service.account(settle=5.0)
    elsewhere = MailServer("localhost", 1, Security.NONE)
    for changes in (
        {"imap": elsewhere}, {"smtp": elsewhere}, {"user": "bob"}, {"folders": ("Sent", "All")},
        {"settle": 6.0}, {"settle": None}, {"sender": "bob@example.org"},
        {"settle": None, "filing": Filing.CLIENT},
    ):  # fmt: skip
        other = replace(account, **changes)
        assert other.identity != account.identity, changes
    assert getattr(mail_tool(account), ACCOUNT_FIELD) == account.identity
    assert replace(account, password=lambda: "new").identity == account.identity


def test_the_tool_shows_hosts_plain_types_and_no_key() -> None:
    here = MailServer("localhost", 1, Security.NONE)
    account = MailAccount(
        sender="ann@example.org", user="ann", password=lambda: "", smtp=here, imap=here
    )
    shown = inspect.signature(mail_tool(account)).parameters
    assert {name: p.annotation for name, p in shown.items()} == {
        "to": str, "subject": str, "body": str, "cc": str | None, "bcc": str | None,
    }  # fmt: skip
