"""What a repository says of a commit or a push that was cut short, on real repositories."""

from __future__ import annotations

import http.server
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.models import ToolIdentity
from openworker_durable.reconciler import Call, Probe, Verdict, VerdictKind
from openworker_durable.reconcilers import git
from openworker_durable.reconcilers.commands import Commit, Push, recognised, words_of
from openworker_durable.reconcilers.git import covers
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
        ("git commit -m '\n a  \n\n\n\nb\n'", Commit(" a\n\nb")),
        ("git commit -m 'a; b && $(c) > d'", Commit("a; b && $(c) > d")),
        ("git commit -m été -n --allow-empty", Commit("été")),
        ("git commit --amend -m x", Commit("x", amend=True)),
        ("git commit --amend --no-edit", Commit(None, amend=True)),
        ("git push origin main", Push("origin", "main")),
        ("git push -u origin refs/heads/feature/x", Push("origin", "feature/x")),
        ("git push -u origin HEAD", Push("origin", "HEAD")),
        ("git push", Push()),
        ("git -C sub push origin", Push("origin", "", "sub")),
    ],
)
def test_one_plain_command_is_recognised(command: str, what: Any) -> None:
    assert recognised({"command": command}) == what


@pytest.mark.parametrize(
    "command",
    [
        "git commit", "git commit -m", "git commit --amend", "git commit -m x file",
        "git commit --no-edit", "git commit --amend --no-edit -m x", "git commit -m '  '",
        "git commit -m x && git push origin main", "git commit -m x; rm y", "git commit -m x | cat",
        'git commit -m "$(date)"', 'git commit -m "`date`"', "git commit -m $X", "git commit -m x&",
        "git push --force origin main", "git push origin +main", "git push origin main other",
        "git push origin a:b", "git push origin :main", "git push --tags origin", "git status",
        "git push https://token@example.org/x main", "git push ../x main", "git push -f",
        "git push origin refs/tags/v1", "git push origin @", "git push origin a,b",
        "cd x && git commit -m y", "git commit -m 'x", "FOO=1 git commit -m x", "git commit -m x\n",
        "git commit -m x > out", "sudo git commit -m x", "git commit -m x #y",
        "git commit -m \u2018x\u2019", "git commit -m 'x\u2019; rm y; \u2018z'", "git -C ~/x push",
        'git commit -m "x!"', "git commit -m {a,b}", "git commit -m x\\ y",
        "git commit -m x\u00a0y", "", None, 7,
    ],
)  # fmt: skip
def test_anything_more_or_else_is_not(command: Any) -> None:
    assert not covers({"command": command})


def test_a_command_in_the_background_is_not() -> None:
    assert not covers({"command": "git commit -m x", "run_in_background": True})


WORDS = st.lists(
    st.sampled_from(
        ["'a; b'", "'$a\n'", '"a b"', '"a\'"', "-m", "git", *"ab '\";&|$`\\<>()#\n*?~"]
    ),
    max_size=6,
)


@needs.sh
@given(WORDS.map("".join))
def test_what_is_recognised_reaches_a_shell_as_these_words_and_nothing_else(tail: str) -> None:
    command = f"git commit -m {tail}"
    words = words_of(command)
    if words is not None:
        script = f'git() {{ printf "%s\\0" git "$@"; }}\n{command}'
        done = subprocess.run(["sh", "-c", script], capture_output=True, check=False)
        assert done.stdout.decode().split("\0")[:-1] == words


def test_a_commit_that_is_there_happened(repo: Path) -> None:
    made = shell(repo, "git commit -q -m second")
    before = git.prepare(made)
    assert looked(made, before).kind is K.CANNOT_TELL
    commit(repo, "second")
    verdict = looked(made, before)
    assert verdict.kind is K.HAPPENED
    assert verdict.result["exit_code"] is None
    assert run(repo, "rev-parse", "HEAD")[:12] in verdict.result["output"]
    assert "lost" in verdict.result["output"]


def test_a_commit_happened_also_when_others_came_on_top_or_it_was_taken_back(repo: Path) -> None:
    made = shell(repo, "git commit -q -m second")
    before = git.prepare(made)
    commit(repo, "second")
    commit(repo, "third")
    assert looked(made, before).kind is K.HAPPENED
    run(repo, "reset", "-q", "--hard", "HEAD~2")
    assert looked(made, before).kind is K.HAPPENED


def test_a_commit_on_top_of_another_one_or_from_before_is_not_this_one(repo: Path) -> None:
    commit(repo, "second")
    made = shell(repo, "git commit -q -m second")
    before = git.prepare(made)
    assert looked(made, before).kind is K.CANNOT_TELL
    commit(repo, "between")
    commit(repo, "second")
    assert looked(made, before).kind is K.CANNOT_TELL
    run(repo, "reset", "-q", "--hard", "HEAD~2")
    commit(repo, "second")
    assert looked(made, before).kind is K.HAPPENED
    assert looked(made, before, at=9e9).kind is K.CANNOT_TELL


def test_a_commit_in_another_folder_of_the_shell_is_not_this_one(
    repo: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    run(other, "init", "-q")
    made = shell(repo, "git commit -q -m second")
    before = git.prepare(made)
    commit(other, "second")
    assert looked(made, before).kind is K.CANNOT_TELL
    inside = shell(tmp_path, "git -C other commit -q -m third")
    before = git.prepare(inside)
    commit(other, "third")
    assert looked(inside, before).kind is K.HAPPENED


def test_the_first_commit_of_a_repository(tmp_path: Path) -> None:
    run(tmp_path, "init", "-q")
    made = shell(tmp_path, "git commit -m first")
    before = git.prepare(made)
    assert looked(made, before).kind is K.CANNOT_TELL
    commit(tmp_path, "first")
    assert looked(made, before).kind is K.HAPPENED


@pytest.mark.parametrize(
    ("words", "command"),
    [(["-m", "better"], "-m better"), (["--no-edit", "--date=2020-01-01"], "--no-edit")],
)
def test_an_amended_commit_stands_beside_the_one_it_replaces(
    repo: Path, words: list[str], command: str
) -> None:
    commit(repo, "second")
    made = shell(repo, f"git commit --amend {command}")
    before = git.prepare(made)
    assert looked(made, before).kind is K.CANNOT_TELL
    run(repo, "commit", "-q", "--allow-empty", "--amend", *words)
    assert looked(made, before).kind is K.HAPPENED


def test_a_commit_on_top_of_the_one_to_be_amended_does_not_amend_it(repo: Path) -> None:
    commit(repo, "second")
    made = shell(repo, "git commit --amend -m better")
    before = git.prepare(made)
    commit(repo, "better")
    assert looked(made, before).kind is K.CANNOT_TELL


def test_a_commit_that_came_by_a_merge_or_a_reset_was_not_made_here(repo: Path) -> None:
    made = shell(repo, "git commit -m second")
    before = git.prepare(made)
    run(repo, "switch", "-q", "-c", "side")
    commit(repo, "side")
    run(repo, "switch", "-q", "-")
    run(repo, "merge", "-q", "--no-ff", "-m", "second", "side")
    assert looked(made, before).kind is K.CANNOT_TELL
    run(repo, "reset", "-q", "--hard", "HEAD~1")
    assert looked(made, before).kind is K.CANNOT_TELL


@pytest.fixture
def remote(repo: Path, tmp_path: Path) -> Path:
    run(tmp_path, "init", "-q", "--bare", "there.git")
    run(repo, "remote", "add", "origin", str(tmp_path / "there.git"))
    run(repo, "branch", "-M", "main")
    return tmp_path / "there.git"


@pytest.mark.parametrize("words", ["origin main", "-u origin HEAD"])
def test_a_push_is_seen_in_the_log_of_the_remote_branch(
    repo: Path, remote: Path, words: str
) -> None:
    made = shell(repo, f"git push {words}")
    before = git.prepare(made)
    assert looked(made, before).kind is K.CANNOT_TELL
    run(repo, "push", "-q", "origin", "main")
    remote.rename(remote.with_name("away.git"))
    assert looked(made, before).kind is K.HAPPENED
    assert looked(made, before, at=9e9).kind is K.CANNOT_TELL


def test_what_was_fetched_from_the_remote_was_not_pushed_from_here(
    repo: Path, remote: Path
) -> None:
    made = shell(repo, "git push origin main")
    before = git.prepare(made)
    run(repo, "push", "-q", str(remote), "main")
    run(repo, "fetch", "-q", "origin")
    remote.rename(remote.with_name("away.git"))
    assert looked(made, before).kind is K.CANNOT_TELL


def test_a_push_is_seen_at_the_remote(repo: Path, remote: Path) -> None:
    made = shell(repo, "git push origin main")
    before = git.prepare(made)
    run(repo, "push", "-q", str(remote), "main")
    assert looked(made, before).kind is K.HAPPENED
    commit(repo, "more")
    assert looked(made, before).kind is K.HAPPENED
    assert looked(made, git.prepare(made)).kind is K.CANNOT_TELL


def test_a_branch_that_was_put_back_to_the_remotes_was_not_pushed(repo: Path, remote: Path) -> None:
    run(repo, "push", "-q", "origin", "main")
    commit(repo, "more")
    made = shell(repo, "git push origin main")
    before = git.prepare(made)
    run(repo, "reset", "-q", "--hard", "origin/main")
    assert looked(made, before).kind is K.CANNOT_TELL


def test_a_bare_push_goes_where_git_says(repo: Path, remote: Path) -> None:
    bare = shell(repo, "git push")
    assert git.prepare(bare) == ""
    run(repo, "push", "-q", "-u", "origin", "main")
    commit(repo, "more")
    before = git.prepare(bare)
    assert looked(bare, before).kind is K.CANNOT_TELL
    run(repo, "push", "-q")
    assert looked(bare, before).kind is K.HAPPENED


@pytest.mark.parametrize(
    "setting",
    [
        ("push.default", "matching"), ("push.followTags", "true"),
        ("remote.origin.push", "refs/heads/main:refs/heads/x"), ("remote.origin.mirror", "true"),
        ("remote.origin.pushurl", "elsewhere.git"),
    ],
)  # fmt: skip
def test_a_push_that_does_more_than_it_says_is_left_to_a_person(
    repo: Path, remote: Path, setting: tuple[str, str]
) -> None:
    made = shell(repo, "git push origin main")
    assert git.prepare(made) != ""
    run(repo, "config", *setting)
    assert git.prepare(made) == ""
    run(repo, "config", "push.default", "current")
    assert looked(made, "").kind is K.CANNOT_TELL


def test_it_only_reads_and_the_note_holds_no_message(repo: Path, remote: Path) -> None:
    held = {p: p.read_bytes() for p in (repo / ".git").rglob("*") if p.is_file()}
    for words in ("commit -m canary", "commit --amend --no-edit", "push origin main"):
        made = shell(repo, f"git {words}")
        before = git.prepare(made)
        looked(made, before)
        assert "first" not in before
        assert "canary" not in before
    assert {p: p.read_bytes() for p in (repo / ".git").rglob("*") if p.is_file()} == held


@needs.sh
def test_no_password_is_asked_for_and_no_stored_one_is_used(
    repo: Path, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    helper = tmp_path / "helper"
    helper.write_text(f"#!/bin/sh\necho $0 $@ >> {asked}\n")
    helper.chmod(0o755)
    monkeypatch.setenv("GIT_ASKPASS", str(helper))
    run(repo, "config", "credential.helper", str(helper))
    with refusing_server() as address:
        run(repo, "config", "credential.http://127.0.0.1.helper", str(helper))
        run(repo, "remote", "set-url", "origin", f"{address}/x.git")
        made = shell(repo, "git push origin main")
        assert looked(made, git.prepare(made)).kind is K.CANNOT_TELL
    assert not asked.exists()


class _Refuse(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@contextmanager
def refusing_server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Refuse) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_no_repository_no_git_and_no_note_tell_nothing(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shell(tmp_path, "git commit -m first")
    assert git.prepare(made) == ""
    assert looked(made, "").kind is K.CANNOT_TELL
    there = shell(repo, "git commit -m first")
    for noted in ("", "{}", "[]", '{"head": "x"}'):
        assert looked(there, noted).kind is K.CANNOT_TELL
    noted = git.prepare(there)
    monkeypatch.setenv("PATH", "")
    assert looked(there, noted).kind is K.CANNOT_TELL
    assert git.prepare(there) == ""
