"""What attaching costs a host: calls that are not recorded, and approved ones as a whole."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from openworker_durable import verbs
from openworker_durable.hosts.attach import Attachment, attach
from openworker_durable.hosts.binding import binding_of
from openworker_durable.hosts.names import REFERENCE
from openworker_durable.hosts.reference.inbox import InboxItem
from openworker_durable.hosts.reference.manager import SessionManager
from openworker_durable.hosts.reference.providers import (
    AssistantTurn,
    Message,
    ScriptedProvider,
    ToolCall,
)
from openworker_durable.hosts.reference.tools import ToolMetadata, tool
from openworker_durable.ledger import Ledger
from openworker_durable.recovery import Trigger
from tests.bench.figures import Pairs, Result, clocked, median

_numbers = itertools.count()


def lookup(what: str = "") -> dict[str, str]:
    """Read something."""
    return {"found": what}


def send(what: str = "") -> dict[str, str]:
    """Do something that counts."""
    return {"sent": what + "x" * 1000}


tool(lookup, metadata=ToolMetadata(category="search", risk_level="low"))
tool(send, metadata=ToolMetadata(category="mail", risk_level="high", requires_approval=True))


def provider(calls: int) -> ScriptedProvider:
    """Return a provider that answers a message with `calls` sends, and their results with text."""

    def answer(messages: list[Message]) -> AssistantTurn:
        if messages[-1]["role"] != "user":
            return AssistantTurn(text="done")
        made = [ToolCall(f"c{next(_numbers)}", "send", {"what": str(n)}) for n in range(calls)]
        return AssistantTurn(tool_calls=made, finish_reason="tool_calls")

    return ScriptedProvider(answer)


def make_manager(folder: Path, calls: int = 1) -> SessionManager:
    """Return a manager whose prompts are allowed as soon as they are before the person."""
    manager = SessionManager(data_dir=folder, provider=provider(calls), tools=[lookup, send])

    async def announce(item: InboxItem) -> None:
        manager.persist_session(item.session_id)
        manager.inbox.resolve(item.id, "allow")

    patched: Any = manager
    patched._announce = announce
    return manager


class Switch:
    """Puts the plugin's methods on and off the host's classes, quickly, for interleaved runs."""

    def __init__(self, attachment: Attachment) -> None:
        done = attachment.patches._done
        self._before = [(cls, name, own) for cls, name, own in done]
        self._after = [(cls, name, cls.__dict__[name]) for cls, name, _ in done]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Be the host alone for a while."""
        for cls, name, own in reversed(self._before):
            if callable(own):
                setattr(cls, name, own)
            else:
                delattr(cls, name)
        try:
            yield
        finally:
            for cls, name, method in self._after:
                setattr(cls, name, method)


class Hosts:
    """Two managers, one made by the host alone, one with the plugin attached."""

    def __init__(self, folder: Path, calls: int = 1) -> None:
        self.alone = make_manager(folder / "alone", calls)
        self.attachment = attach(REFERENCE)
        self.durable = make_manager(folder / "durable", calls)
        self.switch = Switch(self.attachment)

    @property
    def ledger(self) -> Ledger:
        """Return the ledger of the manager with the plugin."""
        found: Ledger = self.attachment.runtimes[0].ledger
        return found

    async def close(self) -> None:
        """Close both and detach."""
        await self.durable.aclose()
        with self.switch.off():
            await self.alone.aclose()
        self.attachment.detach()


@contextmanager
def reads_counted() -> Iterator[list[str]]:
    """Count the queries that reach any ledger."""
    seen: list[str] = []
    real = Ledger.fetch

    def fetch(ledger: Ledger, query: Any) -> Any:
        seen.append(query.name)
        return real(ledger, query)

    with mock.patch.object(Ledger, "fetch", fetch):
        yield seen


# -- calls that are not recorded
async def unprotected(result: Result, folder: Path, blocks: int) -> None:
    """Time the path of a read-only call with and without the plugin, block by block."""
    hosts = Hosts(folder)
    durable, alone = _reader(hosts.durable), None
    with hosts.switch.off():
        alone = _reader(hosts.alone)
    direct, whole = Pairs(), Pairs()
    before = hosts.ledger.commits
    with reads_counted() as reads:
        for n in range(blocks):
            for pairs, path, size in ((direct, _direct, 100), (whole, _whole, 20)):
                await _block(hosts, pairs, path, (durable, alone), size, first=n % 2 == 0)
    result.add(
        "unprotected_call_overhead_us", direct.difference * 1e6, "us", at_most=10,
        note=f"authorise, run, record, audit; {median(direct.other) * 1e6:.0f} us alone",
    )  # fmt: skip
    result.add(
        "unprotected_whole_path_overhead_us", whole.difference * 1e6, "us",
        note=f"the same with its thread and events; {median(whole.other) * 1e6:.0f} us alone",
    )  # fmt: skip
    result.add(
        "unprotected_ledger_commits", hosts.ledger.commits - before, "count", exactly=0,
        note=f"over {blocks * 120} calls",
    )  # fmt: skip
    result.add("unprotected_ledger_reads", len(reads), "count", exactly=0)
    _audit_rows(result, hosts, blocks)
    await hosts.close()


def _reader(manager: SessionManager) -> Any:
    engine = manager.get_engine("bench")
    engine.audit_sink = lambda event: None
    return engine


async def _block(
    hosts: Hosts, pairs: Pairs, path: Callable[..., Any], engines: tuple[Any, Any], size: int,
    *, first: bool,
) -> None:  # fmt: skip
    durable, alone = engines

    async def on() -> None:
        pairs.one.append(await path(durable, size))

    async def off() -> None:
        with hosts.switch.off():
            pairs.other.append(await path(alone, size))

    for step in (on, off) if first else (off, on):
        await step()


async def _direct(engine: Any, size: int) -> float:
    """Return seconds for one call by way of the engine's own steps, in this thread."""
    call = ToolCall("r1", "lookup", {"what": "q"})

    async def run() -> None:
        for _ in range(size):
            engine._audit(call, stage="proposed")
            async for _item in engine._authorize(call):
                pass
            engine._audit(call, stage="started")
            value, status = engine._execute_sync(call)
            engine._record_result(call, value, status)
        engine.messages.clear()

    return await _seconds(run) / size


async def _whole(engine: Any, size: int) -> float:
    """Return seconds for one call by way of the engine's tool handling."""

    async def run() -> None:
        for n in range(size):
            call = ToolCall(f"r{n}", "lookup", {"what": "q"})
            async for _event in engine._handle_tool_calls([call]):
                pass
        engine.messages.clear()

    return await _seconds(run) / size


async def _seconds(run: Callable[[], Any]) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await run()
    return loop.time() - begun


def _audit_rows(result: Result, hosts: Hosts, blocks: int) -> None:
    """Time one audit row with and without our trigger, no sync in the way."""
    event = {"tool": "lookup", "stage": "finished", "session_id": "bench", "arguments": {}}
    for manager in (hosts.durable, hosts.alone):
        manager.audit_store._conn.execute("PRAGMA synchronous = OFF")
        manager.audit_store._conn.execute("PRAGMA journal_mode = MEMORY")
    pairs = Pairs()

    def rows(manager: SessionManager) -> float:
        def append() -> None:
            for _ in range(20):
                manager.audit_store.append(event)

        return clocked(append) / 20

    for _ in range(blocks):
        pairs.one.append(rows(hosts.durable))
        with hosts.switch.off():
            pairs.other.append(rows(hosts.alone))
    result.add(
        "audit_row_overhead_us", pairs.difference * 1e6, "us",
        note=f"one of three for each read-only call; {median(pairs.other) * 1e6:.0f} us alone",
    )  # fmt: skip


async def per_reply(result: Result, folder: Path, blocks: int) -> None:
    """Time what every reply and every turn pays, with a long thread."""
    hosts = Hosts(folder, 0)
    engine = hosts.durable.get_engine("bench")
    for n in range(500):
        call = ToolCall(f"h{n}", "lookup", {"what": str(n)})
        engine.messages.append({"role": "user", "content": "go"})
        engine._accept(AssistantTurn(tool_calls=[call], finish_reason="tool_calls"))
        engine._record_result(call, {"found": "x"}, "ok")
    binding = binding_of(engine)
    assert binding is not None
    times, turns = [], []
    for n in range(blocks):
        turn = AssistantTurn(tool_calls=[ToolCall(f"n{n}", "lookup", {})])
        times.append(await _seconds(partial(binding.admit, turn)))
        turns.append(await _seconds(lambda: _triage(hosts)))
    result.add(
        "reply_of_reads_admitted_us", median(times) * 1e6, "us", note="thread of 1500 messages"
    )
    result.add("triage_of_an_idle_turn_us", median(turns) * 1e6, "us", note="the same thread")
    with reads_counted() as reads:
        await hosts.durable.deliver_to_session("other", "only text")
    result.add("ledger_reads_of_a_turn", len(reads), "count", note=", ".join(sorted(set(reads))))
    await hosts.close()


async def _triage(hosts: Hosts) -> None:
    runtime = hosts.attachment.runtimes[0]
    binding = binding_of(hosts.durable._engines["bench"])
    assert binding is not None
    await runtime.settler.triage(binding.port, Trigger.MESSAGE)


# -- approved calls
async def approved(result: Result, folder: Path, rounds: int, calls: int = 50) -> None:
    """Time turns of many approved calls: with the plugin, alone, and alone in WAL mode.

    Each round has fresh folders, because a host rewrites its whole inbox at every prompt.
    """
    times: dict[str, list[float]] = {"plugin": [], "alone": [], "wal": []}
    commits = 0
    for n in range(rounds):
        hosts = Hosts(folder / str(n), calls)
        with hosts.switch.off():
            wal = make_manager(folder / str(n) / "wal", calls)
        wal.audit_store._conn.execute("PRAGMA journal_mode = WAL")
        hosts.ledger.run(verbs.note, "", "", "bench", "", "the file is open and migrated")
        before = hosts.ledger.commits
        ways = [("plugin", hosts.durable), ("alone", hosts.alone), ("wal", wal)]
        for name, manager in ways[n % 3 :] + ways[: n % 3]:
            if name == "plugin":
                times[name].append(await _turn(manager, calls))
            else:
                with hosts.switch.off():
                    times[name].append(await _turn(manager, calls))
        commits += hosts.ledger.commits - before
        with hosts.switch.off():
            await wal.aclose()
        await hosts.close()
    found = {name: median(seconds) for name, seconds in times.items()}
    for key, other, goal in (
        ("host_call_with_plugin_vs_without", "alone", {"at_most": 1.0}),
        ("host_call_with_plugin_vs_host_in_wal", "wal", {}),
    ):
        note = f"{found['plugin'] * 1e3:.2f} ms against {found[other] * 1e3:.2f} ms"
        result.add(key, found["plugin"] / found[other], "ratio", note=note, **goal)
    result.add(
        "commits_per_approved_host_call", commits / (rounds * calls), "count",
        note=f"dispatch and outcome, and coverage once for {calls} calls",
    )  # fmt: skip


async def _turn(manager: SessionManager, calls: int) -> float:
    """Return seconds for one call of a turn that has many of them."""
    seconds = await _seconds(lambda: manager.deliver_to_session("s", "go"))
    assert len(manager.session_messages("s")) == calls + 3
    return seconds / calls
