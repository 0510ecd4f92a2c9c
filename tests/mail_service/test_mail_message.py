"""The mail itself: its id, its second header, and what is refused before anything is sent."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.connectors.mail_imap import folder_name, quoted
from openworker_durable.connectors.mail_message import (
    ENVELOPE_HEADER,
    MOST_RECIPIENTS,
    addresses,
    letter,
    message_id,
    seal,
    unseal,
)
from tests.mail_service.service import text_of

WHEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)


def wire(body: str = "hi", subject: str = "A", named: str = "<a@b.example>", **more: str) -> bytes:
    mail = letter("ann@example.org", more.pop("to", "bob@example.org"), subject, body, **more)
    return mail.wire(named, "0" * 32, WHEN)


def test_the_message_id_names_the_account_and_the_execution_and_tells_neither() -> None:
    one = message_id("account", "key", "example.org")
    assert one == message_id("account", "key", "example.org")
    assert one != message_id("account", "other", "example.org")
    assert one != message_id("other", "key", "example.org")
    assert message_id("a", "bc", "x.example") != message_id("ab", "c", "x.example")
    assert re.fullmatch(r"<owd-[0-9a-f]{40}@example\.org>", one)


def test_a_long_message_id_stays_on_one_line() -> None:
    named = message_id("account", "key", f"{'long.' * 20}example")
    assert b"\r\nMessage-ID: " + named.encode() + b"\r\n" in wire(named=named)


@pytest.mark.parametrize(
    "text",
    [
        "", "bob", "@example.org", "bob@", "bob@exa mple.org", "bob@example..org", "bob@-x.org",
        "bob@example.org\n", "bob@example.org\r\nBcc: eve@example.org", "bob\n@example.org",
        "Bob <bob@example.org>", "bob@example.org> SIZE=1", "a@b@c.example", "b\u2028b@example.org",
        "b\u200bb@example.org", "b\x85b@example.org", "b\ud800b@example.org",
        f"{'x' * 65}@example.org", "bob@" + "x" * 64 + "ü.example",
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["to", "cc", "bcc"])
def test_what_is_no_plain_address_is_refused(text: str, where: str) -> None:
    given = {"to": "zoe@example.org", where: f"{text},"}
    if not text and where != "to":
        assert letter("ann@example.org", subject="A", body="", **given).recipients
        return
    with pytest.raises(ValueError):
        letter("ann@example.org", subject="A", body="", **given)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\0", "\x0b", "\x85", "\u2028", "\ud800"])
def test_a_subject_cannot_add_a_header(end: str) -> None:
    with pytest.raises(ValueError):
        letter("ann@example.org", "bob@example.org", f"A{end}Bcc: eve@example.org", "hi")


def test_a_body_that_no_mail_can_hold_is_an_error_of_the_arguments() -> None:
    for body in ("a\0b", "a\ud800b"):
        with pytest.raises(ValueError) as found:
            letter("ann@example.org", "bob@example.org", "A", body)
        assert type(found.value) is ValueError  # a UnicodeError would count as doubt


def test_what_is_no_text_and_too_many_recipients_are_refused() -> None:
    with pytest.raises(ValueError):
        letter("ann@example.org", ["bob@example.org"], "A", "hi")  # type: ignore[arg-type]  # as a model may
    many = ",".join(f"u{n}@example.org" for n in range(MOST_RECIPIENTS + 1))
    with pytest.raises(ValueError):
        letter("ann@example.org", many, "A", "hi")


def test_addresses_are_taken_once_with_their_domain_in_ascii() -> None:
    found = addresses("bob@example.org, jörg@müller.example,bob@example.org")
    assert found == ("bob@example.org", "jörg@xn--mller-kva.example")


def test_bcc_is_no_header() -> None:
    raw = wire(cc="carl@example.org", bcc="eve@example.org")
    assert b"carl@example.org" in raw
    assert b"eve@" not in raw


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_every_line_of_a_mail_ends_alike_and_the_text_comes_back(body: str) -> None:
    raw = wire(body)
    assert raw.endswith(b"\r\n")
    assert not re.search(rb"(?<!\r)\n|\r(?!\n)", raw)
    there = message_from_bytes(raw, policy=policy.default)
    assert isinstance(there, EmailMessage)
    assert text_of(there).rstrip("\n") == re.sub("\r\n|\r", "\n", body).rstrip("\n")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=300))
def test_no_subject_adds_or_hides_a_header(subject: str) -> None:
    there = message_from_bytes(wire(subject=subject), policy=policy.default)
    assert there.keys() == [
        "From", "To", "Subject", "Date", "Message-ID", ENVELOPE_HEADER, "Content-Type",
        "Content-Transfer-Encoding", "MIME-Version",
    ]  # fmt: skip
    assert there["Message-ID"] == "<a@b.example>"


@given(st.sets(st.integers(0, MOST_RECIPIENTS - 1)), st.text(max_size=9))
def test_only_the_key_reads_which_recipients_were_refused(refused: set[int], key: str) -> None:
    among = [str(n) for n in range(MOST_RECIPIENTS)]
    sealed = seal(refused, "account", key)
    assert unseal(sealed, "account", key, among) == frozenset(refused)
    assert unseal(sealed, "account", f"{key}!", among) is None
    assert unseal(sealed, "other", key, among) is None


def test_a_damaged_envelope_header_is_not_read() -> None:
    for text in ("", "zz", "0" * 32, seal([3], "account", "key")):
        assert unseal(text, "account", "key", ["a", "b", "c"]) is None


def test_folders_are_named_as_imap_writes_them() -> None:
    assert folder_name("Sent") == "Sent"
    assert folder_name("Envoyés & Co") == "Envoy&AOk-s &- Co"
    assert folder_name("台北/日本語") == "&U,BTFw-/&ZeVnLIqe-"  # the example of RFC 3501
    assert quoted('All "Mail" \\') == '"All \\"Mail\\" \\\\"'
