"""One way of running the real host, doing pieces of work that `host_cost` asks for.

python -m tests.bench.host_child alone|wal|plugin [PROFILE]    (one JSON line in, seconds out)

With PROFILE the work is profiled into that file, event loop thread only.
"""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_numbers = itertools.count()


class World:
    """A fresh state folder, and a manager whose prompts are allowed by a task of their own."""

    def __init__(self, folder: Path, way: str, provider: Any) -> None:
        # The host reads its person's folders from these; a bench must not touch the real ones.
        os.environ["COWORKER_STATE_DIR"] = str(folder / "person")
        os.environ["COWORKER_SCRATCH_BASE"] = str(folder / "scratch")
        from coworker.permissions import Mode
        from coworker.server.manager import SessionManager

        (folder / "project").mkdir(parents=True)
        self.manager: Any = SessionManager(
            workspace=folder / "project", data_dir=folder / "state", provider=provider,
            mode=Mode.INTERACTIVE,
        )  # fmt: skip
        if way == "wal":
            self.manager.audit_store._conn.execute("PRAGMA journal_mode = WAL")
        self._tasks: set[asyncio.Task[Any]] = set()
        self.manager.mirror_inbox_item = self._mirror

    async def _mirror(self, item: Any) -> None:
        task = asyncio.ensure_future(self.manager.resolve_inbox(item.id, "allow"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def turn(self, calls: int) -> float:
        """Return seconds of one turn of approved calls."""
        engine = self.manager.get_engine("bench", extra_tools=[_tool()])
        begun = time.perf_counter()
        await self.manager.deliver_to_session("bench", "go")
        taken = time.perf_counter() - begun
        done = sum(m.get("role") == "tool" for m in engine.messages)
        if done != calls:
            raise RuntimeError(f"{done} of {calls} calls were answered")
        return taken

    async def save(self, count: int) -> float:
        """Return median seconds of saving two more messages of a thread that long."""
        engine = self.manager.get_engine("bench", extra_tools=[_tool()])
        for n in range(count - len(engine.messages)):
            engine.messages.append({"role": "user" if n % 2 else "assistant", "content": "x" * 400})
        self.manager.save("bench", engine)
        times = []
        for _ in range(15):
            engine.messages += [
                {"role": "user", "content": "y"},
                {"role": "assistant", "content": "z"},
            ]
            begun = time.perf_counter()
            self.manager.save("bench", engine)
            times.append(time.perf_counter() - begun)
        return sorted(times)[len(times) // 2]


def _tool() -> Any:
    from aisuite import ToolMetadata

    def file_report(what: str = "") -> dict[str, str]:
        """File a report."""
        return {"filed": what + "x" * 1000}

    made: Any = file_report
    made.__aisuite_tool_metadata__ = ToolMetadata(
        category="reports", risk_level="high", requires_approval=True
    )
    return made


def scripted(calls: int, *, each: int) -> Any:
    """Return a provider that makes `calls` calls in all, `each` in a reply, then says done."""
    from coworker.providers import AssistantTurn, ModelCapabilities, ProviderClient, ToolCall

    class Scripted(ProviderClient):  # type: ignore[misc]  # the host may not be installed
        left = calls

        def complete(self, **_: Any) -> Any:
            if not self.left:
                return AssistantTurn(text="done")
            self.left -= each
            made = [
                ToolCall(id=f"c{next(_numbers)}", name="file_report", arguments={"what": str(n)})
                for n in range(each)
            ]
            return AssistantTurn(tool_calls=made, finish_reason="tool_calls")

        def capabilities(self, model: str) -> Any:
            return ModelCapabilities()

    return Scripted()


async def do(way: str, work: str, folder: str, calls: int = 0, count: int = 0) -> float:
    """Do one piece of work in a new folder; return seconds."""
    each = 1 if work == "replies" else calls
    world = World(Path(folder), way, scripted(calls, each=each))
    try:
        return await (world.save(count) if work == "save" else world.turn(calls))
    finally:
        await world.manager.aclose()


def main(way: str, profile: str = "") -> None:
    """Serve until the input ends."""
    if way == "plugin":
        from openworker_durable.hosts.attach import attach
        from openworker_durable.hosts.openworker import OPENWORKER

        attach(OPENWORKER)
    profiler = cProfile.Profile() if profile else None
    for line in sys.stdin:
        work = json.loads(line)
        if profiler:
            profiler.enable()
        taken = asyncio.run(do(way, **work))
        if profiler:
            profiler.disable()
        print(taken, flush=True)
    if profiler:
        profiler.dump_stats(profile)


if __name__ == "__main__":
    main(*sys.argv[1:])
