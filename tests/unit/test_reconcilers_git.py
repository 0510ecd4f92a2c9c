"""What a repository says of a commit or a push that was cut short, on real repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.models import ToolIdentity
from openworker_durable.reconciler import Call, Probe, Verdict, VerdictKind
from openworker_durable.reconcilers import git
from openworker_durable.reconcilers.git import Commit, Push, covers, recognised
from tests import needs

K = VerdictKind
pytestmark = needs.git


def run(folder: Path, *words: str) -> str:
    about = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *about, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    run(folder, "init", "-q")
    commit(folder, "first")
    return folder


def commit(folder: Path, message: str) -> None:
    run(folder, "commit", "-q", "--allow-empty", "-m", message)


def shell(folder: Path, command: str) -> Call:
    return Call("x1", 1, ToolIdentity(name="run_shell"), {"command": command}, folder)


def looked(made: Call, prepared: str, at: float = 0.0) -> Verdict:
    probe = Probe(
        made.execution_id, 1, made.tool, made.arguments, made.workspace, dispatched_at=at,
        prepared=prepared,
    )  # fmt: skip
    return git.look(probe)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("git commit -m 'one thing'", Commit("one thing")),
        ('git commit -am "one thing"', Commit("one thing")),
        ("git -C sub commit --message=a -m b", Commit("a\n\nb", "sub")),
        ("git push origin main", Push("origin", "main")),
        ("git push -u origin refs/heads/main", Push("origin", "main")),
    ],
)
def test_one_plain_command_is_recognised(command: str, what: Any) -> None:
    assert recognised({"command": command}) == what


@pytest.mark.parametrize(
    "command",
    [
        "git commit", "git commit -m", "git commit --amend -m x", "git commit -m x file",
        "git commit -m x && git push origin main", "git commit -m x; rm y", "git commit -m x | cat",
        'git commit -m "$(date)"', 'git commit -m "`date`"', "git commit -m $X",
        "git push", "git push origin", "git push --force origin main", "git push origin +main",
        "git push origin a:b", "git push origin :main", "git push --tags origin", "git status",
        "cd x && git commit -m y", "git commit -m 'x", "FOO=1 git commit -m x", "git commit -m x\n",
        "git commit -m x > out", "sudo git commit -m x", "", None, 7,
    ],
)  # fmt: skip
def test_anything_more_or_else_is_not(command: Any) -> None:
    assert not covers({"command": command})


def test_a_command_in_the_background_is_not() -> None:
    assert not covers({"command": "git commit -m x", "run_in_background": True})


def test_a_commit_that_is_there_happened(repo: Path) -> None:
    made = shell(repo, "git commit -q -m 'second\n'")
    made = shell(repo, "git commit -q -m second")
    before = git.prepare(made)
    assert looked(made, before).kind is K.CANNOT_TELL
    commit(repo, "second")
    verdict = looked(made, before)
    assert verdict.kind is K.HAPPENED
    assert verdict.result["exit_code"] == 0
    assert "lost" in verdict.result["note"]


def test_a_commit_with_this_message_from_before_is_not_this_one(repo: Path) -> None:
    commit(repo, "second")
    made = shell(repo, "git commit -q -m second")
    before = git.prepare(made)
    assert looked(made, before).kind is K.CANNOT_TELL
    assert looked(made, run(repo, "rev-parse", "HEAD~1"), at=9e9).kind is K.CANNOT_TELL


def test_the_first_commit_of_a_repository(tmp_path: Path) -> None:
    run(tmp_path, "init", "-q")
    made = shell(tmp_path, "git commit -m first")
    before = git.prepare(made)
    commit(tmp_path, "first")
    assert looked(made, before).kind is K.HAPPENED


def test_a_push_shows_at_the_remote(repo: Path, tmp_path: Path) -> None:
    run(tmp_path, "init", "-q", "--bare", "there.git")
    run(repo, "remote", "add", "origin", str(tmp_path / "there.git"))
    run(repo, "branch", "-M", "main")
    made = shell(repo, "git push origin main")
    assert looked(made, "").kind is K.CANNOT_TELL
    run(repo, "push", "-q", "origin", "main")
    assert looked(made, "").kind is K.HAPPENED
    commit(repo, "more")
    assert looked(made, "").kind is K.CANNOT_TELL


def test_it_only_reads(repo: Path) -> None:
    made = shell(repo, "git commit -m second")
    before = sorted(p.name for p in (repo / ".git").rglob("*"))
    looked(made, git.prepare(made))
    assert sorted(p.name for p in (repo / ".git").rglob("*")) == before


def test_no_repository_and_no_git_tell_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shell(tmp_path, "git commit -m x")
    assert git.prepare(made) == ""
    assert looked(made, "").kind is K.CANNOT_TELL
    monkeypatch.setenv("PATH", "")
    assert looked(made, "").kind is K.CANNOT_TELL
