"""The reconciler of shell commands that are recognisably one `git commit` or one `git push`.

It proves only that something happened: a commit with this message, made since, on top of the one
that was there before; a branch that came to the remote with the commit that was to be pushed. It
never proves that nothing happened, because the shell keeps a folder of its own and a command may
outlive the process that started it. What it runs only reads, asks nobody for a password, uses no
stored one, and has a deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..reconciler import Call, Probe, Reconciler, Verdict, cannot_tell, happened
from .commands import Commit, Push, cleaned, recognised
from .disk import digest

SECONDS = 12.0
"""Longest that one git command may take."""

LONGEST = 256 * 1024
"""Most bytes of a git command's output that are read."""

RECENT = "30"
"""How many of the last entries of a ref's log are looked through."""

_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1",
    "GCM_INTERACTIVE": "never", "GIT_ASKPASS": "", "SSH_ASKPASS": "",
    "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=8 -oStrictHostKeyChecking=yes",
}  # fmt: skip

_SETTINGS = (
    "credential.helper=", "core.askPass=", "core.fsmonitor=false", "log.showSignature=false",
    "http.lowSpeedLimit=100", "http.lowSpeedTime=8",
)  # fmt: skip


def _git(folder: Path, *words: str) -> str | None:
    """Run a git command that only reads; None when it fails."""
    settings = [part for one in _SETTINGS for part in ("-c", one)]
    # The output goes to a file: a pipe would stay open in a child that outlives the deadline.
    with tempfile.TemporaryFile() as out:
        try:
            done = subprocess.run(
                ["git", *settings, *words], cwd=folder, env={**os.environ, **_ENVIRONMENT},
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, timeout=SECONDS,
                check=False, creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        out.seek(0)
        said = out.read(LONGEST + 1)
    whole = done.returncode == 0 and len(said) <= LONGEST
    return said.decode("utf-8", "replace").strip("\n") if whole else None


def _folder(call: Call, made: Commit | Push) -> Path | None:
    if call.workspace is None and not Path(made.folder).is_absolute():
        return None
    return (call.workspace or Path()) / made.folder


# -- before
def prepare(call: Call) -> str:
    """Note where the branch stands before a commit, or what is to be pushed to where."""
    made = recognised(call.arguments)
    folder = _folder(call, made) if made is not None else None
    if made is None or folder is None:
        return ""
    noted = _before_commit(folder) if isinstance(made, Commit) else _before_push(folder, made)
    return json.dumps(asdict(noted)) if noted is not None else ""


@dataclass(frozen=True)
class Stand:
    """Where a repository stands before a commit.

    Args:
        head, parents: names of the last commit and of its parents; empty before the first.
        message: digest of the last commit's message.
    """

    head: str
    parents: str
    message: str


def _before_commit(folder: Path) -> Stand | None:
    if _git(folder, "rev-parse", "--git-dir") is None:
        return None
    for last in _entries(folder, "-1"):
        return Stand(last.name, last.parents, digest(cleaned(last.message).encode()))
    return Stand("", "", "") if _git(folder, "symbolic-ref", "-q", "HEAD") else None


@dataclass(frozen=True)
class Aim:
    """What a push is to bring about: this commit at that branch of that remote."""

    remote: str
    branch: str
    commit: str


def _before_push(folder: Path, made: Push) -> Aim | None:
    head = _git(folder, "symbolic-ref", "-q", "--short", "HEAD")
    branch = made.branch if made.branch not in ("", "HEAD") else head
    if not branch:
        return None
    remote = made.remote if made.branch else _remote_of(folder, branch)
    commit = _git(folder, "rev-parse", "--verify", "-q", f"refs/heads/{branch}^{{commit}}")
    if not remote or not commit or made.remote not in ("", remote):
        return None
    there = branch if made.branch else _pushed_as(folder, remote)
    plain = there and _pushes_plainly(folder, remote, bool(made.branch))
    return Aim(remote, there, commit) if plain else None


def _remote_of(folder: Path, branch: str) -> str:
    ref = f"refs/heads/{branch}"
    return _git(folder, "for-each-ref", "--format=%(push:remotename)", ref) or ""


def _pushed_as(folder: Path, remote: str) -> str:
    ref = _git(folder, "rev-parse", "--symbolic-full-name", "@{push}") or ""
    mine = f"refs/remotes/{remote}/"
    return ref.removeprefix(mine) if ref.startswith(mine) else ""


def _pushes_plainly(folder: Path, remote: str, named: bool) -> bool:
    """Say whether a push to a remote goes to one place, and pushes this branch alone."""
    urls = [_git(folder, "remote", "get-url", *more, "--all", remote) for more in ((), ("--push",))]
    if not urls[0] or urls[0] != urls[1] or "\n" in urls[0]:
        return False
    found = _git(folder, "config", "--get-regexp", r"^(push\..*|remote\..*\.(push|mirror))$") or ""
    for line in found.splitlines():
        key, _, value = line.partition(" ")
        ways = ("simple", "current") if named else ("simple", "current", "upstream")
        if key == "push.default" and value not in ways:
            return False
        if key in ("push.followtags", f"remote.{remote}.mirror") and value != "false":
            return False
        if key == f"remote.{remote}.push":
            return False
    return True


# -- afterwards
def look(probe: Probe) -> Verdict:
    """Look for the commit, or at the remote branch."""
    made = recognised(probe.arguments)
    folder = _folder(probe, made) if made is not None else None
    if made is None or folder is None:
        return cannot_tell("the repository is not known")
    try:
        noted = json.loads(probe.prepared)
        if isinstance(made, Commit):
            return _look_for_commit(probe, made, Stand(**noted), folder)
        return _look_for_push(probe, Aim(**noted), folder)
    except (ValueError, TypeError):
        return cannot_tell("how the repository was before is not known")


@dataclass(frozen=True)
class Entry:
    """A commit that a ref came to stand at, and why; no reason where the ref keeps no log."""

    name: str
    parents: str
    at: str
    why: str
    message: str

    def since(self, probe: Probe) -> bool:
        """Say whether the commit was made since the attempt began."""
        return int(self.at) >= int(probe.dispatched_at)


def _made_here(folder: Path) -> list[Entry]:
    """Return the commits that HEAD came to stand at, the last one first."""
    return _entries(folder, "-g", "-n", RECENT) or _entries(folder, "-1")


def _entries(folder: Path, *words: str) -> list[Entry]:
    form = "--format=%H%x00%P%x00%ct%x00%gs%x00%B"
    said = _git(folder, "log", *words, "-z", "--encoding=UTF-8", form, "HEAD", "--") or ""
    parts = [part.strip("\n") for part in said.split("\0")]
    return [Entry(*parts[at : at + 5]) for at in range(0, len(parts) - 4, 5)]


def _look_for_commit(probe: Probe, made: Commit, before: Stand, folder: Path) -> Verdict:
    for found in _made_here(folder):
        if _is_the_commit(found, made, before) and found.since(probe):
            said = f"commit {found.name[:12]} has this message and was made since"
            return happened(_result(probe, folder, said), "the commit is there")
    return cannot_tell("no such commit is seen")


def _is_the_commit(found: Entry, made: Commit, before: Stand) -> bool:
    if (found.why and not found.why.startswith("commit")) or found.name == before.head:
        return False
    message = cleaned(found.message)
    if made.message is None:
        same = digest(message.encode()) == before.message
    else:
        same = message == made.message
    if made.amend:
        return same and bool(before.head) and found.parents == before.parents
    # A commit that ends a merge has more parents.
    return same and found.parents.split(" ")[0] == before.head


def _look_for_push(probe: Probe, aim: Aim, folder: Path) -> Verdict:
    if _was_pushed(probe, aim, folder):
        how = "was pushed there since"
    elif _stands_there(aim, folder):
        how = "stands there"
    else:
        return cannot_tell("the remote branch is not seen to stand at what was to be pushed")
    said = f"{aim.commit[:12]} {how}: branch {aim.branch} of {aim.remote}"
    return happened(_result(probe, folder, said), "the remote branch has what was to be pushed")


def _was_pushed(probe: Probe, aim: Aim, folder: Path) -> bool:
    """Say whether git noted here that the remote took the commit; asks nobody."""
    ref = f"refs/remotes/{aim.remote}/{aim.branch}"
    form = "--format=%H%x00%gs%x00%gd"
    said = _git(folder, "log", "-g", "-n", RECENT, "--date=unix", form, ref, "--") or ""
    for line in said.splitlines():
        name, why, at = [*line.split("\0"), "", ""][:3]
        when = at.rpartition("@{")[2].rstrip("}")
        if (name, why) == (aim.commit, "update by push") and when.isdecimal():
            return int(when) >= int(probe.dispatched_at)
    return False


def _stands_there(aim: Aim, folder: Path) -> bool:
    said = _git(folder, "ls-remote", "--", aim.remote, f"refs/heads/{aim.branch}") or ""
    return said.split("\t")[0] == aim.commit


def _result(probe: Probe, folder: Path, said: str) -> dict[str, Any]:
    """Return the command's result as far as it can be known."""
    return {
        "command": probe.arguments.get("command"), "cwd": str(folder), "exit_code": None,
        "output": f"[Found afterwards in the repository: {said}. What the command printed and its "
        "exit code are lost.]",
        "timed_out": False, "truncated": False,
    }  # fmt: skip


def covers(arguments: Mapping[str, Any]) -> bool:
    """Say whether a call of the shell can be looked up."""
    return recognised(arguments) is not None


RECONCILER = Reconciler(
    look, name="git", prepare=prepare, covers=covers, delays=(0.0, 10.0, 40.0), timeout=50.0
)
"""For `run_shell`."""
