"""Evidence by hand, at once and across crashes: one settles, and the same event converges.

Killed before the commit, the attempt is as it was; killed after it, all of it is there.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import rows, verbs
from openworker_durable.errors import (
    AlreadyDecided,
    AlreadyRecorded,
    LedgerUnavailable,
)
from openworker_durable.ledger import Ledger
from openworker_durable.snapshot import encode
from openworker_durable.states import Decision, State
from tests import needs
from tests.contract.by_hand import give, said, unchanged
from tests.contract.kit import audits, in_state, row_of


# -- at once
async def test_of_two_sources_at_once_exactly_one_settles(ledger: Ledger) -> None:
    for number in range(30):
        what = in_state(ledger, State.UNKNOWN, f"c{number}")
        ends = await asyncio.gather(
            give(ledger, what, "by ops", event=f"o{number}"),
            give(ledger, what, "by bank", source="bank", event=f"b{number}"),
            return_exceptions=True,
        )
        assert sorted(map(str, map(type, ends))) == sorted(map(str, [bool, AlreadyDecided]))
        shot = ledger.first(rows.stored_snapshot(what.execution_id, 1))
        assert shot == encode("by ops" if ends[0] is True else "by bank")
    assert len(said(ledger)) == 30


async def test_of_two_connections_at_once_exactly_one_settles(ledger: Ledger, path: Path) -> None:
    """Each process has a ledger, and so a connection, of its own."""
    other = Ledger(path)
    try:
        for number in range(20):
            what = in_state(ledger, State.UNKNOWN, f"c{number}")
            ends = await asyncio.gather(
                *(give(one, what, event=f"e{number}") for one in (ledger, other))
            )
            assert sorted(ends) == [False, True], "one event, given twice at once"
    finally:
        other.close()
    assert len(said(ledger)) == 20


async def test_a_person_and_a_source_at_once_one_wins(ledger: Ledger) -> None:
    for number in range(30):
        what = in_state(ledger, State.UNKNOWN, f"c{number}")
        word = (Decision.DROP, "me", "", 3.0)
        person = ledger.ask(verbs.decide, what.execution_id, 1, *word)
        source = give(ledger, what, event=f"e{number}")
        both = (person, source) if number % 2 else (source, person)
        ends = await asyncio.gather(*both, return_exceptions=True)
        if number % 2 == 0:
            ends.reverse()
        lost = [isinstance(end, AlreadyDecided) for end in ends]
        assert sorted(lost) == [False, True]
        assert (row_of(ledger, what).decision is Decision.DROP) == lost[1]


async def test_trap_7_whoever_gives_up_waiting_finds_it_written(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    asked = asyncio.Event()

    class Told(Ledger):
        def submit(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
            future = super().submit(verb, *args, **kwargs)
            asked.set()
            return future

    other = Told(ledger.path)
    try:
        task = asyncio.ensure_future(give(other, what))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        other.close()
    assert await give(ledger, what) is False


# -- crashes
class Full(Ledger):
    """A real ledger that cannot be written to, as on a full disk, until `up` is set."""

    up = False

    def submit(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.up:
            raise LedgerUnavailable("the record cannot be used now (disk full)")
        return super().submit(verb, *args, **kwargs)


async def test_c16_what_could_not_be_written_can_be_given_again(ledger: Ledger, path: Path) -> None:
    what = in_state(ledger, State.UNKNOWN)
    full = Full(path)
    try:
        with pytest.raises(LedgerUnavailable):
            await give(full, what)
        assert unchanged(ledger, what)
        full.up = True
        assert await give(full, what) is True
    finally:
        full.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from openworker_durable.config import settings_from
from openworker_durable.evidence import submit
from openworker_durable.ledger import Ledger
path, place, execution_id = sys.argv[1:]
settings = settings_from(b'[sources.ops]\\ntools = ["pay"]')
def hit(name):
    if name == place:
        os.kill(os.getpid(), signal.SIGKILL)
ledger = Ledger(Path(path), failpoint=hit)
asyncio.run(submit(ledger, execution_id=execution_id, attempt=1, source="ops", event="e1",
                   settings=settings, result="paid"))
"""


@pytest.mark.crash
@needs.sigkill
@pytest.mark.parametrize("when", ["before", "after"])
async def test_c23_killed_around_the_commit_it_comes_to_the_same_end(
    ledger: Ledger, when: str
) -> None:
    what = in_state(ledger, State.UNKNOWN)
    argv = [sys.executable, "-c", KILLED, str(ledger.path), f"commit.{when}:give_evidence",
            what.execution_id]  # fmt: skip
    assert subprocess.run(argv, check=False, timeout=60).returncode == -9
    assert unchanged(ledger, what) == (when == "before"), "all of it, or nothing"
    assert await give(ledger, what) is (when == "before")
    assert row_of(ledger, what).state is State.SUCCEEDED
    assert [a["stage"] for a in audits(ledger.path)] == ["dispatched", "outcome", "evidence"]
    assert len(said(ledger)) == 1


async def test_retention_forgets_no_event(ledger: Ledger) -> None:
    """An event that came once is known for ever, so that it never settles another attempt."""
    what = in_state(ledger, State.UNKNOWN)
    await give(ledger, what)
    ledger.run(verbs.acknowledge, what.execution_id, 1, 8.0)
    assert ledger.run(verbs.expire, 100.0, 100.0) == (1, 1)
    other = in_state(ledger, State.UNKNOWN, "c2")
    with pytest.raises(AlreadyRecorded):
        await give(ledger, other)
