"""G9, C06, C14, C27: locks that live exactly as long as a process, or as a turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openworker_durable.errors import SessionHeld
from openworker_durable.owner import Owner, ServerLock
from tests import needs

CHILD = """
import sys
from pathlib import Path
from openworker_durable.owner import Owner, ServerLock
owner, server = Owner(Path(sys.argv[1])), ServerLock(Path(sys.argv[1]))
if len(sys.argv) > 2:
    owner.hold(sys.argv[2])
print(owner.name, server.take(), flush=True)
for line in sys.stdin:
    if line == "release\\n":
        owner.let_go(sys.argv[2])
    elif line == "close\\n":
        owner.close()
        server.close()
    print("done", flush=True)
"""


class Child:
    """Another process with a life of its own in the same state folder."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.name, server = self.read().split()
        self.server = server == "True"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        assert self.read() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def child(folder: Path, *args: str) -> Iterator[Child]:
    other = Child(folder, *args)
    try:
        yield other
    finally:
        other.kill()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.close()


def test_g9_an_owner_is_alive_to_itself_and_strangers_are_not(owner: Owner) -> None:
    assert owner.is_alive(owner.name)
    assert not owner.is_alive("0" * 32)
    assert not owner.is_alive("")


@pytest.mark.crash
def test_g9_c14_alive_while_its_process_lives_and_dead_after_it_is_killed(
    owner: Owner, tmp_path: Path
) -> None:
    with child(tmp_path) as other:
        assert other.name != owner.name
        assert owner.is_alive(other.name)
        assert owner.is_alive(other.name), "asking does not take the lock away"
        other.kill()
        assert not owner.is_alive(other.name)
        assert not owner.is_alive(other.name), "asking does not bring it back"


@pytest.mark.crash
@needs.sigstop
def test_g9_c27_a_stopped_process_is_alive(owner: Owner, tmp_path: Path) -> None:
    """As a laptop that sleeps; no clock is asked."""
    with child(tmp_path) as other:
        os.kill(other.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, other.process.pid, os.WSTOPPED | os.WNOWAIT)
        assert owner.is_alive(other.name)
        os.kill(other.process.pid, signal.SIGCONT)
        other.tell("close")
        assert not owner.is_alive(other.name)


def test_g9_two_lives_of_one_folder_know_each_other(owner: Owner, tmp_path: Path) -> None:
    other = Owner(tmp_path)
    assert owner.is_alive(other.name)
    assert other.is_alive(owner.name)
    other.close()
    other.close()
    assert not owner.is_alive(other.name)


def test_a_process_that_was_forked_does_not_end_its_parents_life(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    owner.close()
    monkeypatch.undo()
    other = Owner(tmp_path)
    assert other.is_alive(owner.name)
    other.close()


# -- sessions
@pytest.mark.crash
def test_c06_a_session_held_elsewhere_is_refused_and_the_holder_named(
    owner: Owner, tmp_path: Path
) -> None:
    with child(tmp_path, "s") as other:
        with pytest.raises(SessionHeld, match=rf"process {other.process.pid}\b") as held:
            owner.hold("s")
        assert "wait until it is done there" in str(held.value)
        assert not owner.holds("s")
        with owner.hold("another"):
            pass
        other.tell("release")
        with owner.hold("s"):
            assert owner.holds("s")


@pytest.mark.crash
def test_c06_a_session_is_free_when_its_holder_is_killed(owner: Owner, tmp_path: Path) -> None:
    with child(tmp_path, "s") as other:
        with pytest.raises(SessionHeld):
            owner.hold("s")
        other.kill()
        with owner.hold("s"):
            assert owner.holds("s")


def test_c06_a_second_hold_in_the_same_process_is_refused(owner: Owner) -> None:
    with owner.hold("s") as hold:
        with pytest.raises(SessionHeld, match="another turn of this process"):
            owner.hold("s")
        assert owner.holds("s"), "the refused one releases nothing"
        hold.release()
        hold.release()
        assert not owner.holds("s")
    owner.hold("s").release()


def test_sessions_with_like_names_are_different_locks(owner: Owner) -> None:
    names = ["s", "S", "s/1", "s_1", "s:1", "../s", "\ud800", ""]
    holds = [owner.hold(name) for name in names]
    assert len({p.name.lower() for p in owner.folder.glob("session-*.lock")}) == len(names)
    for hold in holds:
        hold.release()


def test_two_owners_of_one_process_exclude_each_other(owner: Owner, tmp_path: Path) -> None:
    other = Owner(tmp_path)
    with owner.hold("s"), pytest.raises(SessionHeld):
        other.hold("s")
    with other.hold("s"):
        pass
    other.hold("s")
    other.close()
    owner.hold("s").release()


def test_a_holder_note_that_is_torn_is_no_error(owner: Owner, tmp_path: Path) -> None:
    other = Owner(tmp_path)
    with owner.hold("s"):
        for text in ("", "{", "[]", '{"pid": "x"}', '{"no": 1}'):
            (note,) = owner.folder.glob("session-*.holder")
            note.write_text(text)
            with pytest.raises(SessionHeld, match="another process"):
                other.hold("s")
    other.close()


# -- the server process
@pytest.mark.crash
def test_one_process_is_the_server_until_it_dies(tmp_path: Path) -> None:
    mine = ServerLock(tmp_path)
    with child(tmp_path) as other:
        assert other.server
        assert mine.take() is False
        assert not mine.held
        other.kill()
        assert mine.take() is True
    assert mine.held
    assert mine.take() is True
    with child(tmp_path) as late:
        assert not late.server
    mine.close()
    assert not mine.held
    with child(tmp_path) as later:
        assert later.server
