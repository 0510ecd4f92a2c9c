"""Probes: asking reconcilers what became of unknown attempts, on the schedule that is in the rows.

The server process asks, a few at a time. Before each probe the attempt is compared with the tool
that is there now; one that is not exactly the tool that was called ends the schedule, and a person
decides. A probe is claimed in the ledger before it is made, so that one which dies with its
process counts, and the schedule ends. A verdict whose commit fails is kept and committed later,
without asking again. Nothing here performs an effect, and no probe outlives its owner.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import finding, rows
from ..errors import LedgerError, PolicyError
from ..identity import TornArguments, intent_digest, parse_arguments
from ..models import Execution, Outcome, ToolIdentity
from ..policy import Standing, identity_of, parse, standing, stricter
from ..reconciler import Finding, Probe, Reconciler, VerdictKind, ask, weigh
from ..thread import find_call
from ..validate import ResultRefused, outcome_of
from .binding import Binding, binding_of
from .life import Life
from .session import HostSession

log = logging.getLogger("openworker_durable")

AT_ONCE = 4
"""Most probes under way at the same time."""

GRACE = 10.0
"""Seconds beyond a probe's deadline from which on it counts as having come to nothing."""

MOST_KEPT = 50
"""Most verdicts kept while the ledger cannot be written; no probe begins while there are more."""

_SETTLING = frozenset({VerdictKind.HAPPENED, VerdictKind.FAILED, VerdictKind.DID_NOT_HAPPEN})

Key = tuple[str, int]
Commit = tuple[Any, ...]


@dataclass
class _Due:
    """One attempt whose probe is due, with what is needed to make it."""

    row: Execution
    probe: Probe
    reconciler: Reconciler
    may_run: bool
    output: Any


class Prober:
    """Makes the probes of one state folder that are due.

    Args:
        life: the runtime of this process.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._busy: dict[Key, asyncio.Task[None]] = {}
        self._kept: dict[Key, Commit] = {}
        self._committing = asyncio.Lock()
        self.grace = GRACE

    @property
    def idle(self) -> bool:
        """Say whether no probe is under way and no verdict waits to be committed."""
        return not self._busy and not self._kept

    async def begin(self, due: list[Execution]) -> None:
        """Commit what waits, and begin the probes that are due, as many as there is room for."""
        await self._commit_kept()
        for row in due:
            if len(self._busy) >= AT_ONCE or len(self._kept) >= MOST_KEPT:
                return
            if row.key not in self._busy and row.key not in self._kept:
                task = asyncio.ensure_future(self._one(row))
                self._busy[row.key] = task
                task.add_done_callback(partial(self._done, row.key))

    def _done(self, key: Key, _task: asyncio.Task[None]) -> None:
        self._busy.pop(key, None)

    async def aclose(self) -> None:
        """End every probe under way; each stays scheduled."""
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one probe
    async def _one(self, row: Execution) -> None:
        try:
            found = await self._prepare(row)
            if isinstance(found, str):
                await self._settle(row, (finding.end_probes, *row.key, found))
            elif found is not None:
                await self._ask(found)
        except LedgerError as exc:
            log.debug("a probe could not be begun (%s)", type(exc).__name__)
        except Exception:
            log.exception("a probe of execution %s failed", row.execution_id)

    async def _prepare(self, row: Execution) -> _Due | str | None:
        """Return what is needed for the probe, why it cannot be made, or None: not now."""
        life, manager = self._life, self._life.opening.manager
        if not HostSession(life, manager, row.session_id).exists():
            return "its session is gone"
        if not await life.opening.ready(row.session_id):
            return "its session is gone"
        binding = binding_of(manager._engines.get(row.session_id))
        if binding is None:
            return None if manager.is_running(row.session_id) else "its session cannot be opened"
        return await self._compare(binding, row)

    async def _compare(self, binding: Binding, row: Execution) -> _Due | str | None:
        life, at = self._life, self._life.clock()
        wanted = {row.tool_name}
        if not binding.manager.is_running(row.session_id):
            await life.opening.connect(row.session_id, wanted)
        attempts = life.ledger.known(rows.attempts(row.execution_id))
        if not attempts or attempts[-1].key != row.key or attempts[-1].probes != row.probes:
            return None  # somebody else was faster
        descriptor = binding.toolbox.descriptor(row.tool_name)
        if standing(attempts, descriptor, at) is not Standing.PROBING:
            return "it cannot be looked up with the tool that is there now"
        arguments = _arguments(binding, row)
        if arguments is None:
            return "the conversation does not hold the call as it was made"
        try:
            declared = binding.toolbox.declaration(row.tool_name)
        except PolicyError as exc:
            return str(exc)
        reconciler = declared.reconciler
        if reconciler is None or not binding.toolbox.looks_up(row.tool_name, arguments):
            return "nothing can look it up any more"
        if row.probes >= len(reconciler.delays):
            return row.found or "its last probe brought no answer"
        first = (row.ended_at or row.dispatched_at) + reconciler.delays[0]
        if row.probes == 0 and first > at:
            await life.ledger.ask(finding.postpone, *row.key, first)
            return None
        allowed = stricter(parse(row.policy), descriptor.policy)
        probe = _probe(row, descriptor.identity, arguments, binding)
        return _Due(row, probe, reconciler, row.attempt < allowed.attempts, declared.output)

    async def _ask(self, due: _Due) -> None:
        life, row, number = self._life, due.row, due.probe.number
        delays = due.reconciler.delays
        again = life.clock() + due.reconciler.timeout + self.grace
        if number < len(delays):
            again += delays[number]
        if not await life.ledger.ask(finding.begin_probe, *row.key, row.probes, again):
            return
        life.failpoint("probe.before")
        begun = life.clock()  # what is not there proves something only if the look began late
        answer = await ask(due.reconciler, due.probe)
        life.failpoint("probe.after")
        found = weigh(answer, due.reconciler, due.probe, begun)
        commit = await asyncio.to_thread(_commit, due, found, life.clock())
        await self._settle(row, commit)

    # -- what it came to
    async def _settle(self, row: Execution, commit: Commit) -> None:
        self._kept[row.key] = commit
        await self._commit_kept()

    async def _commit_kept(self) -> None:
        """Commit what is kept, each once; whoever comes meanwhile waits for it."""
        async with self._committing:
            while self._kept:
                key, (verb, *values) = next(iter(self._kept.items()))
                try:
                    await self._life.ledger.ask(verb, *values)
                except LedgerError as exc:
                    log.warning("what a probe found is committed later (%s)", type(exc).__name__)
                    return
                del self._kept[key]
                self._look_again(key)

    def _look_again(self, key: Key) -> None:
        """Bring the session to where the table leaves it now."""
        row = self._life.ledger.first(rows.row(*key))
        if row is not None and row.probe_at is None:
            self._life.turn_ended(row.session_id)


def _probe(
    row: Execution, tool: ToolIdentity, arguments: dict[str, Any], binding: Binding
) -> Probe:
    return Probe(
        execution_id=row.execution_id, attempt=row.attempt, tool=tool, arguments=arguments,
        workspace=binding.toolbox.workspace, dispatched_at=row.dispatched_at,
        ended_at=row.ended_at or row.dispatched_at, prepared=row.prepared,
        number=row.probes + 1,
    )  # fmt: skip


def _arguments(binding: Binding, row: Execution) -> dict[str, Any] | None:
    """Return the arguments of an attempt as its thread holds them, if they are what was recorded.

    A row of a deleted session's earlier life has none.
    """
    found = find_call(binding.engine.messages, row.tool_call_id)
    if found is None or identity_of(row).name != found[1].name:
        return None
    try:
        arguments = parse_arguments(found[1].arguments)
        same = intent_digest(found[1].name, arguments) == row.intent_digest
    except TornArguments:
        return None
    return dict(arguments) if same and isinstance(arguments, dict) else None


def _commit(due: _Due, found: Finding, at: float) -> Commit:
    """Return the verb, with its values, that records what a probe came to."""
    key, number = due.row.key, due.probe.number
    if found.verdict is VerdictKind.DID_NOT_HAPPEN and due.may_run:
        return finding.found_absent, *key, number
    if found.verdict in _SETTLING:
        try:
            outcome: Outcome = outcome_of(found, due.output)
            return finding.found_out, *key, number, outcome, found.word, at
        except ResultRefused as exc:
            found = Finding(None, "its answer was refused", exc.why)
        except PolicyError as exc:
            found = Finding(None, "its answer cannot be checked", str(exc))
    delays = due.reconciler.delays
    next_at = None
    if number < len(delays):
        next_at = at + (delays[number] if found.wait is None else found.wait)
    return finding.end_probe, *key, number, found.word, found.note, next_at
