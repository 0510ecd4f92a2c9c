"""Folders that hold no usable record: one sentence, its own exit status, no trace left."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from openworker_durable import cli_read
from openworker_durable.cli_read import EXITS, default_state_dir
from tests import needs
from tests.cli.records import CANARY, call, every_kind, files, record, run, run_json

READING = (["list"], ["show", "xb1"], ["history", "xb1"], ["doctor"])
posix_only = needs.posix_folders


def absent(state: Path) -> None:
    pass


def a_file(state: Path) -> None:
    state.write_text("not a folder")


def empty_folder(state: Path) -> None:
    state.mkdir()


def empty_file(state: Path) -> None:
    state.mkdir()
    (state / "coworker.db").touch()


def hosts_own(state: Path) -> None:
    """The host's file before anything protected ran, in the host's own journal mode."""
    state.mkdir()
    with sqlite3.connect(state / "coworker.db") as conn:
        conn.execute("CREATE TABLE audit_events (id INTEGER PRIMARY KEY, session_id TEXT)")
    conn.close()


def junk(state: Path) -> None:
    state.mkdir()
    (state / "coworker.db").write_bytes(b"this is no database at all, " * 400)


def odd_version(state: Path) -> None:
    _meddle(state, "UPDATE durable_meta SET value = 'soon' WHERE key = 'schema_version'")


def lost_table(state: Path) -> None:
    _meddle(state, "DROP TABLE tool_executions")


def newer(state: Path) -> None:
    _meddle(state, "UPDATE durable_meta SET value = '99' WHERE key = 'schema_version'")


def _meddle(state: Path, statement: str) -> None:
    every_kind(state)
    with sqlite3.connect(state / "coworker.db") as conn:
        conn.execute(statement)
    conn.close()


BROKEN = [
    (absent, "no_folder", "is not a folder; name OpenWorker's with --state"),
    (a_file, "no_folder", "is not a folder; name OpenWorker's with --state"),
    (empty_folder, "no_ledger", "holds no record"),
    (empty_file, "no_ledger", "holds no record"),
    (hosts_own, "no_ledger", "holds no record"),
    (junk, "corrupt", "is damaged"),
    (odd_version, "corrupt", "is damaged"),
    (lost_table, "corrupt", "is damaged"),
    (newer, "too_new", "upgrade the package, nothing was changed"),
]


@pytest.mark.parametrize("args", READING, ids=lambda a: a[0])
@pytest.mark.parametrize(("make", "code", "says"), BROKEN, ids=[m.__name__ for m, _, _ in BROKEN])
def test_one_sentence_and_its_own_exit_status(
    tmp_path: Path, make: object, code: str, says: str, args: list[str]
) -> None:
    assert callable(make)
    state = tmp_path / "state"
    make(state)
    before = files(tmp_path)
    result = run(*args, "--state", state)
    assert result.exit_code == EXITS[code][0]
    assert says in result.stderr
    assert str(state) in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    found = run_json(*args, "--state", state, code=EXITS[code][0])
    found = found["ledger"]["error"] if args == ["doctor"] else found
    assert set(found) == {"error", "code"}
    assert found["code"] == code
    assert says in found["error"]
    assert files(tmp_path) == before


def test_exit_statuses_are_distinct() -> None:
    numbers = [number for number, _ in EXITS.values()]
    assert len(set(numbers)) == len(numbers)
    assert 0 not in numbers


def test_doctor_names_the_schema_of_a_newer_record(tmp_path: Path) -> None:
    newer(tmp_path / "state")
    ledger = run_json("doctor", "--state", tmp_path / "state", code=6)["ledger"]
    assert (ledger["schema_version"], ledger["states"]) == (99, None)


def test_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_read, "WAIT_SECONDS", 0.0)
    every_kind(tmp_path)
    holder = sqlite3.connect(tmp_path / "coworker.db", isolation_level=None)
    try:
        holder.execute("PRAGMA journal_mode = DELETE")
        holder.execute("BEGIN EXCLUSIVE")
        for args in READING:
            result = run(*args, "--state", tmp_path)
            assert result.exit_code == 7
            assert "is locked by another program; wait" in result.stderr
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    assert run("list", "--state", tmp_path).exit_code == 0


def test_no_command_stumbles_over_a_damaged_file(tmp_path: Path) -> None:
    whole = (every_kind(tmp_path / "state") / "coworker.db").read_bytes()
    chance = random.Random(5)
    seen = set()
    for turn in range(60):
        state = tmp_path / "broken"
        state.mkdir(exist_ok=True)
        content = bytearray(whole)
        for _ in range(chance.choice([1, 8, 200])):
            content[chance.randrange(100, len(content))] = chance.randrange(256)
        if turn % 4 == 0:
            del content[chance.randrange(1, len(content)) :]
        (state / "coworker.db").write_bytes(content)
        for args in READING:
            result = run(*args, "--state", state)
            assert result.exception is None or isinstance(result.exception, SystemExit), (
                turn,
                args,
                result.exception,
            )
            assert CANARY not in result.output
            seen.add(result.exit_code)
        assert os.listdir(state) == ["coworker.db"]
    assert {0, 5} <= seen


# -- no trace is left


CRASH = """
import os, sys
from pathlib import Path
from tests.cli.records import every_kind
import openworker_durable.ledger as ledger
kept = []
ledger.Ledger.close = lambda self: kept.append(self)
every_kind(Path(sys.argv[1]))
os._exit(0)
"""


def crashed(state: Path) -> Path:
    """Make a record whose process died: the newest entries lie beside the main file."""
    state.mkdir()
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", CRASH, str(state)], check=True, cwd=root, timeout=60)
    assert (state / "coworker.db-wal").stat().st_size > 0
    return state


@pytest.mark.parametrize("args", READING, ids=lambda a: a[0])
@pytest.mark.parametrize("make", [every_kind, crashed])
def test_reading_leaves_no_file_behind(tmp_path: Path, make: object, args: list[str]) -> None:
    assert callable(make)
    state = make(tmp_path / "state")
    before = files(state)
    assert run(*args, "--state", state).exit_code == 0
    after = files(state)
    before.pop("coworker.db-shm", None)  # SQLite's index of the -wal file is rebuilt in place
    after.pop("coworker.db-shm", None)
    assert after == before


def test_reading_sees_what_a_living_process_wrote(tmp_path: Path) -> None:
    with record(tmp_path) as r:
        r.dispatch("a1")
        assert len(run_json("list", "--state", tmp_path)["executions"]) == 1
        r.dispatch("a2", ref="item-2")
        assert len(run_json("list", "--state", tmp_path)["executions"]) == 2


def test_a_write_in_the_middle_of_reading_is_noticed(tmp_path: Path) -> None:
    with record(tmp_path) as r:
        r.dispatch("a1")
    seen: list[int] = []

    def work(conn: sqlite3.Connection) -> int:
        if not seen:
            with record(tmp_path) as again:
                again.dispatch("a2", ref="item-2")
        seen.append(int(conn.execute("SELECT COUNT(*) FROM tool_executions").fetchone()[0]))
        return seen[-1]

    assert cli_read.read(tmp_path, work) == 2
    assert len(seen) == 2


NO_OVERRIDE = """
import ctypes, os, sys
if os.geteuid() == 0:  # an administrator may write anywhere, so that power is given up first
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):
        if libc.prctl(24, capability, 0, 0, 0):
            sys.exit(77)
"""


@posix_only
@pytest.mark.parametrize(
    ("kind", "code"), [("closed", 0), ("crashed", 0), ("without its index", 7)]
)
def test_a_folder_that_cannot_be_written_to(tmp_path: Path, kind: str, code: int) -> None:
    state = every_kind(tmp_path / "s") if kind == "closed" else crashed(tmp_path / "s")
    if kind == "without its index":
        (state / "coworker.db-shm").unlink()
    before = files(state)
    for path in [*state.iterdir(), state]:
        path.chmod(0o555 if path.is_dir() else 0o400)
    try:
        for args in (["list"], ["doctor"], ["show", "xb3"]):
            done = call(*args, "--state", state, "--json", before=NO_OVERRIDE)
            needs.need(done.returncode != 77, "the power to write anywhere cannot be given up here")
            assert done.returncode == code, done.stderr
            if code:
                assert b"copy both to a folder of your own" in done.stderr
    finally:
        state.chmod(0o700)
    assert files(state) == before


@posix_only
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    every_kind(tmp_path / "s")
    for closed in (tmp_path / "s" / "coworker.db", tmp_path / "s"):
        mode = closed.stat().st_mode
        closed.chmod(0)
        try:
            done = call("list", "--state", tmp_path / "s", before=NO_OVERRIDE)
        finally:
            closed.chmod(mode)
        needs.need(done.returncode != 77, "the power to read anything cannot be given up here")
        assert done.returncode == 7
        assert b"check who may read it" in done.stderr
        assert done.stderr.count(b"\n") == 1


# -- which folder


def test_the_usual_folder_is_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COWORKER_STATE_DIR", str(tmp_path))
    assert default_state_dir() == tmp_path
    monkeypatch.setenv("COWORKER_STATE_DIR", "~/elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert default_state_dir() == tmp_path / "elsewhere"
    monkeypatch.setenv("COWORKER_STATE_DIR", "")
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_state_dir() == tmp_path / ".config" / "coworker"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("APPDATA", str(tmp_path / "Roaming"))
    assert default_state_dir() == tmp_path / "Roaming" / "coworker"
    monkeypatch.delenv("APPDATA")
    assert default_state_dir() == tmp_path / ".config" / "coworker"


def test_the_variable_names_the_folder_and_state_overrides_it(tmp_path: Path) -> None:
    every_kind(tmp_path / "a")
    env: dict[str, str | None] = {"COWORKER_STATE_DIR": str(tmp_path / "a")}
    assert run("list", env=env).exit_code == 0
    assert run("list", "--state", tmp_path / "b", env=env).exit_code == 3


def test_a_real_process_prints_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    done = call("list", "--state", tmp_path / "none", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["code"] == "no_folder"
    assert done.stderr.startswith(b"openworker-durable: ")
    assert done.stderr.count(b"\n") == 1
