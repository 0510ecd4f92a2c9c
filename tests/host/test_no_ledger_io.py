"""Unprotected calls pay nothing: no read and no write of the record, counted (G11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import _db, ledger
from openworker_durable.hosts.reference.providers import ToolCall
from tests.host.harness import SESSION, Lab, World, call, reply


class Counter:
    """Counts everything that reaches this test's records: moves, queries, openings.

    A thread that an earlier test left behind may still write to that test's folder.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.moves: list[str] = []
        for owner, name in (
            (_db.Writer, "submit"), (_db.Writer, "defer"), (_db.Writer, "run_batch"),
            (ledger.Ledger, "fetch"), (ledger.Ledger, "_reader"),
            (ledger, "open_reader"), (_db, "open_writer"),
        ):  # fmt: skip
            self._count(monkeypatch, owner, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.folder in Path(getattr(args[0], "path", args[0])).parents:
                self.seen.append(name)
                if name == "submit":
                    self.moves.append(args[1])
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    @contextmanager
    def during(self) -> Iterator[list[str]]:
        """Yield what is counted from here on; later counts are not in it."""
        before = len(self.seen)
        found: list[str] = []
        yield found
        found += self.seen[before:]


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter:
    return Counter(monkeypatch, tmp_path.resolve())


def _reads(count: int) -> list[ToolCall]:
    return [call("lookup", f"r{n}", what=str(n)) for n in range(count)]


async def _handled(world: World, calls: list[ToolCall]) -> list[str]:
    """Take the calls of one finished reply through the engine."""
    engine = world.manager.get_engine(SESSION)
    engine.messages.append({"role": "user", "content": "go"})
    engine._accept(reply(*calls))
    return [event.type.value async for event in engine._handle_tool_calls(calls)]


@pytest.mark.parametrize("count", [1, 8], ids=["alone", "in parallel"])
async def test_g11_a_read_only_call_does_no_ledger_io(
    lab: Lab, counter: Counter, count: int
) -> None:
    world = lab.world()
    world.manager.get_engine(SESSION)
    saved = world.saved()
    with counter.during() as seen:
        events = await _handled(world, _reads(count))
    assert seen == []
    assert world.saved() == saved, "nor is the thread saved more often than by the host"
    assert events.count("tool_finished") == count
    assert sorted(lab.outside.reads) == [str(n) for n in range(count)]


async def test_g11_a_read_only_reply_is_not_covered(lab: Lab, counter: Counter) -> None:
    world = lab.world(reply(*_reads(3)))
    await world.say("go")
    assert lab.outside.reads
    assert {"submit", "defer", "run_batch", "open_writer"}.isdisjoint(counter.seen)
    assert world.runtime.ledger.commits == 0


async def test_g11_ledger_reads_of_a_turn_do_not_grow_with_its_read_only_calls(
    lab: Lab, counter: Counter
) -> None:
    counts = []
    for size in (1, 8):
        world = lab.world(reply(*_reads(size)), folder=f"state{size}")
        with counter.during() as seen:
            await world.say("go")
        counts.append(seen.count("fetch"))
    assert counts[0] == counts[1]


async def test_g11_reads_beside_a_protected_call_add_no_write(lab: Lab, counter: Counter) -> None:
    for size in (0, 8):
        world = lab.world(reply(*_reads(size), call("send", "k1", what="a")), folder=f"state{size}")
        counter.moves.clear()
        await world.say("go", "send")
        assert world.states() == ["succeeded"]
        assert counter.moves == ["cover", "dispatch", "finish"]


async def test_g11_the_counter_counts(lab: Lab, counter: Counter) -> None:
    """Without this the tests above could pass because nothing is counted at all."""
    world = lab.world(reply(call("send", "k1", what="a")))
    await world.say("go", "send")
    assert {"submit", "defer", "run_batch", "fetch", "_reader"} <= set(counter.seen)
