"""Inside the child: the person who answers prompts and decides what became of unknown calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from .. import rows, verbs
from ..config import Settings
from ..declare import tool_key
from ..errors import LedgerError
from ..evidence import submit
from ..hosts.items import recovery_of
from ..hosts.reference.inbox import InboxItem
from ..hosts.reference.manager import SessionManager
from ..hosts.runtime import Runtime
from ..hosts.watching import POLL_SECONDS
from ..ledger import DATABASE, Ledger
from ..models import Execution
from ..policy import identity_of
from ..review import read_decision
from .outcome import note_answer
from .places import Places
from .scenario import Scenario

EVIDENCE_SEEN = 10.0
"""Seconds within which the server process acts on evidence that another one wrote."""


class Persons:
    """The person's half of a `Player`, whose constructor sets the attributes."""

    scenario: Scenario
    manager: SessionManager
    places: Places
    session: str
    notes: list[str]
    clicks: set[asyncio.Task[Any]]
    words: Iterator[str]
    leaving: bool

    @property
    def runtime(self) -> Runtime | None:
        raise NotImplementedError

    def begin(self, work: Coroutine[Any, Any, Any], among: set[asyncio.Task[Any]]) -> None:
        raise NotImplementedError

    async def until(self, true: Callable[[], bool], seconds: float = 3600.0) -> bool:
        raise NotImplementedError

    # -- prompts
    def _prompts(self) -> list[InboxItem]:
        return [i for i in self.manager.inbox.list(state="pending") if i.kind == "approval"]

    def parked(self) -> bool:
        """Say whether a turn waits for a prompt that nobody will answer."""
        if not self.leaving:
            return False
        waiting = self.manager.inbox._waiters
        return any(i.id in waiting and not waiting[i.id].is_set() for i in self._prompts())

    def will_answer(self) -> bool:
        """Say whether there is a prompt that is about to be answered."""
        return not self.leaving and bool(self._prompts())

    async def answer_prompts(self) -> None:
        """Answer every prompt as it comes, until cancelled."""
        seen: set[str] = set()
        while True:
            for item in self._prompts():
                if not self.leaving and item.id not in seen:
                    seen.add(item.id)
                    self._click(item, next(self.words))
            await asyncio.sleep(0.001)

    async def do_answer(self, word: str) -> None:
        for item in self._prompts():
            self._click(item, word)
        await self.do_settle()

    def _click(self, item: InboxItem, word: str) -> None:
        """Answer a prompt, having noted it where neither host nor plugin writes."""
        note_answer(self.scenario.state_dir, item.session_id, str(item.tool_call_id), word)
        self.begin(self.manager.resolve_inbox(item.id, word), self.clicks)

    async def do_settle(self) -> None:
        raise NotImplementedError

    # -- decisions
    async def do_decide(self, which: str, word: str, surface: str = "inbox") -> None:
        """Decide every undecided attempt of a call, or of all of them (`*`)."""
        for row in self._undecided(which):
            if surface == "inbox":
                self.begin(self._decide_item(row, word), self.clicks)
            else:
                await self._decide_elsewhere(row, word)
            await self.do_settle()

    def _undecided(self, which: str) -> list[Execution]:
        with contextlib.closing(Ledger(self.scenario.state_dir / DATABASE)) as ledger:
            found = ledger.known(rows.open_all())
        return [
            r for r in found
            if r.undecided and not r.superseded and which in ("*", r.tool_call_id)
        ]  # fmt: skip

    def looked_up(self) -> bool:
        """Say whether a probe is under way or scheduled."""
        runtime = self.runtime
        if runtime is None:
            return False
        waiting = (r.probe_at is not None for r in runtime.ledger.known(rows.open_all()))
        return not runtime.prober.idle or any(waiting)

    async def do_evidence(self, call_id: str, source: str, event: str, result: Any) -> None:
        """Let a source say how the undecided attempt of a call ended, as another process would."""
        for row in self._undecided(call_id):
            settings = Settings(sources={source: frozenset({tool_key(identity_of(row))})})
            path = self.scenario.state_dir / DATABASE
            with contextlib.closing(Ledger(path, failpoint=self.places)) as ledger:
                settled = await submit(
                    ledger, execution_id=row.execution_id, attempt=row.attempt, source=source,
                    event=event, settings=settings, result=result,
                )  # fmt: skip
                await self.until(partial(self._acted_on, ledger, row), EVIDENCE_SEEN)
            self.notes.append(f"evidence {row.tool_call_id} {source}: {settled}")
            await self.do_settle()

    async def _decide_item(self, row: Execution, word: str) -> None:
        for item in self.manager.inbox.list(state="pending"):
            ids = recovery_of(item)
            if (ids.get("execution_id"), ids.get("attempt")) == row.key:
                taken = await self.manager.resolve_inbox(item.id, word)
                self.notes.append(f"decide {row.tool_call_id} {word}: {taken}")
                return
        self.notes.append(f"decide {row.tool_call_id} {word}: no item")

    async def _decide_elsewhere(self, row: Execution, word: str) -> None:
        """Decide as another process would: straight into the ledger."""
        read = read_decision(word)
        if read is None:
            self.notes.append(f"decide {row.tool_call_id} {word}: no decision")
            return
        at = (row.ended_at or row.dispatched_at) + 1
        with contextlib.closing(Ledger(self.scenario.state_dir / DATABASE)) as ledger:
            try:
                await ledger.ask(verbs.decide, *row.key, read.decision, "cli", read.note, at)
                self.notes.append(f"decide {row.tool_call_id} {word}: True")
            except LedgerError as exc:
                self.notes.append(f"decide {row.tool_call_id} {word}: {type(exc).__name__}")
            pause = self.scenario.poll_seconds or POLL_SECONDS
            await self.until(lambda: not self._waits(ledger, row), 4 * pause)

    def _acted_on(self, ledger: Ledger, row: Execution) -> bool:
        return not self._waits(ledger, row)

    def _waits(self, ledger: Ledger, row: Execution) -> bool:
        """Say whether the server process has not acted on a decided row yet."""
        if self.runtime is None:
            return False
        now = ledger.first(rows.row(*row.key))
        return now is not None and now.acknowledged_at is None and not now.superseded
