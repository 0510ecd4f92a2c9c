"""Field cases about torn files, and about stores of other versions, on the real host: C22, C26."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.states import SCHEMA_VERSION
from tests.real.nursery import Real

pytestmark = pytest.mark.crash


def _open(life: Any, kill: str = "") -> None:
    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")), kill=kill)


async def _killed(life: Any) -> None:
    _open(life, "in_after")
    await life.attended_and_allowed("go")


async def _halted(life: Any) -> Any:
    _open(life)
    await life.go_on("resume")
    return life.facts()


async def _opened_torn(life: Any, name: str, cuts: list[int]) -> Any:
    """Open the state folder once for each place its file is cut at; one process for all."""
    whole, seen = life.state, []
    for cut in cuts:
        life.state = life.folder / f"cut{cut}"
        shutil.copytree(whole, life.state, ignore=shutil.ignore_patterns("*-shm", "durable-locks"))
        file = life.state / name
        content = file.read_bytes()
        file.write_bytes(content[:cut])
        seen.append([cut, await _one_torn(life, file, content[:cut])])
    return seen


async def _one_torn(life: Any, file: Path, left: bytes) -> str:
    """Return what is not right, empty when all is."""
    _open(life)
    life.person("deny")  # a reply that was lost is made again, and asked about
    await life.start_up()
    await life.quiet()
    problems = [] if len(life.items()) == 1 else [f"{len(life.items())} items"]
    await life.attended("and now?")
    await life.quiet()
    problems += life.facts()["faults"] + life.facts()["disk"]
    problems += [] if len(life.items()) == 1 else [f"{len(life.items())} items later"]
    problems += [] if life.messages()[-1]["content"] == "done" else ["the model was not called"]
    aside = [p.read_bytes() for p in file.parent.glob(f"{file.name}.*unreadable*")]
    lines = left.splitlines(keepends=True)
    torn = lines[-1] if lines and not lines[-1].endswith(b"\n") else b""
    whole = torn.endswith(b"}")  # only the end of the line is missing
    if file.suffix == ".jsonl" and torn and not whole and not any(torn in a for a in aside):
        problems.append("the torn line was not kept")
    if file.suffix == ".json" and left and left not in aside:
        problems.append("the torn file was not kept")
    await life.manager.aclose()
    return "; ".join(map(str, problems))


async def _length(life: Any, name: str) -> int:
    return int((life.state / name).stat().st_size)


def _cuts(first: int, size: int, count: int = 12) -> list[int]:
    """Return places to cut at: some around each end, the rest spread."""
    step = max(1, (size - first) // count)
    return sorted({*range(first, size, step), first, first + 1, size - 2, size - 1})


@pytest.mark.parametrize("half", [0, 1])
def test_c22_a_torn_inbox_stops_nothing(real: Real, half: int) -> None:
    real.killed(_killed)
    real.run(_halted)
    size = real.run(_length, name="inbox.json")
    cuts = _cuts(0, size)[half::2]
    seen = real.run(_opened_torn, name="inbox.json", cuts=cuts)
    assert [s for s in seen if s[1]] == []
    assert real.effects() == ["send a"]


@pytest.mark.parametrize("half", [0, 1])
def test_c22_a_torn_thread_stops_nothing(real: Real, half: int) -> None:
    real.killed(_killed)
    name = f"conversations/{real.thread_file().name}"
    content = real.thread_file().read_bytes()
    last = content.rindex(b"\n", 0, len(content) - 1) + 1
    cuts = _cuts(last, len(content))[half::2]
    seen = real.run(_opened_torn, name=name, cuts=cuts)
    assert [s for s in seen if s[1]] == []
    assert real.effects() == ["send a"]


async def _newer(life: Any) -> Any:
    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")))
    life.person()
    await life.start_up()
    await life.attended("go")
    return {"messages": life.messages(), "log": life.log_lines()}


async def _nothing(life: Any) -> Any:
    _open(life)
    await life.start_up()
    return len(life.messages())


def test_c26_a_newer_store_is_refused_clearly(real: Real) -> None:
    real.run(_nothing)
    with closing(sqlite3.connect(real.folder / "state" / "coworker.db")) as db, db:
        db.execute("UPDATE durable_meta SET value = '99' WHERE key = 'schema_version'")
    said = real.run(_newer)
    assert real.effects() == []
    assert "newer openworker-durable" in str(said)
    assert said["messages"][0]["content"] == "go"


async def _migrates(life: Any, name: str) -> Any:
    from tests.real.script import call, reply

    (life.folder / name).touch()
    await life.until(lambda: len(list(life.folder.glob("ready*"))) == 2, "the other")
    life.open(reply(call("send", "call_0", to=name)), grants=["send"])
    await life.deliver("go", name)
    return life.facts(name)["faults"]


def test_c26_two_processes_open_a_fresh_store_at_once(real: Real) -> None:
    both = [real.start(_migrates, name=f"ready{i}") for i in range(2)]
    assert [one.end() for one in both] == [[], []]
    assert sorted(real.effects()) == ["send ready0", "send ready1"]
    assert _version(real) == str(SCHEMA_VERSION)


def _version(real: Real) -> str:
    with closing(sqlite3.connect(real.folder / "state" / "coworker.db")) as db:
        (row,) = db.execute("SELECT value FROM durable_meta WHERE key = 'schema_version'")
        return str(row[0])


async def _killed_while_migrating(life: Any, number: int) -> None:
    """Die at the n-th statement of this package's migration."""
    import sys

    from openworker_durable import _db
    from tests.real.life import die

    seen = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal seen
        if event != "line" or frame.f_code is not _db.migrate.__code__:
            return trace if frame.f_code is _db.migrate.__code__ else None
        seen += 1
        if seen == number:
            die()
        return trace

    sys.settrace(trace)
    threading.settrace(trace)
    _open(life)
    sys.settrace(None)
    die()


async def _works(life: Any) -> Any:
    _open(life)
    await life.go_on("message")
    return life.facts()


@pytest.mark.parametrize("number", [3, 6, 9, 12, 20])
def test_c26_killed_while_migrating_the_next_start_finishes(real: Real, number: int) -> None:
    real.killed(_killed_while_migrating, number=number)
    facts = real.run(_works)
    assert _version(real) == str(SCHEMA_VERSION)
    assert real.effects() == ["send a"]
    assert facts["states"] == ["succeeded"]
