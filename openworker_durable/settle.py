"""Applying the recovery table to one session: look, take one step, look again.

`Settler.triage` repairs the thread and raises items; it runs no tool and calls no model. The
session must be held by this process. Every write is one atomic step and every question is
asked afresh after it, so running it twice, or being killed anywhere inside, changes nothing
about the end (C23).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from . import finding, rows, texts, thread, verbs
from .clock import Clock, IdFactory, fresh_id, now
from .errors import DurableError
from .facts import Case, View, look
from .failpoints import Failpoint, no_failpoint
from .guard import Guard
from .identity import CallRef
from .models import Execution, Intent, ToolIdentity
from .owner import Owner
from .policy import Standing
from .port import SessionPort
from .recovery import Action, Answer, Step, Trigger, decide, goes_on
from .review import draft
from .snapshot import Snapshot
from .states import Decision, Reason, State
from .thread import Message

log = logging.getLogger("openworker_durable")

STEPS = 2000
"""Most writes one triage makes; more means that a step does not change its own question."""

_ANSWERING = frozenset(
    {
        Action.ANSWER_PROVISIONAL,
        Action.ANSWER_CHANGED,
        Action.ANSWER_NOT_STARTED,
        Action.REBUILD,
    }
)
_RESTING = frozenset(
    {
        Action.NOTHING, Action.JOIN, Action.LEAVE_ALONE, Action.HALT, Action.PROCEED, Action.RETRY,
    }
)  # fmt: skip


@dataclass
class Report:
    """What triage did and found.

    Args:
        rules: numbers of the rules that wrote something, in order.
        rebuilt, raised, provisional: how many results, items and provisional texts it wrote.
        halted: some call of the trailing reply is unknown and undecided.
        interrupted: the person would not wait for a call that still runs.
        held_elsewhere, holders: a call runs in another live process, named for people.
        retries: attempts decided `retry` whose next attempt is due.
        proceed: calls that may start now.
        goes_on: everything is answered and the model is to be called (rule 14).
        follow_up_unseen: the thread ends in a follow-up the model has not seen.
        follow_up_blocked: a follow-up waits until other calls of the reply are answered.
    """

    rules: list[int] = field(default_factory=list)
    rebuilt: int = 0
    raised: int = 0
    provisional: int = 0
    halted: bool = False
    interrupted: bool = False
    held_elsewhere: bool = False
    holders: list[str] = field(default_factory=list)
    retries: list[Execution] = field(default_factory=list)
    proceed: list[str] = field(default_factory=list)
    goes_on: bool = False
    follow_up_unseen: bool = False
    follow_up_blocked: bool = False


class Settler:
    """Recovery for the sessions of one state folder.

    Args:
        guard: this process's guard, with its ledger.
        owner: this process's life, to tell who else is alive.
        clock, fresh, failpoint: see those modules.
    """

    def __init__(
        self, guard: Guard, owner: Owner, *, clock: Clock = now, fresh: IdFactory = fresh_id,
        failpoint: Failpoint = no_failpoint,
    ) -> None:  # fmt: skip
        self.guard = guard
        self.ledger = guard.ledger
        self.owner = owner
        self.clock = clock
        self.fresh = fresh
        self._hit = failpoint

    async def triage(self, port: SessionPort, trigger: Trigger) -> Report:
        """Bring one session to where the table leaves it for this trigger.

        Raises:
            LedgerError: the ledger cannot be read or written; nothing was lost, ask again.
        """
        report = Report()
        view = self._look(port)
        for _ in range(STEPS):
            wrote = await self._one_step(port, view, trigger, report)
            if not wrote:
                break
            view = self._look(port)
        else:
            raise DurableError(f"session {port.session_id}: recovery does not come to rest")
        self.acknowledge(port, view)
        self._conclude(port, view, trigger, report)
        return report

    def _look(self, port: SessionPort) -> View:
        return look(port, self.ledger, self.guard, self.owner)

    async def _one_step(
        self, port: SessionPort, view: View, trigger: Trigger, report: Report
    ) -> bool:
        """Take the first step that writes, or answer what is unanswered; false at rest."""
        steps = [(case, decide(case.facts, trigger)) for case in view.cases]
        for case, step in steps:
            if step.action is Action.JOIN:
                report.interrupted = not await self._join(port, case)
                return not report.interrupted
            if step.action in _RESTING or step.action in _ANSWERING:
                continue
            if step.action is Action.FOLLOW_UP and not view.all_answered:
                continue
            await self._apply(port, view, case, step, report)
            report.rules.append(step.rule)
            return True
        if self._answer(port, view, steps, trigger, report):
            return True
        stale = [c for c in view.cases if c.row is not None and self._close_stale(port, c)]
        return self._void_stale(port, view) or bool(stale)

    # -- single steps
    async def _apply(
        self, port: SessionPort, view: View, case: Case, step: Step, report: Report
    ) -> None:
        row = case.row
        if step.action in (Action.VOUCH_CHANGED, Action.VOUCH_LEGACY):
            await self._vouch(port, case, step)
        elif step.action is Action.FOLLOW_UP:
            self._follow_up(port, view, case)
        elif step.action is Action.ASK_PERSON and row:
            self._ask_person(port, case, row)
            report.raised += 1
        elif step.action is Action.SETTLE_FROM_THREAD and row:
            await self._settle_from_thread(view, case, row)
        elif row is not None:
            await self._move(port, case, row, step.action)
        elif case.ref is not None:
            await self._prompt(port, view, case, step.action)

    async def _move(self, port: SessionPort, case: Case, row: Execution, action: Action) -> None:
        """Commit one move of a row."""
        at, ledger = self.clock(), self.ledger
        if action is Action.LOSE:
            await ledger.ask(verbs.lose, *row.key, row.owner, self._why_lost(port, case, row), at)
        elif action is Action.COMMIT_EVIDENCE:
            outcome = self.guard.kept(*row.key)
            if outcome:
                await ledger.ask(verbs.finish, *row.key, row.owner, outcome, at)
        elif action is Action.SCHEDULE_PROBE:
            await ledger.ask(finding.schedule_probe, *row.key, at)

    def _why_lost(self, port: SessionPort, case: Case, row: Execution) -> Reason:
        if case.facts.answer is Answer.ABSENT and port.exists() and port.readable():
            return Reason.LOST_THREAD
        return Reason.EVIDENCE_LOST if row.owner == self.guard.owner else Reason.OWNER_DIED

    def _ask_person(self, port: SessionPort, case: Case, row: Execution) -> None:
        self._hit("item.before")
        lost = case.facts.changed or case.facts.answer is Answer.ABSENT
        port.raise_item(draft(row, retry=not lost), *row.key)
        self._hit("item.after")

    async def _prompt(self, port: SessionPort, view: View, case: Case, action: Action) -> None:
        """Do what a call that never started asks for: void, renew or admit its prompt."""
        assert case.ref is not None
        if action is Action.VOID_PROMPT:
            port.void_prompt(case.ref.call_id, "the call was answered another way")
            self._note(port, case.ref, "approval_void")
        elif action is Action.ASK_AGAIN:
            port.ask_again(case.ref.call_id)
            self._note(port, case.ref, "asked_again")
        elif action is Action.ADMIT and view.reply:
            port.admit_prompt(case.ref.call_id, case.intent_digest)
            await self.ledger.ask(
                verbs.cover, port.session_id, self.fresh(), view.reply_digest,
                view.reply.ordinal, self.clock(),
            )  # fmt: skip

    async def _join(self, port: SessionPort, case: Case) -> bool:
        """Wait for a call that still runs in this process; its result is then on record.

        Returns:
            False when the person would not wait.
        """
        row, future = case.row, None
        if row is not None:
            future = self.guard.running(row.execution_id, row.attempt)
        elif case.ref is not None:
            coverage = self.ledger.first(rows.session(case.session_id))
            if coverage is not None:
                future = self.guard.starting(case.id_in(coverage.incarnation))
        if future is None:
            return True
        ended = asyncio.ensure_future(asyncio.wrap_future(future))
        stopped = asyncio.ensure_future(port.interrupted())
        try:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return ended.done()
        finally:
            stopped.cancel()

    async def _settle_from_thread(self, view: View, case: Case, row: Execution) -> None:
        assert case.ref is not None
        assert case.reply is not None
        message = view.messages[case.reply.answers[case.ref.call_id]]
        shot = Snapshot(text=str(message.get("content") or ""))
        state = State.FAILED if thread.mark_of(message).get("failed") else State.SUCCEEDED
        await self.ledger.ask(
            verbs.found_in_thread, row.execution_id, row.attempt, row.owner, state, shot,
            self.clock(),
        )  # fmt: skip

    async def _vouch(self, port: SessionPort, case: Case, step: Step) -> None:
        assert case.ref is not None
        changed = step.action is Action.VOUCH_CHANGED
        coverage = await self.ledger.ask(verbs.open_session, port.session_id, self.fresh())
        tool: ToolIdentity = port.tool(case.ref.name)
        intent = Intent(
            session_id=port.session_id, incarnation=coverage.incarnation,
            tool_call_id=case.ref.call_id,
            execution_id=case.id_in(coverage.incarnation), tool=tool,
            intent_digest=case.intent_digest or "torn", preview=case.preview,
        )  # fmt: skip
        if changed:
            port.void_prompt(case.ref.call_id, "the call was changed after it was asked about")
        await self.ledger.ask(
            verbs.vouch, intent, Reason.CHANGED if changed else Reason.LEGACY, case.difference,
            self.owner.name, self.clock(),
        )  # fmt: skip

    def _void_stale(self, port: SessionPort, view: View) -> bool:
        """Void prompts of calls that were answered, in whatever reply they stand."""
        waiting: set[str] = set()
        if view.reply is not None:
            calls = view.reply.calls
            waiting = {ref.call_id for ref in calls if ref.call_id not in view.reply.answers}
        stale = port.stale_prompts(waiting) if port.readable() else []
        for ref in stale:
            port.void_prompt(ref.call_id, "its call was answered")
            self._note(port, ref, "approval_void")
        return bool(stale)

    def _note(self, port: SessionPort, ref: CallRef, stage: str) -> None:
        self.ledger.defer(
            verbs.note, port.session_id, ref.name, stage, "void", "no answer to it counts",
            ref.call_id,
        )  # fmt: skip

    def _close_stale(self, port: SessionPort, case: Case) -> bool:
        """Close items about attempts that are settled or superseded."""
        row = case.row
        assert row is not None
        keep = row.attempt if row.undecided or row.newer else 0
        word = row.decision.value if row.decision else "settled"
        return port.close_items(row.execution_id, keep, word) > 0

    # -- the thread
    def _answer(
        self, port: SessionPort, view: View, steps: list[tuple[Case, Step]], trigger: Trigger,
        report: Report,
    ) -> bool:  # fmt: skip
        """Answer, in one rewrite, every unanswered call of one reply that is to be answered."""
        first = next((c for c, s in steps if s.action in _ANSWERING), None)
        reply = first.reply if first else view.reply
        if reply is None:
            return False
        answers: dict[str, Message] = {}
        numbers = []
        for case, step in steps:
            if step.action in _ANSWERING and case.reply and case.reply.index == reply.index:
                assert case.ref is not None
                answers[case.ref.call_id] = self._answer_text(case, step, report)
                numbers.append(step.rule)
        if trigger is Trigger.MESSAGE and reply.trailing:
            for ref in view.unprotected_unanswered:
                port.void_prompt(ref.call_id, "a new message came first")
                answers[ref.call_id] = thread.tool_message(
                    ref.call_id, texts.interrupted(ref.name), thread.INTERRUPTED, self.clock()
                )
        if not answers:
            return False
        ordered = [answers[ref.call_id] for ref in reply.calls if ref.call_id in answers]
        messages, at = thread.with_answers(view.messages, reply, ordered)
        self._hit("repair.before")
        port.rewrite(messages, at, len(ordered))
        self._hit("repair.after")
        report.rules += numbers
        return True

    def _answer_text(self, case: Case, step: Step, report: Report) -> Message:
        assert case.ref is not None
        call_id, name, at = case.ref.call_id, case.ref.name, self.clock()
        execution_id = case.row.execution_id if case.row else ""
        attempt = case.row.attempt if case.row else 0
        if step.action is Action.REBUILD and case.row:
            shot = self.ledger.first(rows.stored_snapshot(execution_id, attempt))
            if shot is not None:
                report.rebuilt += 1
                message = thread.result_message(call_id, shot, at, execution_id, attempt)
                if case.row.state == State.FAILED:
                    message["source"][thread.MARK]["failed"] = True
                return message
        if step.action is Action.ANSWER_NOT_STARTED:
            text, kind = texts.not_started(name), thread.NOT_STARTED
        elif step.action is Action.ANSWER_CHANGED:
            text, kind = texts.changed(name), thread.CHANGED
        elif case.row is None or case.row.state == State.DISPATCHED:
            text, kind = texts.still_running(name), thread.PROVISIONAL
        elif case.row.reason == Reason.CHANGED.value:
            text, kind = texts.changed(name), thread.PROVISIONAL
        else:
            report.provisional += 1
            asked = case.facts.standing is Standing.PERSON
            text, kind = texts.provisional(name, asked=asked), thread.PROVISIONAL
        return thread.tool_message(
            call_id, text, kind, at, execution_id=execution_id, attempt=attempt
        )

    def _follow_up(self, port: SessionPort, view: View, case: Case) -> None:
        due = case.follow_ups[0]
        outcome = due.outcome
        shot = None
        if outcome is not None and outcome.decision is None:
            shot = self.ledger.first(rows.stored_snapshot(outcome.execution_id, outcome.attempt))
        carries = outcome.attempt if outcome and outcome.state in (
            State.SUCCEEDED, State.FAILED) else 0  # fmt: skip
        message = thread.follow_up_message(
            texts.follow_up(due.row, due.kind, outcome, shot),
            texts.follow_up_card(due.row, due.kind, outcome),
            self.clock(), due.row.execution_id, due.row.attempt, due.kind, carries,
        )  # fmt: skip
        self._hit("followup.before")
        port.append(message)
        self._hit("followup.after")

    # -- the end
    def acknowledge(self, port: SessionPort, view: View | None = None) -> None:
        """Note, on the next commit, which open rows the saved thread carries by now."""
        view = view or self._look(port)
        if not view.open_rows:
            return
        saved = port.saved()
        keys, carried = thread.follow_up_keys(saved), thread.carried_outcomes(saved)
        gone = not port.exists()
        for row in view.open_rows:
            foreign = gone or row.incarnation != view.incarnation
            if _carried(row, keys, carried, foreign):
                self.ledger.defer(verbs.acknowledge, row.execution_id, row.attempt, self.clock())

    def _conclude(self, port: SessionPort, view: View, trigger: Trigger, report: Report) -> None:
        for case in view.cases:
            step = decide(case.facts, trigger)
            if step.action is Action.LEAVE_ALONE and case.row:
                report.held_elsewhere = True
                report.holders.append(self.owner.describe(case.row.owner))
            elif step.action is Action.HALT and case.in_trailing and not case.facts.user_line:
                report.halted = True
            elif step.action is Action.FOLLOW_UP:
                report.follow_up_blocked = True
            elif step.action is Action.PROCEED and case.ref:
                report.proceed.append(case.ref.call_id)
            if case.row and _to_run_again(case):
                report.retries.append(case.row)
        called = thread.model_called_since(view.messages)
        report.goes_on = goes_on(
            answered=view.all_answered,
            nothing_open=not (report.halted or report.held_elsewhere),
            model_called=called,
        )
        report.follow_up_unseen = not called and thread.ends_in_follow_up(view.messages)


def _to_run_again(case: Case) -> bool:
    """Say whether the next attempt of a call is due, by a decision or by its policy."""
    facts = case.facts
    if facts.changed or facts.newer or facts.answer is Answer.ABSENT:
        return False
    if facts.state is State.UNKNOWN and facts.decision is Decision.RETRY:
        return True
    return facts.runs_again


def _carried(
    row: Execution, keys: set[tuple[str, int, str]], carried: set[tuple[str, int]], foreign: bool
) -> bool:
    if row.state == State.DISPATCHED or row.undecided:
        return False
    if row.superseded and row.decision is None:
        return True  # the attempt after it carries what became of both
    if foreign:
        return row.decision is not Decision.RETRY or row.superseded
    if row.decision is not None:
        return (row.execution_id, row.attempt, row.decision.value) in keys
    return row.key in carried
