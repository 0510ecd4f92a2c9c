"""Looking at one session: what its thread, its rows and its prompts say of each call.

Reads only. The result is a `View` of `Case`s, one for each protected call of the trailing
reply and one for each open row, whether or not its call is answered or still in the thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from . import rows, thread
from .guard import Guard
from .identity import (
    CallRef,
    TornArguments,
    covered_digest,
    execution_id,
    intent_digest,
    is_mangled,
    parse_arguments,
)
from .ledger import Ledger
from .models import Coverage, Execution
from .owner import Owner
from .policy import Standing, standing
from .port import Prompt, SessionPort
from .recovery import Answer, Approval, Facts, Holder, Intact
from .redact import preview
from .states import Decision, State
from .thread import Message, Reply


@dataclass(frozen=True)
class Due:
    """A follow-up that the thread lacks.

    Args:
        row: the attempt it is about.
        kind: `happened`, `drop`, `retry` or `outcome`; part of its key.
        outcome: the attempt whose outcome it carries, if any.
    """

    row: Execution
    kind: str
    outcome: Execution | None = None


@dataclass
class Case:
    """One call: its facts, and what a step needs to act on it."""

    facts: Facts
    ref: CallRef | None
    reply: Reply | None
    row: Execution | None
    session_id: str
    intent_digest: str = ""
    preview: str = ""
    difference: str = ""
    in_trailing: bool = False
    follow_ups: list[Due] = field(default_factory=list)

    def id_in(self, incarnation: str) -> str:
        """Return the call's execution id in a life of its session."""
        assert self.ref is not None
        return execution_id(self.session_id, incarnation, self.ref.call_id)


@dataclass
class View:
    """A session as recovery sees it at one moment."""

    messages: list[Message]
    reply: Reply | None
    reply_digest: str
    incarnation: str
    cases: list[Case]
    open_rows: list[Execution]
    unprotected_unanswered: list[CallRef]
    all_answered: bool


def look(port: SessionPort, ledger: Ledger, guard: Guard, owner: Owner) -> View:
    """Return what is known of a session's calls now.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    messages = port.messages()
    coverage = ledger.first(rows.session(port.session_id))
    incarnation = coverage.incarnation if coverage else ""
    open_rows = ledger.known(rows.open_in_session(port.session_id))
    reply = thread.trailing_reply(messages)
    reader = _Reader(port, ledger, guard, owner, messages, coverage, reply)
    cases: dict[str, Case] = {}
    loose: list[CallRef] = []
    if reply is not None:
        for ref in reply.calls:
            case = reader.trailing(ref, open_rows)
            if case is None:
                if ref.call_id not in reply.answers:
                    loose.append(ref)
            else:
                cases[ref.call_id] = case
    seen = {c.row.execution_id for c in cases.values() if c.row}
    for row in open_rows:
        if row.execution_id not in seen:
            seen.add(row.execution_id)
            cases[f"row:{row.execution_id}"] = reader.open_row(row)
    return View(
        messages=messages, reply=reply, reply_digest=reader.digest, incarnation=incarnation,
        cases=_with_waits(list(cases.values())), open_rows=open_rows,
        unprotected_unanswered=loose, all_answered=reply is None or reply.answered,
    )  # fmt: skip


def _with_waits(cases: list[Case]) -> list[Case]:
    """Tell each call of the trailing reply whether another of them waits for a decision."""
    waiting = [c for c in cases if c.in_trailing and c.facts.undecided and not c.facts.runs_again]
    for case in cases:
        if case.in_trailing and any(w is not case for w in waiting):
            case.facts = replace(case.facts, waits=True)
    return cases


class _Reader:
    def __init__(
        self, port: SessionPort, ledger: Ledger, guard: Guard, owner: Owner,
        messages: list[Message], coverage: Coverage | None, reply: Reply | None,
    ) -> None:  # fmt: skip
        self.port, self.ledger, self.guard, self.owner = port, ledger, guard, owner
        self.messages, self.coverage, self.reply = messages, coverage, reply
        self.digest = covered_digest(reply.calls) if reply else ""
        self.keys = thread.follow_up_keys(messages)
        self.carried = thread.carried_outcomes(messages)
        self._alone: set[str] | None = None
        self._alive: dict[str, bool] = {}

    # -- the trailing reply
    def trailing(self, ref: CallRef, open_rows: list[Execution]) -> Case | None:
        assert self.reply is not None
        answered = ref.call_id in self.reply.answers
        prompt = self.port.prompt(ref)
        attempts: list[Execution] = []
        if self.coverage:
            incarnation = self.coverage.incarnation
            name = execution_id(self.port.session_id, incarnation, ref.call_id)
            is_open = any(r.execution_id == name for r in open_rows)
            if is_open or not answered or prompt.state is not Approval.NONE:
                attempts = self.ledger.known(rows.attempts(name))
        if not attempts and is_mangled(_read(ref)[0]):
            return None
        recorded = bool(attempts) or self.port.protects(ref.name)
        if not recorded and prompt.state is Approval.NONE:
            return None
        return self._case(ref, self.reply, attempts, prompt, trailing=True)

    def open_row(self, row: Execution) -> Case:
        attempts = self.ledger.known(rows.attempts(row.execution_id))
        found = None
        if self.coverage and row.incarnation == self.coverage.incarnation:
            found = thread.find_call(self.messages, row.tool_call_id)
        if found is None:
            return self._case(None, None, attempts, Prompt(), trailing=False)
        reply, ref = found
        return self._case(ref, reply, attempts, self.port.prompt(ref), trailing=reply.trailing)

    def _case(
        self, ref: CallRef | None, reply: Reply | None, attempts: list[Execution], prompt: Prompt,
        *, trailing: bool,
    ) -> Case:  # fmt: skip
        row = attempts[-1] if attempts else None
        answer = Answer.ABSENT
        if ref is not None and reply is not None:
            answer = thread.answer_of(self.messages, reply, ref.call_id, row.attempt if row else 0)
        arguments, digest, torn = _read(ref)
        intact, difference = self._intact(ref, row, prompt, digest, torn, trailing)
        lost = answer is Answer.ABSENT or intact is not Intact.SAME
        due = self._due(attempts, answer, lost)
        foreign = row is not None and (
            not self.coverage or row.incarnation != self.coverage.incarnation
        )
        facts = Facts(
            state=row.state if row and isinstance(row.state, State) else None,
            decision=row.decision if row else None,
            attempt=row.attempt if row else 0,
            newer=row.newer if row else False,
            answer=answer,
            intact=intact,
            covered=trailing and self._is_covered(ref),
            alone=trailing and self._ran_alone(ref),
            approval=prompt.state,
            holder=self._holder(row, ref),
            evidence=bool(row and self.guard.kept(row.execution_id, row.attempt)),
            item=bool(row and self.port.has_item(row.execution_id, row.attempt)),
            follow_up_due=bool(due) and not foreign and self._writable(),
            user_line=bool(reply and reply.user_line),
            snapshot=bool(row and row.snapshot_digest),
            standing=self._standing(attempts, foreign),
        )
        return Case(
            facts, ref, reply, row, self.port.session_id, intent_digest=digest,
            preview=preview(arguments), difference=difference, in_trailing=trailing,
            follow_ups=due,
        )  # fmt: skip

    def _intact(
        self, ref: CallRef | None, row: Execution | None, prompt: Prompt, digest: str,
        torn: bool, trailing: bool,
    ) -> tuple[Intact, str]:  # fmt: skip
        if ref is None:
            return Intact.SAME, ""
        if torn:
            return Intact.TORN, "its arguments are not readable"
        if row is not None:
            if row.reason == "changed" and row.state == State.UNKNOWN:
                return Intact.SAME, ""
            if row.intent_digest == digest:
                return Intact.SAME, ""
            what = "its tool" if row.tool_name != ref.name else "its arguments"
            return Intact.DIFFERS, f"{what} changed since it was recorded"
        if prompt.intent_digest and prompt.intent_digest != digest:
            return Intact.DIFFERS, "it changed since it was asked about"
        if trailing and not prompt.intent_digest and self._covered_otherwise():
            return Intact.DIFFERS, "the reply changed since it was recorded"
        return Intact.SAME, ""

    def _covered_otherwise(self) -> bool:
        """Say whether this very reply was covered in another form."""
        cover, reply = self.coverage, self.reply
        return bool(
            cover and reply and cover.covered_digest
            and cover.covered_ordinal == reply.ordinal and cover.covered_digest != self.digest
        )  # fmt: skip

    def _is_covered(self, ref: CallRef | None) -> bool:
        return self._matches(ref) and not self._ran_alone(ref)

    def _matches(self, ref: CallRef | None) -> bool:
        cover, reply = self.coverage, self.reply
        if not (cover and reply and ref and cover.covered_digest == self.digest):
            return False
        return cover.covered_ordinal == reply.ordinal

    def _ran_alone(self, ref: CallRef | None) -> bool:
        """Say whether the host started this tool without us since the reply was covered."""
        cover = self.coverage
        if cover is None or ref is None or not self._matches(ref):
            return False
        if self._alone is None:
            query = rows.host_started(self.port.session_id, cover.audit_mark)
            self._alone = set(self.ledger.known(query))
        return ref.name in self._alone

    def _standing(self, attempts: list[Execution], foreign: bool) -> Standing:
        """Say what may settle the latest attempt without a person."""
        row = attempts[-1] if attempts else None
        if row is None or foreign or not row.undecided or not self._writable():
            return Standing.PERSON
        if self.port.gave_up(*row.key):
            return Standing.PERSON
        return standing(attempts, self.port.descriptor(row.tool_name), self.port.now())

    def _writable(self) -> bool:
        return self.port.exists() and self.port.readable()

    def _holder(self, row: Execution | None, ref: CallRef | None) -> Holder:
        if row is None and ref is not None and self.coverage:
            name = execution_id(self.port.session_id, self.coverage.incarnation, ref.call_id)
            return Holder.HERE_RUNNING if self.guard.starting(name) else Holder.NOBODY
        if row is None or row.state != State.DISPATCHED:
            return Holder.NOBODY
        if row.owner == self.guard.owner:
            running = self.guard.running(row.execution_id, row.attempt)
            return Holder.HERE_RUNNING if running else Holder.HERE_IDLE
        if row.owner not in self._alive:
            self._alive[row.owner] = self.owner.is_alive(row.owner)
        return Holder.ELSEWHERE if self._alive[row.owner] else Holder.DEAD

    def _due(self, attempts: list[Execution], answer: Answer, lost: bool) -> list[Due]:
        """Return the follow-ups that the thread lacks and whose time has come, oldest first."""
        due = []
        for i, row in enumerate(attempts):
            if row.decision in (Decision.HAPPENED, Decision.DROP):
                if (*row.key, row.decision.value) not in self.keys:
                    due.append(Due(row, row.decision.value))
            elif row.decision is Decision.RETRY:
                after = attempts[i + 1] if i + 1 < len(attempts) else None
                ended = lost if after is None else after.state != State.DISPATCHED
                if ended and (*row.key, Decision.RETRY.value) not in self.keys:
                    due.append(Due(row, Decision.RETRY.value, after))
        last = attempts[-1] if attempts else None
        if (
            last is not None and not due and last.decision is None
            and last.state in (State.SUCCEEDED, State.FAILED)
            and answer not in (Answer.NONE, Answer.RESULT) and last.key not in self.carried
        ):  # fmt: skip
            due.append(Due(last, "outcome", last))
        return due


def _read(ref: CallRef | None) -> tuple[object, str, bool]:
    """Return (arguments, intent digest, torn) of a call as the thread stores it."""
    if ref is None:
        return None, "", False
    try:
        arguments = parse_arguments(ref.arguments)
        return arguments, intent_digest(ref.name, arguments), False
    except TornArguments:
        return None, "", True
