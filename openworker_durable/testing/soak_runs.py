"""One random run of the soak: a scenario, kills, restarts, decisions, and the invariants.

Everything is drawn from one seed. Kills by a place or a count come at the same instant again;
kills by the clock, and the interleaving of threads, only nearly so.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from .crash import CrashLab
from .effects import EffectService
from .invariants import check_invariants
from .outcome import Outcome
from .scenario import (
    ANY,
    CALL,
    CRASH_POINTS,
    PLACES,
    RECOVER,
    Call,
    Fail,
    Kill,
    Reply,
    Scenario,
    Step,
)
from .tools import MODES, SENDERS

MOST_KILLS = 4
"""Most kills in one run."""

MOST_ROUNDS = 12
"""Most lives after the last kill until nothing is undecided."""

BESIDE = 0.25
"""Share of the lives with a kill that have a second process beside them."""

POLL_SECONDS = 0.02

COMMITS = tuple(p for p in PLACES if p.startswith("commit.before:"))

WORDS = ("happened", "retry", "drop", "unsure", "seen", "It happened", '{"decision": "retry"}')
FINAL_WORDS = ("happened", "retry", "drop")


@dataclass
class Life:
    """One process of a run: what it was to do and how it ended.

    Args:
        beside: it ran at the same time as the one told before it, over the same folder.
    """

    scenario: Scenario
    kill_after: float | None
    ended_by: str
    killed: bool
    effects: int
    errors: list[str]
    beside: bool = False

    def __str__(self) -> str:
        kill = str(self.scenario.kill or "")
        if self.kill_after is not None:
            kill = f"after {self.kill_after * 1000:.0f} ms"
        steps = " ".join(":".join(map(str, step)) for step in self.scenario.steps)
        approvals = self.scenario.approvals
        who = "beside it " if self.beside else ""
        who += "" if self.scenario.durable else "host alone "
        end = "".join(f"\n    {e.strip()}" for e in self.errors)
        return (
            f"{who}[{steps}] approvals={approvals} "
            f"kill={kill or '-'} breaks={self.scenario.breaks or '-'} -> {self.ended_by}, "
            f"{self.effects} effects{end}"
        )


@dataclass
class Run:
    """One run: its seed, its lives, and what is wrong with it."""

    seed: int
    replies: tuple[Reply, ...] = ()
    authorised_by: str = ""
    lives: list[Life] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    places: Counter[str] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        """Return how many processes were killed."""
        return sum(life.killed for life in self.lives)

    def story(self) -> str:
        """Return the run for people."""
        lines = [f"seed {self.seed}, authorised by {self.authorised_by}"]
        lines += [f"  reply: {_words(reply)}" for reply in self.replies]
        lines += [f"  life {n}: {life}" for n, life in enumerate(self.lives, 1)]
        return "\n".join(lines + [f"  VIOLATION: {fault}" for fault in self.faults])


def _words(reply: Reply) -> str:
    if isinstance(reply, tuple):
        return ", ".join(f"{c.name}({c.id!r}, {c.arguments})" for c in reply)
    return repr(reply)


def play(seed: int, folder: Path, service: EffectService) -> Run:
    """Play one run.

    Args:
        seed: says everything about it.
        folder: where its state goes.
        service: the outside world.
    """
    soak = _Soak(seed, CrashLab(folder, service))
    try:
        soak.play()
    except Exception:
        soak.run.faults.append(f"the soak itself failed\n{traceback.format_exc()}")
    return soak.run


class _Soak:
    def __init__(self, seed: int, lab: CrashLab) -> None:
        self.rng = random.Random(seed)
        self.lab = lab
        self.keys = 0
        self.run = Run(seed)

    def play(self) -> None:
        rng, run = self.rng, self.run
        run.replies = self._replies()
        run.authorised_by = rng.choice(("prompt", "grant"))
        scenario = Scenario(
            self.lab.folder(), run.replies, self._first_steps(),
            authorised_by=run.authorised_by, poll_seconds=POLL_SECONDS,
        )  # fmt: skip
        if run.authorised_by == "prompt" and rng.random() < 0.1:
            scenario = self._without_plugin(scenario)
        kills = rng.randint(1, MOST_KILLS)
        for _ in range(kills + 2):  # not every kill place is reached
            if run.kills >= kills:
                break
            self._live(self._doomed(scenario), beside=rng.random() < BESIDE)
            if run.faults:
                return
            scenario = replace(scenario, steps=self._later_steps())
        self._settle(scenario)

    def _without_plugin(self, scenario: Scenario) -> Scenario:
        """Begin with a life of the host alone: the plugin is new to the session (G4)."""
        self.run.replies = tuple(_own_ids(reply) for reply in self.run.replies)
        scenario = replace(scenario, replies=self.run.replies)
        doomed, after = self._doomed(replace(scenario, durable=False))
        if doomed.kill is not None:
            doomed = replace(doomed, kill=Kill(self.rng.choice(CRASH_POINTS)))
        self._live((replace(doomed, breaks=()), after))
        return replace(scenario, steps=self._later_steps())

    # -- scripts
    def _replies(self) -> tuple[Reply, ...]:
        replies: list[Reply] = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3))):
            if self.rng.random() < 0.08:
                replies.append(Fail())
            replies.append(tuple(self._call(n) for n in range(self.rng.choice((1, 1, 2, 3)))))
            if self.rng.random() < 0.6:
                replies.append("done")
        return tuple(replies)

    def _call(self, place: int) -> Call:
        rng = self.rng
        self.keys += 1
        key = f"key-{self.keys}"
        call_id = rng.choice((f"call_{place}", f"call_{place}", f"id-{self.keys}", "call_0", ""))
        kind = rng.random()
        if kind < 0.15:
            return Call(call_id, "lookup", {"q": key})
        if kind < 0.35:
            return Call(call_id, "flaky", {"key": key, "mode": rng.choice(list(MODES))})
        return Call(call_id, rng.choice(SENDERS), {"to": "ann", "key": key})

    # -- lives
    def _first_steps(self) -> tuple[Step, ...]:
        rng = self.rng
        kind = rng.choice(("message", "attended"))
        start: tuple[Step, ...] = (("start_gateway",),)
        if rng.random() < 0.7:
            steps: tuple[Step, ...] = ((kind, "go"),)
        else:
            place = rng.choice(("in_tool_before_effect", "tool_returned", "commit.after:cover"))
            interference: tuple[Step, ...] = rng.choice(
                ((("stop",),), (("cancel",),), (("begin", "message", "and this"),))
            )
            steps = (("begin", kind, "go"), ("until", place, 1), *interference, ("settle",))
        more: tuple[Step, ...] = ((kind, "more"),) if rng.random() < 0.4 else ()
        return start + steps + more

    def _later_steps(self) -> tuple[Step, ...]:
        rng = self.rng
        steps: list[Step] = []
        if rng.random() < 0.2:
            steps.append(("decide", "*", rng.choice(WORDS), "ledger"))
        steps.append(("start_gateway",))
        for step, chance in (
            (("resume",), 0.6),
            (("decide", "*", rng.choice(WORDS), rng.choice(("inbox", "ledger"))), 0.5),
            (("message", "continue"), 0.25),
            (("attended", "go on"), 0.15),
            (("retry_button",), 0.15),
            (("decide", "*", rng.choice(WORDS), rng.choice(("inbox", "ledger"))), 0.3),
        ):
            if rng.random() < chance:
                steps.append(step)
        return (*steps, ("settle",))

    def _doomed(self, scenario: Scenario) -> tuple[Scenario, float | None]:
        """Return a life with a kill, or one that is killed by the clock."""
        rng = self.rng
        approvals = rng.choice(("allow", "allow", "allow", ("allow", "deny"), "deny", "leave"))
        kind = rng.random()
        kill, after = None, None
        if kind < 0.35:
            kill = Kill(rng.choice(PLACES), rng.choice((1, 1, 1, 1, 2, 3)))
        elif kind < 0.6:
            kill = Kill(ANY, rng.randint(1, 20))
        elif kind < 0.85:
            kill = Kill(CALL, rng.randint(50, 2500))
        else:
            after = rng.uniform(0.005, 0.05)
        breaks = ((rng.choice(COMMITS), rng.choice((1, 1, 3, 50))),) if rng.random() < 0.1 else ()
        return replace(scenario, approvals=approvals, kill=kill, breaks=breaks), after

    def _live(self, doomed: tuple[Scenario, float | None], *, beside: bool = False) -> Outcome:
        """Run one process, with a second one `beside` it if wanted, and look."""
        scenario, after = doomed
        other = self._beside(scenario) if beside else None
        child = self.lab.start(other) if other is not None else None
        outcome = self.lab.run(scenario, kill_after=after)
        self._note(scenario, after, outcome)
        if other is not None and child is not None:
            second = child.wait()
            self._note(other, None, second, beside=True)
            self.run.faults += check_invariants(second, settled=False)
            outcome = replace(self.lab.look(scenario), told=outcome.told)
        else:
            self.run.faults += _not_answered(outcome)
        self.run.faults += check_invariants(outcome, settled=False)
        return outcome

    def _beside(self, scenario: Scenario) -> Scenario:
        return scenario.then(*self._later_steps(), approvals="allow")

    def _note(
        self, scenario: Scenario, after: float | None, outcome: Outcome, *, beside: bool = False
    ) -> None:
        ended = (outcome.ended_by, outcome.killed)
        life = Life(scenario, after, *ended, len(outcome.effects), outcome.errors, beside)
        self.run.lives.append(life)
        self.run.places.update(outcome.hits.keys())
        if outcome.killed and scenario.kill is not None:
            self.run.places[scenario.kill.place] += 1
        if not outcome.killed and outcome.exit_code != 0:
            self.run.faults.append(f"the process ended with {outcome.ended_by}")

    def _settle(self, scenario: Scenario) -> None:
        """Start again until nothing is undecided and one more message was answered, and look."""
        steps: tuple[Step, ...] = RECOVER
        told_all = False
        for n in range(MOST_ROUNDS):
            outcome = self._live((scenario.then(*steps), None))
            if self.run.faults:
                return
            if any(r.undecided for r in outcome.rows):
                words = FINAL_WORDS if n < MOST_ROUNDS - 4 else ("happened", "drop")
                word, surface = self.rng.choice(words), self.rng.choice(("inbox", "ledger"))
                steps = (("start_gateway",), ("decide", "*", word, surface), ("settle",))
            elif told_all:
                self.run.faults += check_invariants(outcome)
                return
            else:
                steps, told_all = (("start_gateway",), ("message", "is all well?")), True
        self.run.faults.append(f"not settled after {MOST_ROUNDS} restarts")


def _own_ids(reply: Reply) -> Reply:
    """Return a reply whose calls have ids of their own, as the host alone needs them."""
    if not isinstance(reply, tuple):
        return reply
    return tuple(
        replace(c, id=f"own-{c.arguments.get('key') or c.arguments.get('q')}") for c in reply
    )


def _not_answered(outcome: Outcome) -> list[str]:
    """Say whether a message got no word from the model, although nothing stood in its way."""
    scenario = outcome.scenario
    spoken = any(step[0] in ("message", "attended") for step in scenario.steps)
    excused = outcome.killed or scenario.breaks or "leave" in scenario.approvals
    if excused or not spoken or outcome.told.get("model_calls"):
        return []
    return ["the session does not answer any more"]
