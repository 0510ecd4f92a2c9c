"""The recovery table: from what is known of one call to what happens next. Pure.

`decide` looks at one call's `Facts` and returns the next single step; whoever applies it
makes that one write, reads the facts again and asks again, until the step is one that
writes nothing. Killed between any two writes, the next start asks the same questions and
comes to the same end. `RULES` is the table of the design, first match wins; the page
docs/recovery.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from .policy import Standing
from .states import Decision, State


class Trigger(str, Enum):
    """Why recovery looks at a session now."""

    RESUME = "resume"
    RETRY_BUTTON = "retry_button"
    MESSAGE = "message"
    BETWEEN = "between"
    TURN_END = "turn_end"
    SWEEP = "sweep"


GOING_ON = frozenset({Trigger.RESUME, Trigger.RETRY_BUTTON})
"""Triggers that continue a turn: calls that never started may start."""

IN_TURN = frozenset({Trigger.BETWEEN})
"""The point between two iterations of a running turn; the only one where a retry runs."""


class Answer(str, Enum):
    """What the thread holds for the call."""

    ABSENT = "absent"
    """The call itself is not in the thread (any more)."""
    NONE = "none"
    RESULT = "result"
    """Its real result, put there by the guard or rebuilt."""
    PROVISIONAL = "provisional"
    OTHER = "other"
    """Anything else: denied, not started, or a placeholder by somebody's history repair."""


class Intact(str, Enum):
    """How the call in the thread compares with what was recorded or approved."""

    SAME = "same"
    DIFFERS = "differs"
    TORN = "torn"


class Holder(str, Enum):
    """Who owns a dispatched attempt."""

    NOBODY = "nobody"
    HERE_RUNNING = "here_running"
    HERE_IDLE = "here_idle"
    ELSEWHERE = "elsewhere"
    DEAD = "dead"


class Approval(str, Enum):
    """The state of the call's prompt."""

    NONE = "none"
    PENDING = "pending"
    ALLOWED = "allowed"
    UNWITNESSED = "unwitnessed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Facts:
    """All that decides about one call.

    Args:
        state, decision: of the latest attempt; None: no row, no decision.
        attempt: number of the latest attempt, 0 without a row.
        newer: a newer protocol wrote the row.
        answer, intact, covered, approval, holder: see the enums.
        alone: the host started the call's tool without us since the reply was covered.
        evidence: this process keeps an outcome whose write failed.
        item: a pending recovery item exists for the latest attempt.
        follow_up_due: a decision, or an outcome that came after the provisional text, has no
            follow-up in the thread, and its time has come.
        user_line: a person's message stands after the reply.
        waits: another call of the same reply is unknown and undecided.
        snapshot: the latest attempt's result is stored.
        standing: what may settle the latest attempt without a person.
    """

    state: State | None = None
    decision: Decision | None = None
    attempt: int = 0
    newer: bool = False
    answer: Answer = Answer.NONE
    intact: Intact = Intact.SAME
    covered: bool = True
    alone: bool = False
    approval: Approval = Approval.NONE
    holder: Holder = Holder.NOBODY
    evidence: bool = False
    item: bool = False
    follow_up_due: bool = False
    user_line: bool = False
    waits: bool = False
    snapshot: bool = True
    standing: Standing = Standing.PERSON

    @property
    def undecided(self) -> bool:
        """Say whether the call is unknown and nobody has decided."""
        return self.state is State.UNKNOWN and self.decision is None

    @property
    def runs_again(self) -> bool:
        """Say whether its policy makes the next attempt, and no person was asked yet."""
        asked_nobody = self.undecided and not self.item
        return asked_nobody and self.standing in (Standing.AGAIN, Standing.LATER)

    @property
    def known(self) -> bool:
        """Say whether the call ended by itself with a known outcome."""
        return self.state in (State.SUCCEEDED, State.FAILED) and self.decision is None

    @property
    def unanswered(self) -> bool:
        """Say whether the call stands in the thread without any answer."""
        return self.answer is Answer.NONE

    @property
    def changed(self) -> bool:
        """Say whether the call is not the one that was recorded or approved."""
        return self.intact is not Intact.SAME


class Action(str, Enum):
    """The next step; those above `NOTHING` write exactly one thing."""

    ANSWER_PROVISIONAL = "answer_provisional"
    ANSWER_CHANGED = "answer_changed"
    ANSWER_NOT_STARTED = "answer_not_started"
    VOID_PROMPT = "void_prompt"
    FOLLOW_UP = "follow_up"
    REBUILD = "rebuild"
    VOUCH_CHANGED = "vouch_changed"
    VOUCH_LEGACY = "vouch_legacy"
    COMMIT_EVIDENCE = "commit_evidence"
    SETTLE_FROM_THREAD = "settle_from_thread"
    LOSE = "lose"
    SCHEDULE_PROBE = "schedule_probe"
    ASK_PERSON = "ask_person"
    ASK_AGAIN = "ask_again"
    ADMIT = "admit"
    RETRY = "retry"
    NOTHING = "nothing"
    JOIN = "join"
    LEAVE_ALONE = "leave_alone"
    HALT = "halt"
    PROCEED = "proceed"


@dataclass(frozen=True)
class Step:
    """The rule that matched (0: none) and what it says to do."""

    rule: int
    action: Action


Pick = Callable[[Facts, Trigger], Action | None]


@dataclass(frozen=True)
class Rule:
    """One line of the recovery table.

    Args:
        number: as in the design.
        row, covered, owner: the conditions in words, for the docs.
        happens: what happens, in words, for the docs.
        pick: the action when the line matches, None when it does not.
    """

    number: int
    row: str
    covered: str
    owner: str
    happens: str
    pick: Pick


def _newer(f: Facts, _t: Trigger) -> Action | None:
    if not f.newer:
        return None
    if f.unanswered:
        return Action.ANSWER_PROVISIONAL
    return Action.NOTHING if f.item else Action.ASK_PERSON


def _decided(f: Facts, t: Trigger) -> Action | None:
    settled = f.decision is not None or (f.known and (f.attempt > 1 or not f.snapshot))
    if f.unanswered and settled:
        return Action.ANSWER_PROVISIONAL
    if f.follow_up_due and not f.unanswered:
        return Action.FOLLOW_UP
    return None


def _known(f: Facts, _t: Trigger) -> Action | None:
    if f.known and f.unanswered and not f.changed:
        return Action.REBUILD
    return None


def _changed(f: Facts, _t: Trigger) -> Action | None:
    if not f.changed or f.state is State.DISPATCHED or f.answer is Answer.ABSENT:
        return None
    if f.state is None and f.holder is Holder.HERE_RUNNING:
        return None
    if f.state is None:
        return Action.VOUCH_CHANGED if f.unanswered else None
    if f.unanswered:
        return Action.ANSWER_CHANGED
    if f.undecided:
        return Action.HALT if f.item else Action.ASK_PERSON
    return Action.NOTHING


def _here_running(f: Facts, t: Trigger) -> Action | None:
    if f.state not in (State.DISPATCHED, None) or f.holder is not Holder.HERE_RUNNING:
        return None
    if t is Trigger.MESSAGE:
        return Action.ANSWER_PROVISIONAL if f.unanswered else Action.NOTHING
    return Action.JOIN if t in GOING_ON and f.unanswered else Action.NOTHING


def _here_idle(f: Facts, _t: Trigger) -> Action | None:
    if f.state is not State.DISPATCHED or f.holder is not Holder.HERE_IDLE:
        return None
    if f.evidence:
        return Action.COMMIT_EVIDENCE
    return Action.SETTLE_FROM_THREAD if f.answer is Answer.RESULT else Action.LOSE


def _elsewhere(f: Facts, _t: Trigger) -> Action | None:
    if f.state is State.DISPATCHED and f.holder is Holder.ELSEWHERE:
        return Action.LEAVE_ALONE
    return None


def _dead(f: Facts, _t: Trigger) -> Action | None:
    if f.state is not State.DISPATCHED or f.holder is not Holder.DEAD:
        return None
    return Action.SETTLE_FROM_THREAD if f.answer is Answer.RESULT else Action.LOSE


def _unknown(f: Facts, t: Trigger) -> Action | None:
    if not f.undecided:
        return None
    if f.unanswered:
        return Action.ANSWER_PROVISIONAL
    if f.item or f.changed or f.answer is Answer.ABSENT:
        return Action.HALT if f.item else Action.ASK_PERSON
    return _BY_STANDING.get(f.standing) or _retry(t)


_BY_STANDING = {
    Standing.PERSON: Action.ASK_PERSON,
    Standing.PROBE: Action.SCHEDULE_PROBE,
    Standing.PROBING: Action.HALT,
    Standing.LATER: Action.NOTHING,
}


def _retry(t: Trigger) -> Action:
    return Action.RETRY if t in IN_TURN else Action.NOTHING


def _decided_retry(f: Facts, t: Trigger) -> Action | None:
    if f.state is not State.UNKNOWN or f.decision is not Decision.RETRY or f.changed:
        return None
    return _retry(t)


def _never_started(f: Facts, t: Trigger) -> Action | None:
    if f.state is not None:
        return None
    prompt_live = f.approval in (Approval.PENDING, Approval.ALLOWED, Approval.UNWITNESSED)
    if not f.unanswered:
        return Action.VOID_PROMPT if prompt_live else Action.NOTHING
    if not f.covered or f.changed:
        return None
    if t is Trigger.MESSAGE or f.user_line:
        return Action.VOID_PROMPT if prompt_live else Action.ANSWER_NOT_STARTED
    if f.waits:
        return Action.HALT
    if t in GOING_ON:
        return Action.PROCEED
    if f.approval in (Approval.ALLOWED, Approval.UNWITNESSED, Approval.REFUSED):
        if t is Trigger.SWEEP:
            return Action.ASK_AGAIN if f.approval is not Approval.REFUSED else Action.NOTHING
        return Action.PROCEED if t is Trigger.TURN_END else Action.NOTHING
    return Action.NOTHING


def _admit(f: Facts, _t: Trigger) -> Action | None:
    if f.alone:
        return None
    if f.state is None and f.unanswered and not f.changed and f.approval is Approval.PENDING:
        return Action.ADMIT
    return None


def _legacy(f: Facts, t: Trigger) -> Action | None:
    if f.state is None and f.unanswered and not f.changed:
        return Action.VOUCH_LEGACY
    return None


def _never(_f: Facts, _t: Trigger) -> Action | None:
    return None


RULES: tuple[Rule, ...] = (
    Rule(1, "any, written under a newer protocol", "-", "-",
         "never run; a `recovery_required` item that names the remedy", _newer),
    Rule(2, "decided, or its outcome came after the provisional text; not in the thread",
         "-", "-",
         "if the call has no tool message, first the provisional text; then the follow-up",
         _decided),
    Rule(3, "succeeded or failed by itself, same intent, no tool message", "-", "-",
         "rebuild the tool message; no prompt, no adapter call", _known),
    Rule(4, "any, intent differs or arguments torn", "-", "-",
         "never run; no terminal row changes; no row becomes `unknown` (changed), and its item "
         "says what changed and offers no retry", _changed),
    Rule(5, "dispatched", "-", "this process, still running", "join it, use its result",
         _here_running),
    Rule(6, "dispatched", "-", "this process, no longer running",
         "commit retained evidence, or the result in the saved thread; in neither: unknown, "
         "then 9", _here_idle),
    Rule(7, "dispatched", "-", "another live process",
         "leave it alone, say so; resume and message stop here", _elsewhere),
    Rule(8, "dispatched", "-", "dead",
         "the result in the saved thread settles it; otherwise unknown, then 9", _dead),
    Rule(9, "unknown, undecided", "-", "-",
         "answered with the provisional text; then by policy: `idempotent` (same tool, key still "
         "valid, attempts left) -> the next attempt; `reconcile` -> probes, then as the verdict "
         "says; otherwise, and when those are used up, a `recovery_required` item", _unknown),
    Rule(10, "unknown, decided `retry`, no next row", "-", "-",
         "the next attempt, once, through the guard, also after a new message", _decided_retry),
    Rule(11, "none", "yes", "-",
         "on resume and the Retry button: authorise, execute once, unless another call of the "
         "reply is undecided; with a later user line, or on a new message: its prompt is "
         "voided, then it is answered \"not started\"", _never_started),
    Rule(12, "none", "no, approval still pending", "-",
         "a pending approval proves it never ran: admit it, then 11", _admit),
    Rule(13, "none", "no, otherwise", "-", "row `unknown` (legacy), then 9", _legacy),
    Rule(14, "all calls answered, nothing open, model not called since", "-", "-",
         "resume: the turn goes on", _never),
)  # fmt: skip
"""The table, in order. Rule 14 is about the whole reply: see `goes_on`."""


def decide(facts: Facts, trigger: Trigger) -> Step:
    """Return the next step for one protected call; the first rule that matches wins.

    Args:
        facts: what is known of the call now.
        trigger: why recovery looks.
    """
    for rule in RULES:
        action = rule.pick(facts, trigger)
        if action is not None:
            return Step(rule.number, action)
    return Step(0, Action.NOTHING)


def goes_on(*, answered: bool, nothing_open: bool, model_called: bool) -> bool:
    """Rule 14: say whether a resume continues the turn although no call is unanswered."""
    return answered and nothing_open and not model_called


def rules_table() -> str:
    """Return the recovery table as the markdown that docs/recovery.md shows."""
    lines = ["| # | row | covered | owner | what happens |", "|---|---|---|---|---|"]
    lines += [f"| {r.number} | {r.row} | {r.covered} | {r.owner} | {r.happens} |" for r in RULES]
    return "\n".join(lines) + "\n"
