"""What the demonstration sees at one crash point, and what it makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import thread
from .testing import CRASH_POINTS, CrashLab, Kill, Outcome, check_invariants, one_call, one_turn

POINTS = tuple((by, place) for by in ("prompt", "grant") for place in CRASH_POINTS)
"""Who allowed the call, and where the process is killed."""


@dataclass(frozen=True)
class Seen:
    """One crash point on one side.

    Args:
        authorised_by, crash_point: which point.
        killed_by: what ended the process.
        killed: it was killed, as it was meant to be.
        effects_at_kill, effects: what the service had counted at the kill, and at the end.
        result_at_kill, has_result: whether the saved conversation held the call's result then,
            and at the end.
        has_call: whether the saved conversation holds the call at the end.
        asked: a person is asked what happened.
        faults: what `check_invariants` found at the end.
    """

    authorised_by: str
    crash_point: str
    killed_by: str
    killed: bool
    effects_at_kill: int
    effects: int
    result_at_kill: bool
    has_result: bool
    has_call: bool
    asked: bool
    faults: list[str] = field(default_factory=list)

    @property
    def recovery(self) -> str:
        """Return what the restart did, told from what changed."""
        if self.effects > max(1, self.effects_at_kill):
            return "executed_again"
        if self.effects > self.effects_at_kill:
            return "executed_once"
        if self.asked:
            return "recovery_required"
        if self.has_result:
            return "nothing_to_do" if self.result_at_kill else "rebuilt"
        return "nothing_done"

    @property
    def verdict(self) -> str:
        """Return `repeated`, `forgotten` or nothing."""
        if self.effects > 1:
            return "repeated"
        return "" if self.has_call else "forgotten"

    @property
    def ok(self) -> bool:
        """Say whether a kill here did no harm: done once, or a person is asked; never forgotten."""
        settled = self.effects == 1 or (self.effects == 0 and self.asked)
        known = self.recovery in ("rebuilt", "recovery_required", "executed_once", "nothing_to_do")
        return self.killed and settled and known and self.has_call and not self.faults


@dataclass(frozen=True)
class Row:
    """One crash point on both sides."""

    alone: Seen
    durable: Seen

    @property
    def ok(self) -> bool:
        """Say whether both processes were killed there, and the plugin did no harm."""
        return self.alone.killed and self.durable.ok

    def as_json(self) -> dict[str, Any]:
        """Return the row for `--json`."""
        return {
            "crash_point": self.durable.crash_point,
            "authorised_by": self.durable.authorised_by,
            "killed_by": self.durable.killed_by,
            "baseline_effects": self.alone.effects,
            "baseline_thread_has_call": self.alone.has_call,
            "baseline_verdict": self.alone.verdict,
            "effects": self.durable.effects,
            "recovery": self.durable.recovery,
            "thread_has_call": self.durable.has_call,
            "faults": self.durable.faults,
            "ok": self.ok,
        }


def rows_of(alone: list[Seen], durable: list[Seen]) -> list[Row]:
    """Return the two sides put together, point by point."""
    return [Row(a, d) for a, d in zip(alone, durable, strict=True)]


def watch_point(
    lab: CrashLab, state_dir: Path, authorised_by: str, crash_point: str, *, durable: bool
) -> Seen:
    """Kill a process at one point, start it again, and look."""
    session = f"{authorised_by}-{crash_point}"
    key = f"mail for {session}"
    scenario = one_turn(
        state_dir, one_call(key=key), session=session, durable=durable,
        authorised_by=authorised_by, kill=Kill(crash_point),
    )  # fmt: skip
    before = lab.run(scenario)
    after = lab.run(scenario.then())
    return Seen(
        authorised_by=authorised_by,
        crash_point=crash_point,
        killed_by=before.ended_by,
        killed=before.killed,
        effects_at_kill=before.count(key),
        effects=after.count(key),
        result_at_kill=_has_result(before),
        has_result=_has_result(after),
        has_call=any(thread.call_refs(m) for m in after.thread),
        asked=bool(after.pending("recovery_required")),
        faults=check_invariants(after),
    )


def _has_result(outcome: Outcome) -> bool:
    """Say whether the saved conversation answers the call with what the tool returned."""
    answers = (str(m.get("content")) for m in outcome.thread if m.get("role") == "tool")
    return any('"ok": true' in answer for answer in answers)
