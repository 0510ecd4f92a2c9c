"""Looking a mail up: what a copy proves, what its absence proves, and what proves nothing."""

from __future__ import annotations

import asyncio
import imaplib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import (
    Authority,
    AuthorityKind,
    Execution,
    Outcome,
    Reason,
    State,
    record_in,
    rows,
)
from openworker_durable.connectors.mail import (
    ABSENCE_HOLDS,
    Filing,
    MailAccount,
    MailInDoubt,
    MailServer,
    Security,
    mail_reconciler,
    mail_tool,
)
from openworker_durable.connectors.mail_imap import ImapSession
from openworker_durable.guard import Guard, run_protected
from openworker_durable.models import ToolIdentity
from openworker_durable.outcomes import state_of
from openworker_durable.reconciler import (
    NoVerdict,
    Probe,
    Verdict,
    VerdictKind,
    ask,
    weigh,
)
from openworker_durable.snapshot import encode
from tests.mail_service.service import Service
from tests.waiting import until_blocking

CALL = {"to": "bob@example.org, no@example.org", "subject": "Hello", "body": "How are you?"}
READ_ONLY = {"CAPABILITY", "STARTTLS", "AUTHENTICATE", "EXAMINE", "SEARCH", "FETCH", "LOGOUT"}


@dataclass
class Caller:
    """Makes protected calls of the mail tool, as a host would."""

    guard: Guard

    def call(self, account: MailAccount, number: int = 1) -> tuple[Any, Probe]:
        """Return (result or exception, the probe about the call)."""
        intent = self.guard.intent("session", f"call-{number}", "send_mail", CALL)
        handle = self.guard.start(intent, Authority(kind=AuthorityKind.PROMPT))
        try:
            answer: Any = run_protected(
                self.guard, handle, lambda: mail_tool(account)(**CALL), _succeeded, _raised
            )
        except Exception as exc:
            answer = exc
        row = self.row(intent.execution_id)
        return answer, Probe(
            row.execution_id, row.attempt, ToolIdentity(name="send_mail"), CALL,
            dispatched_at=row.dispatched_at, ended_at=row.ended_at or 0.0,
        )  # fmt: skip

    def row(self, execution_id: str) -> Execution:
        found: list[Execution] = self.guard.ledger.fetch(rows.attempts(execution_id))
        return found[-1]


def _succeeded(result: Any) -> Outcome:
    return Outcome(state=State.SUCCEEDED, reason=Reason.RETURNED, snapshot=encode(result))


def _raised(exc: BaseException) -> Outcome:
    state = state_of(exc, external=True, may_have_begun=(MailInDoubt,))
    return Outcome(state=state, reason=Reason.AMBIGUOUS)


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with record_in(tmp_path) as guard:
        yield Caller(guard)


async def look(account: MailAccount, probe: Probe, seconds: float = 10.0) -> Verdict | NoVerdict:
    return await ask(mail_reconciler(account, timeout=seconds), probe)


def kind(answer: Verdict | NoVerdict) -> VerdictKind:
    assert isinstance(answer, Verdict), answer
    return answer.kind


# -- a copy
@pytest.mark.parametrize("refused", [[], ["no@example.org"]])
async def test_c04_a_mail_whose_reply_was_lost_is_found_with_the_result_of_the_call(
    service: Service, caller: Caller, refused: list[str]
) -> None:
    account = service.account()
    service.behave(refused=refused)
    direct, told = caller.call(account, 1)
    service.behave(data="drop")
    lost, probe = caller.call(account, 2)
    assert isinstance(lost, MailInDoubt)
    assert caller.row(probe.execution_id).state is State.UNKNOWN
    before = service.tell()["accepted"]
    assert len(before) == 2

    found = await look(account, probe)
    assert kind(found) is VerdictKind.HAPPENED
    assert isinstance(found, Verdict)
    assert {**found.result, "message_id": ""} == {**direct, "message_id": ""}
    assert found.result["refused"] == refused
    assert found.result["message_id"] == service.accepted()[1]["Message-ID"]
    again = await look(account, told)
    assert isinstance(again, Verdict)
    assert again.result == direct
    assert service.tell()["accepted"] == before


async def test_two_equal_mails_are_two_and_each_finds_its_own(
    service: Service, caller: Caller
) -> None:
    account = service.account(settle=1.0)
    first, probe = caller.call(account, 1)
    service.behave(filing="never", data="drop")
    _, other = caller.call(account, 2)
    one, two = (mail["Message-ID"] for mail in service.accepted())
    assert one != two
    found = await look(account, probe)
    assert isinstance(found, Verdict)
    assert found.result == first
    assert kind(await look(account, other)) is VerdictKind.DID_NOT_HAPPEN


async def test_a_look_changes_nothing(service: Service, caller: Caller) -> None:
    account = service.account(folders=("INBOX", "Sent"))
    _, probe = caller.call(account)
    before = service.tell()
    await look(account, probe)
    await look(account, Probe("other", 1, probe.tool, CALL))
    after = service.tell()
    assert set(after["asked"]) <= READ_ONLY
    assert {**after, "asked": []} == {**before, "asked": []}


@pytest.mark.parametrize("folder", ["ENVOYÉS & CO", "[ALL] MAIL"])
async def test_a_copy_is_found_in_any_folder_of_the_account(
    service: Service, caller: Caller, folder: str
) -> None:
    service.behave(folder=folder)
    account = service.account(folders=("Sent", "INBOX", folder))
    _, probe = caller.call(account)
    assert kind(await look(account, probe)) is VerdictKind.HAPPENED
    narrow = service.account(folders=("Sent", "INBOX"))
    assert kind(await look(narrow, probe)) is VerdictKind.DID_NOT_HAPPEN


async def test_an_id_that_only_contains_ours_is_another_mail(
    service: Service, caller: Caller
) -> None:
    account = service.account(settle=1.0)
    service.behave(filing="never", data="drop")
    _, probe = caller.call(account)
    ours = service.accepted()[0]["Message-ID"]
    mail = f"Message-ID: <x@y>{ours}\r\nSubject: Re\r\n\r\nhi\r\n".encode()
    ImapSession(account, 10).file(mail)
    assert len(service.filed()) == 1
    assert kind(await look(account, probe)) is VerdictKind.DID_NOT_HAPPEN
    assert "FETCH" in service.asked()  # the search did name it


async def test_a_copy_without_our_second_header_does_not_claim_who_got_it(
    service: Service, caller: Caller
) -> None:
    service.behave(keep_envelope=False, data="drop")
    account = service.account()
    _, probe = caller.call(account)
    found = await look(account, probe)
    assert kind(found) is VerdictKind.HAPPENED
    assert isinstance(found, Verdict)
    assert (found.result["sent_to"], found.result["refused"]) == ([], [])
    assert "not known" in found.result["note"]


# -- no copy
async def test_no_copy_is_proof_from_the_settle_time_on_and_not_before(
    service: Service, caller: Caller
) -> None:
    service.behave(data="closing")
    account = service.account(settle=30.0)
    _, probe = caller.call(account)
    reconciler, found = mail_reconciler(account), await look(account, probe)
    assert service.accepted() == []
    early = weigh(found, reconciler, probe, probe.ended_at + 29.999)
    assert early.verdict is VerdictKind.CANNOT_TELL
    assert early.wait == pytest.approx(0.001, abs=1e-4)
    late = weigh(found, reconciler, probe, probe.ended_at + 30.0)
    assert late.verdict is VerdictKind.DID_NOT_HAPPEN


async def test_no_copy_proves_nothing_where_no_settle_time_is_declared(
    service: Service, caller: Caller
) -> None:
    service.behave(data="drop", filing="never")
    account = service.account()
    _, probe = caller.call(account)
    finding = weigh(await look(account, probe), mail_reconciler(account), probe, 1e12)
    assert finding.verdict is VerdictKind.CANNOT_TELL
    assert len(service.accepted()) == 1  # and it was sent


async def test_no_copy_proves_nothing_where_the_tool_files_it(
    service: Service, caller: Caller
) -> None:
    service.behave(data="drop", filing="never")
    account = service.account(filing=Filing.CLIENT)
    _, probe = caller.call(account)
    assert len(service.accepted()) == 1
    assert service.filed() == []  # accepted, then cut off before the copy
    assert kind(await look(account, probe)) is VerdictKind.CANNOT_TELL


async def test_a_copy_that_the_tool_filed_is_found(service: Service, caller: Caller) -> None:
    service.behave(filing="never")
    account = service.account(filing=Filing.CLIENT)
    result, probe = caller.call(account)
    found = await look(account, probe)
    assert isinstance(found, Verdict)
    assert (found.kind, found.result) == (VerdictKind.HAPPENED, result)


async def test_no_copy_proves_nothing_once_it_may_have_been_cleared_away(
    service: Service, caller: Caller
) -> None:
    service.behave(filing="never", data="drop")
    account = service.account(settle=1.0)
    _, probe = caller.call(account)
    for age, wanted in (
        (ABSENCE_HOLDS - 0.01, VerdictKind.DID_NOT_HAPPEN),
        (ABSENCE_HOLDS, VerdictKind.CANNOT_TELL),
        (-1.0, VerdictKind.CANNOT_TELL),
    ):
        now = iter([probe.dispatched_at + age])
        reconciler = mail_reconciler(account, clock=now.__next__)
        assert kind(await ask(reconciler, probe)) is wanted


async def test_c05_a_copy_that_comes_late_is_found_late(service: Service, caller: Caller) -> None:
    service.behave(data="drop", filing="later")
    account = service.account(settle=30.0)
    _, probe = caller.call(account)
    first = weigh(await look(account, probe), mail_reconciler(account), probe, probe.ended_at)
    assert first.verdict is VerdictKind.CANNOT_TELL
    service.tell(do="file")
    assert kind(await look(account, probe)) is VerdictKind.HAPPENED
    assert len(service.accepted()) == 1


# -- no verdict
def _about() -> Probe:
    return Probe("execution", 1, ToolIdentity(name="send_mail"), CALL)


async def test_a_look_that_cannot_be_made_is_no_verdict(service: Service) -> None:
    nobody = MailServer("127.0.0.1", 9, Security.NONE)
    for account, why in (
        (service.account(imap=nobody), "ConnectionRefusedError"),
        (service.account(password=lambda: "wrong"), "error"),
        (service.account(folders=("Sent", "Missing")), "error"),
    ):
        assert await look(account, _about()) == NoVerdict(why)


@pytest.mark.parametrize("imap", ["mute", "stuck"])
async def test_a_silent_server_is_given_up_in_time(service: Service, imap: str) -> None:
    service.behave(imap=imap)
    answer = await look(service.account(timeout=60.0), _about(), seconds=0.5)
    assert isinstance(answer, NoVerdict)
    assert answer.why in ("no answer in time", "TimeoutError", "abort")


async def test_a_look_that_is_cancelled_ends_at_once(service: Service) -> None:
    service.behave(imap="stuck")
    asked = asyncio.create_task(look(service.account(), _about(), seconds=3600.0))
    while "SEARCH" not in await asyncio.to_thread(service.asked):
        assert not asked.done()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    # The loop's end waits for the look's thread: an hour, if it had not been cut.


def test_a_session_is_cut_from_another_thread(service: Service) -> None:
    service.behave(imap="stuck")
    session = ImapSession(service.account(), 3600.0)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            session.copy_of("<a@b.example>")
        except (OSError, imaplib.IMAP4.error) as exc:
            ended.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    until_blocking(lambda: "SEARCH" in service.asked(), "the search")
    session.cut()
    thread.join(10)
    assert ended
    with pytest.raises(TimeoutError):
        session.copy_of("<a@b.example>")


# -- TLS
@pytest.mark.parametrize(
    ("port", "security"), [("imaps", Security.TLS), ("imap", Security.STARTTLS)]
)
async def test_certificates_are_checked_for_a_look_too(
    service: Service, caller: Caller, port: str, security: Security
) -> None:
    account = service.account(imap=service.at(port, security))
    _, probe = caller.call(account)
    assert kind(await look(account, probe)) is VerdictKind.HAPPENED
    strict = service.account(imap=service.at(port, security), trust=None)
    assert await look(strict, probe) == NoVerdict("SSLCertVerificationError")
    assert service.asked().count("AUTHENTICATE") == 1
