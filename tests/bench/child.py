"""Runs in a child process of its own: calls whose syncs are counted, and the cost of attaching.

python -m tests.bench.child record|host|alone FOLDER CALLS
python -m tests.bench.child attach
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path


def attach_ms() -> str:
    """Return milliseconds to import the package, to import the host, and to attach."""
    begun = time.perf_counter()
    import openworker_durable

    imported = time.perf_counter()
    import openworker_durable.hosts.reference
    from openworker_durable.hosts.names import REFERENCE

    host = time.perf_counter()
    openworker_durable.attach(REFERENCE).detach()
    done = time.perf_counter()
    parts = (imported - begun, host - imported, done - host)
    return " ".join(f"{part * 1e3:.3f}" for part in parts)


def record_calls(folder: Path, calls: int) -> None:
    """Make protected calls through the record alone."""
    from tests.bench.record import Record

    record = Record(folder)
    for _ in range(calls):
        record.call()
    record.close()


async def host_calls(folder: Path, calls: int, *, plugin: bool) -> None:
    """Run one turn of approved calls on the reference host."""
    from openworker_durable.hosts.attach import attach
    from openworker_durable.hosts.names import REFERENCE
    from tests.bench.hosts import make_manager

    attachment = attach(REFERENCE) if plugin else None
    manager = make_manager(folder / "state", calls)
    await manager.deliver_to_session("s", "go")
    await manager.aclose()
    if attachment is not None:
        attachment.detach()


def main(argv: list[str]) -> None:
    """Do what the arguments say."""
    if argv[0] == "attach":
        print(attach_ms())
    elif argv[0] == "record":
        record_calls(Path(argv[1]), int(argv[2]))
    else:
        asyncio.run(host_calls(Path(argv[1]), int(argv[2]), plugin=argv[0] == "host"))


if __name__ == "__main__":
    main(sys.argv[1:])
