"""The reconciler of shell commands that are recognisably one `git commit` or one `git push`.

It proves only that something happened: a commit with this message, made since, on top of the
commit that was there before; a remote branch that stands where the local one does. It never proves
that nothing happened, because the shell keeps a folder of its own and a command may outlive the
process that started it. What it runs only reads, asks nobody for a password, and has a deadline.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..reconciler import Call, Probe, Reconciler, Verdict, cannot_tell, happened

SECONDS = 15.0
"""Longest that one git command may take."""

_SHELL = frozenset('|&;<>()$`\n\r*?[]{}!#~%^"\\')
"""What makes a command more than plain words; a quotation in single quotes may hold any of it."""


@dataclass(frozen=True)
class Commit:
    """One `git commit -m ...`.

    Args:
        message: as git stores it.
        folder: the argument of `-C`, if there is one.
    """

    message: str
    folder: str = ""


@dataclass(frozen=True)
class Push:
    """One `git push <remote> <branch>`."""

    remote: str
    branch: str
    folder: str = ""


def words_of(command: Any) -> list[str] | None:
    """Return a command's words, or None when it is more than one plain command."""
    if not isinstance(command, str):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    return None if _SHELL & set(_outside_quotes(command)) or _unsafe(command) else words


def _outside_quotes(command: str) -> str:
    kept, quote = [], ""
    for char in command:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            kept.append(char)
    return "".join(kept)


def _unsafe(command: str) -> bool:
    """Say whether the shell would expand something inside double quotes."""
    quote = ""
    for char in command:
        if quote == '"' and char in "$`\\!%":
            return True
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
    return False


def recognised(arguments: Mapping[str, Any]) -> Commit | Push | None:
    """Return what a call of the shell does, when it is plainly one of the two."""
    words = words_of(arguments.get("command"))
    if not words or words[0] != "git" or arguments.get("run_in_background"):
        return None
    folder, words = "", words[1:]
    if words[:1] == ["-C"] and len(words) > 2:
        folder, words = words[1], words[2:]
    if words[:1] == ["commit"]:
        return _commit(words[1:], folder)
    if words[:1] == ["push"]:
        return _push(words[1:], folder)
    return None


def _commit(words: list[str], folder: str) -> Commit | None:
    messages: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "-am", "--message") and rest:
            messages.append(rest.pop(0))
        elif word.startswith("--message="):
            messages.append(word.removeprefix("--message="))
        elif word not in ("-a", "--all", "-q", "--quiet", "--no-verify", "-n"):
            return None
    text = "\n\n".join(m.strip() for m in messages)
    return Commit(text, folder) if text else None


def _push(words: list[str], folder: str) -> Push | None:
    plain = [w for w in words if w not in ("-u", "--set-upstream", "-q", "--quiet")]
    if len(plain) != 2 or any(w.startswith(("-", "+", ":")) or ":" in w for w in plain):
        return None
    return Push(plain[0], plain[1].removeprefix("refs/heads/"), folder)


def _git(folder: Path, *words: str) -> str | None:
    """Run a git command that only reads; None when it fails."""
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GCM_INTERACTIVE": "never",
             "GIT_SSH_COMMAND": "ssh -o BatchMode=yes", "LC_ALL": "C"}  # fmt: skip
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env={**os.environ, **quiet}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _folder(call: Call, made: Commit | Push) -> Path | None:
    if not made.folder:
        return call.workspace
    folder = Path(made.folder).expanduser()
    if folder.is_absolute():
        return folder
    return call.workspace / folder if call.workspace is not None else None


def prepare(call: Call) -> str:
    """Note where the branch stands before a commit."""
    made = recognised(call.arguments)
    folder = _folder(call, made) if isinstance(made, Commit) else None
    return (_git(folder, "rev-parse", "--verify", "-q", "HEAD") or "") if folder else ""


def look(probe: Probe) -> Verdict:
    """Look for the commit, or at the remote branch."""
    made = recognised(probe.arguments)
    folder = _folder(probe, made) if made is not None else None
    if made is None or folder is None:
        return cannot_tell("the repository is not known")
    if isinstance(made, Commit):
        return _look_for_commit(probe, made, folder)
    return _look_at_remote(probe, made, folder)


def _look_for_commit(probe: Probe, made: Commit, folder: Path) -> Verdict:
    said = _git(folder, "log", "-1", "--format=%H%x00%P%x00%ct%x00%B", "HEAD")
    if not said or said.count("\0") != 3:
        return cannot_tell("the repository cannot be read")
    name, parent, at, message = said.split("\0")
    fits = message.strip() == made.message.strip() and parent == probe.prepared
    if not fits or int(at) < int(probe.dispatched_at):
        return cannot_tell("the last commit is not this one")
    return happened(
        _result(probe, f"[{name[:12]}] {message.splitlines()[0]}"), "the commit is there"
    )


def _look_at_remote(probe: Probe, made: Push, folder: Path) -> Verdict:
    ref = f"refs/heads/{made.branch}"
    local = _git(folder, "rev-parse", "--verify", "-q", ref)
    remote = _git(folder, "ls-remote", "--", made.remote, ref)
    if not local or remote is None:
        return cannot_tell("the branch or its remote cannot be read")
    if remote.split("\t")[0] != local:
        return cannot_tell("the remote branch stands elsewhere")
    said = f"{made.remote} {made.branch} stands at {local[:12]}"
    return happened(_result(probe, said), "the remote branch stands where the local one does")


def _result(probe: Probe, said: str) -> dict[str, Any]:
    """Return the command's result as far as it can be known."""
    return {
        "command": probe.arguments.get("command"), "exit_code": 0, "stdout": said, "stderr": "",
        "note": "Found afterwards in the repository; what the command printed is lost.",
    }  # fmt: skip


def covers(arguments: Mapping[str, Any]) -> bool:
    """Say whether a call of the shell can be looked up."""
    return recognised(arguments) is not None


RECONCILER = Reconciler(
    look, name="git", prepare=prepare, covers=covers, delays=(0.0, 10.0), timeout=45.0
)
"""For `run_shell`."""
