"""What the record costs: a protected call against the floor, throughput, and syncs."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from openworker_durable import verbs
from openworker_durable.guard import Guard
from openworker_durable.identity import execution_id, intent_digest
from openworker_durable.ledger import DATABASE, Ledger
from openworker_durable.models import Authority, Intent, Outcome, ToolIdentity
from openworker_durable.snapshot import Snapshot
from openworker_durable.states import AuthorityKind, Reason, State
from tests.bench.figures import Pairs, Result, clocked, in_turns

RESULT = "x" * 1024
_numbers = itertools.count()


class Floor:
    """The least that a durable call can cost: two autocommit statements of plain sqlite3."""

    def __init__(self, folder: Path) -> None:
        self.conn = sqlite3.connect(
            folder / "floor.db", isolation_level=None, check_same_thread=False
        )
        self.conn.execute("PRAGMA journal_mode = WAL")
        self.conn.execute("PRAGMA synchronous = FULL")
        self.conn.execute(
            "CREATE TABLE calls (id TEXT PRIMARY KEY, state TEXT, at REAL, result TEXT)"
        )

    def call(self, _n: int = 0) -> None:
        """Insert a dispatched row, then update it with a 1 KiB result."""
        name = f"x{next(_numbers)}"
        self.conn.execute("INSERT INTO calls VALUES (?, 'dispatched', ?, NULL)", (name, 1.0))
        self.conn.execute(
            "UPDATE calls SET state = 'succeeded', result = ? WHERE id = ? AND state = "
            "'dispatched'",
            (RESULT, name),
        )


class Record:
    """A ledger and a guard in a folder, and one protected call through them."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder / DATABASE)
        self.guard = Guard(self.ledger, "bench")

    def intent(self, session: str = "s") -> Intent:
        """Describe a call that has not been seen before."""
        call = f"call_{next(_numbers)}"
        return Intent(
            session_id=session, incarnation="life", tool_call_id=call,
            execution_id=execution_id(session, "life", call), tool=ToolIdentity(name="send"),
            intent_digest=intent_digest("send", {"to": call}), preview=f"to: {call}",
        )  # fmt: skip

    def authority(self) -> Authority:
        """Return an approval item that nothing else was started by."""
        return Authority(kind=AuthorityKind.ITEM, ref=f"item-{next(_numbers)}")

    def outcome(self) -> Outcome:
        """Return a success with a 1 KiB result."""
        return Outcome(
            state=State.SUCCEEDED, reason=Reason.RETURNED, snapshot=Snapshot(text=RESULT)
        )

    def call(self, session: str = "s") -> None:
        """Make one protected call whose effect is nothing: start, dispatch, finish."""
        handle = self.guard.start(self.intent(session), self.authority())
        self.guard.dispatch(handle)
        self.guard.finish(handle, self.outcome())
        self.ledger.defer(verbs.acknowledge, handle.execution_id, handle.attempt, 1.0)

    async def call_on_loop(self) -> None:
        """The same moves, each awaited on the event loop."""
        handle = self.guard.start(self.intent(), self.authority())
        at = self.guard.clock()
        await self.ledger.ask(verbs.dispatch, handle.intent, handle.authority, "bench", at)
        key = (handle.execution_id, 1)
        await self.ledger.ask(verbs.finish, *key, "bench", self.outcome(), at)
        self.guard.abandon(handle)
        self.ledger.defer(verbs.acknowledge, *key, at)

    def close(self) -> None:
        """Close the ledger."""
        self.guard.close()
        self.ledger.close()


def protected_call(result: Result, folder: Path, count: int) -> None:
    """Time a protected call against the floor, call by call, in a worker thread and awaited."""
    record, floor = Record(folder), Floor(folder)
    for _ in range(20):
        record.call()
        floor.call()
    done: list[Pairs] = []
    before = record.ledger.commits
    worker = threading.Thread(
        target=lambda: done.append(in_turns(lambda _: record.call(), floor.call, count))
    )
    worker.start()
    worker.join()
    commits = (record.ledger.commits - before) / count
    result.add(
        "protected_call_from_thread_vs_floor", done[0].ratio, "ratio", at_most=1.4,
        note=done[0].medians,
    )  # fmt: skip
    pairs = asyncio.run(_awaited(record, floor, count))
    result.add(
        "protected_call_vs_floor", pairs.ratio, "ratio", at_most=1.7, note=pairs.medians
    )  # fmt: skip
    result.add("commits_per_protected_call", commits, "count", exactly=2)
    record.close()
    floor.conn.close()


async def _awaited(record: Record, floor: Floor, count: int) -> Pairs:
    pairs = Pairs()
    for n in range(count):
        if n % 2:
            pairs.other.append(clocked(floor.call))
        begun = time.perf_counter()
        await record.call_on_loop()
        pairs.one.append(time.perf_counter() - begun)
        if not n % 2:
            pairs.other.append(clocked(floor.call))
    return pairs


def throughput(result: Result, folder: Path, count: int) -> None:
    """Count calls a second of many sessions at once against one connection, in rounds."""
    record, floor = Record(folder), Floor(folder)
    record.call()
    rates: dict[str, list[float]] = {"floor": [], "1": [], "8": [], "32": []}
    for _ in range(3):
        rates["floor"].append(_rate(1, count, lambda _: floor.call()))
        for sessions in (1, 8, 32):
            each = max(10, count // sessions) if sessions > 1 else count
            rates[str(sessions)].append(_rate(sessions, each, record.call))
    best = {name: sorted(found)[1] for name, found in rates.items()}
    for many, goal in (("8", 2.5), ("32", 5)):
        name = f"throughput_{many}_sessions_vs_one_connection"
        note = f"{best[many]:.0f} against {best['floor']:.0f} calls/s"
        result.add(name, best[many] / best["floor"], "ratio", at_least=goal, note=note)
        result.add(
            f"throughput_{many}_sessions_vs_one_session", best[many] / best["1"], "ratio",
            note=f"one session through the ledger: {best['1']:.0f} calls/s",
        )  # fmt: skip
    record.close()
    floor.conn.close()


def _rate(sessions: int, each: int, call: Callable[[str], None]) -> float:
    gate = threading.Barrier(sessions + 1)

    def work(n: int) -> None:
        call(f"s{n}")  # a thread's first call opens a reader of its own
        gate.wait()
        for _ in range(each):
            call(f"s{n}")
        gate.wait()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(sessions)]
    for thread in threads:
        thread.start()
    gate.wait()
    seconds = clocked(gate.wait)
    for thread in threads:
        thread.join()
    return sessions * each / seconds


def syncs(result: Result, folder: Path) -> None:
    """Count the system's fsync and fdatasync calls, as the difference of two runs."""
    for name, what, goal in (
        ("syncs_per_protected_call", "record", 2),
        ("syncs_per_approved_host_call", "host", None),
        ("syncs_per_approved_host_call_alone", "alone", None),
    ):
        few, many = (_count_syncs(folder / f"{what}{n}", what, n) for n in (20, 60))
        value = None if few is None or many is None else (many - few) / 40
        bound = {} if goal is None else {"exactly": goal}
        result.add(name, value, "count", note="strace" if shutil.which("strace") else "", **bound)


def _count_syncs(folder: Path, what: str, calls: int) -> int | None:
    if shutil.which("strace") is None:
        return None
    folder.mkdir()
    trace = folder / "trace"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace),
         sys.executable, "-m", "tests.bench.child", what, str(folder), str(calls)],
        check=False, capture_output=True, timeout=300,
    )  # fmt: skip
    if done.returncode or not trace.exists():
        return None
    return len(re.findall(r"f(?:data)?sync\(\d+", trace.read_text(encoding="utf-8")))
