"""What must hold after kills, restarts and decisions, told from what is on disk and was done.

Every check returns sentences, one for each fault, empty when all is well. They look at the
service's list of effects, the saved thread, the inbox and the ledger, never at what the
plugin says about itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .. import thread
from ..models import Execution
from ..states import Decision, State
from .outcome import Outcome

Check = Callable[["_World"], Iterator[str]]

KNOWN_STATES = (State.SUCCEEDED, State.FAILED)


def check_invariants(outcome: Outcome, *, settled: bool = True, live: bool = False) -> list[str]:
    """Return what is wrong with what a process left.

    Args:
        outcome: of the last process that touched the folder.
        settled: the process had the time to recover: a start-up sweep, a resume, an end.
        live: another process still runs in the folder, so attempts may be dispatched.

    Returns:
        one sentence for each fault.
    """
    world = _World(outcome, live)
    checks = ALWAYS + (SETTLED if settled else ())
    return [fault for check in checks for fault in check(world)]


@dataclass(frozen=True)
class _Called:
    """One call with an effect: its id, and the key by which the service counts it."""

    call_id: str
    key: str
    in_thread: bool


class _World:
    def __init__(self, outcome: Outcome, live: bool) -> None:
        self.outcome = outcome
        self.live = live
        self.thread = outcome.thread
        self.rows = outcome.rows
        self.calls = list(_calls(outcome))
        self.items = [i for i in outcome.items if i.get("kind") == "recovery_required"]
        self.latest: dict[str, Execution] = {}
        for row in self.rows:
            there = self.latest.get(row.execution_id)
            if there is None or row.attempt > there.attempt:
                self.latest[row.execution_id] = row

    @property
    def halted(self) -> bool:
        """Whether the turn waits for a decision: what waits on it is neither answered nor run."""
        reply = thread.trailing_reply(self.thread)
        if reply is None or reply.user_line:
            return False
        ids = {ref.call_id for ref in reply.calls}
        return any(r.undecided and r.tool_call_id in ids for r in self.latest.values())

    def retries(self, call_id: str) -> int:
        return sum(
            r.tool_call_id == call_id and r.decision is Decision.RETRY and r.superseded
            for r in self.rows
        )

    def pending(self, row: Execution) -> int:
        wanted = (row.execution_id, row.attempt)
        return sum(_about(i) == wanted and i.get("state") == "pending" for i in self.items)


def _calls(outcome: Outcome) -> Iterator[_Called]:
    """Yield the calls of the thread, then those of the script that the thread lacks."""
    keys = set()
    for message in outcome.thread:
        for ref in thread.call_refs(message):
            key = _key(ref.arguments)
            if key:
                keys.add(key)
                yield _Called(ref.call_id, key, True)
    for call in outcome.scenario.calls:
        key = str(call.arguments.get("key", ""))
        if key and key not in keys:
            yield _Called(call.id, key, False)


def _key(arguments: str) -> str:
    try:
        value = json.loads(arguments)
    except ValueError:
        return ""
    return str(value.get("key", "")) if isinstance(value, dict) else ""


def _about(item: dict[str, object]) -> tuple[str, int]:
    data = item.get("data")
    about = data.get("recovery") if isinstance(data, dict) else None
    about = about if isinstance(about, dict) else {}
    return str(about.get("execution_id", "")), int(about.get("attempt") or 0)


# -- what must hold at any time
def _no_repetition(w: _World) -> Iterator[str]:
    """G3: one effect for each call, and one more for each retry that a person decided."""
    may = Counter[str]()
    for call in w.calls:
        may[call.key] += 1 + w.retries(call.call_id)
    for key, times in Counter(e.key for e in w.outcome.effects).items():
        if times > may[key]:
            yield f"{key}: done {times} times, at most {may[key]} are accounted for"


def _every_effect_on_record(w: _World) -> Iterator[str]:
    """G1: an adapter is reached only by an attempt on record, and once by each."""
    recorded = {r.key for r in w.rows}
    watched = [e for e in w.outcome.effects if e.body.get("durable")]
    done = Counter((e.execution_id, e.attempt) for e in watched)
    for attempt, times in done.items():
        if attempt not in recorded:
            yield f"an effect of {attempt[0] or 'no execution'} has no row"
        elif times > 1:
            yield f"attempt {attempt[1]} of {attempt[0]} was carried out {times} times"


def _only_allowed(w: _World) -> Iterator[str]:
    """G5: whatever was done was allowed by a person, in a prompt or by deciding `retry`."""
    if w.outcome.scenario.authorised_by != "prompt":
        return
    for key in sorted({e.key for e in w.outcome.effects}):
        ids = {c.call_id for c in w.calls if c.key == key}
        if not ids & w.outcome.allowed and not any(map(w.retries, ids)):
            yield f"{key}: done, although nobody allowed it"


def _one_item_each(w: _World) -> Iterator[str]:
    for row in w.rows:
        if w.pending(row) > 1:
            yield f"attempt {row.attempt} of {row.tool_call_id} has {w.pending(row)} pending items"


# -- what must hold once settled
def _nothing_dispatched(w: _World) -> Iterator[str]:
    """G9: the attempt of a dead owner does not stay dispatched."""
    for row in w.rows:
        if row.state == State.DISPATCHED and not w.live:
            yield f"attempt {row.attempt} of {row.tool_call_id} is still dispatched"


def _nothing_forgotten(w: _World) -> Iterator[str]:
    """Every effect stands in the thread, or in an item; in a row once the session is deleted."""
    done = {e.key for e in w.outcome.effects}
    told = {str((i["data"].get("recovery") or {}).get("tool_call_id")) for i in w.items}
    if w.outcome.deleted:
        told |= {r.tool_call_id for r in w.rows}
    for call in w.calls:
        if call.key in done and not call.in_thread and call.call_id not in told:
            yield f"{call.key}: done, but neither in the conversation nor in the inbox"


def _thread_works(w: _World) -> Iterator[str]:
    """G14: every call answered once, in time; no provider refused the conversation."""
    faults = thread.pairing_faults(w.thread)
    yield from (f for f in faults if not (w.halted and f.endswith("is not answered")))
    for error in w.outcome.provider_errors:
        if error.startswith("ProviderRejected"):
            yield f"the model's service refused the conversation: {error}"


def _undecided_is_asked(w: _World) -> Iterator[str]:
    for row in w.latest.values():
        if row.undecided and w.pending(row) == 0:
            yield f"{row.tool_call_id} is unknown and undecided, and nobody is asked"


def _known_is_told(w: _World) -> Iterator[str]:
    """A known outcome stands in the thread, as its result or as a follow-up, and once."""
    carried = thread.carried_outcomes(w.thread)
    for row in w.latest.values():
        if w.outcome.deleted or row.decision is not None or row.state not in KNOWN_STATES:
            continue
        if row.key not in carried:
            yield f"the outcome of {row.tool_call_id} is known, but not in the conversation"


def _decided_is_told(w: _World) -> Iterator[str]:
    keys = [k for m in w.thread for k in thread.follow_up_keys([m])]
    for key, times in Counter(keys).items():
        if times > 1:
            yield f"the follow-up {key} stands {times} times in the conversation"
    for row in w.rows:
        if w.outcome.deleted or w.halted or row.decision is None:
            continue
        if row.decision is Decision.RETRY and not row.superseded:
            yield f"{row.tool_call_id} was decided retry, and was not run again"
        elif (*row.key, row.decision.value) not in keys:
            yield f"{row.tool_call_id} was decided {row.decision.value}; the model was not told"


def _settled_is_not_asked(w: _World) -> Iterator[str]:
    """Nobody is asked about what is settled."""
    undecided = {r.key for r in w.latest.values() if r.undecided}
    for item in w.items:
        if item.get("state") == "pending" and _about(item) not in undecided:
            yield f"an item asks about {_about(item)}, which is settled"


def _no_errors(w: _World) -> Iterator[str]:
    if w.outcome.hung:
        yield f"the process hung:\n{w.outcome.trace}"
    for error in w.outcome.errors:
        yield f"error inside the process: {error.strip().splitlines()[-1]}"


ALWAYS: tuple[Check, ...] = (
    _no_repetition,
    _every_effect_on_record,
    _only_allowed,
    _one_item_each,
    _no_errors,
)
SETTLED: tuple[Check, ...] = (
    _nothing_dispatched,
    _nothing_forgotten,
    _thread_works,
    _undecided_is_asked,
    _known_is_told,
    _decided_is_told,
    _settled_is_not_asked,
)
