"""G9, C23: the next attempt by policy, asked for by two processes at once, and across a kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openworker_durable.ledger import Ledger
from tests import needs
from tests.contract.kit import audits
from tests.contract.policies import KEYED, again, attempts, lost, under

ROOT = Path(__file__).resolve().parents[2]

RACE = """
import sys
from pathlib import Path
from openworker_durable.errors import AlreadyRecorded
from openworker_durable.ledger import Ledger
from tests.contract.policies import KEYED, again, under
ledger = Ledger(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    try:
        print(again(ledger, under(KEYED, f"c{number}"), owner=sys.argv[3]))
    except AlreadyRecorded:
        print("recorded")
ledger.close()
"""
CALLS = 40


@pytest.mark.crash
def test_g3_g9_of_two_processes_at_once_exactly_one_makes_the_attempt(
    ledger: Ledger, path: Path
) -> None:
    for number in range(CALLS):
        lost(ledger, under(KEYED, f"c{number}"))
    said = _race(path, ("p1", "p2"))
    for number in range(CALLS):
        assert sorted((said["p1"][number], said["p2"][number])) == ["2", "recorded"]
        winner = next(p for p in said if said[p][number] == "2")
        first, second = attempts(ledger, under(KEYED, f"c{number}"))
        assert (first.superseded, second.owner) == (True, winner)
    started = [a["execution_id"] for a in audits(path) if a["attempt"] == 2]
    assert len(started) == len(set(started)) == CALLS


def _race(path: Path, owners: tuple[str, ...]) -> dict[str, list[str]]:
    """Let one process for each owner ask for the next attempt of every call, all at once."""
    children = {
        owner: subprocess.Popen(
            [sys.executable, "-c", RACE, str(path), str(CALLS), owner],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for owner in owners
    }  # fmt: skip
    for child in children.values():
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children.values():
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = {owner: child.communicate(timeout=60)[0].split() for owner, child in children.items()}
    assert [child.returncode for child in children.values()] == [0] * len(owners)
    return said


KILLED = """
import os, signal, sys
from pathlib import Path
from openworker_durable.ledger import Ledger
from tests.contract.policies import KEYED, again, under
def hit(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
again(Ledger(Path(sys.argv[1]), failpoint=hit), under(KEYED))
"""


@pytest.mark.crash
@needs.sigkill
@pytest.mark.parametrize(("when", "made"), [("before", 1), ("after", 2)])
def test_c23_killed_around_the_commit_the_attempt_is_there_or_not(
    ledger: Ledger, path: Path, when: str, made: int
) -> None:
    what = lost(ledger, under(KEYED))
    argv = [sys.executable, "-c", KILLED, str(path), f"commit.{when}:retry"]
    assert subprocess.run(argv, check=False, timeout=60, cwd=ROOT).returncode == -9
    there = attempts(ledger, what)
    assert len(there) == made
    assert there[0].superseded is (made == 2)
    assert [a["attempt"] for a in audits(path) if a["stage"] == "dispatched"] == [1, 2][:made]
    if made == 1:
        assert again(ledger, what) == 2
