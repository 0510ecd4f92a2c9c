"""Shell commands that are plainly one `git commit` or one `git push`, and nothing else.

Whatever a shell could read as more than plain words, in bash or in PowerShell, makes a command one
that is not recognised; so does every option whose effect is not looked for afterwards. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \t-_=+.:/")
"""All that may stand outside quotations, beside letters that are not ASCII."""

_EXPANDED = frozenset("$`\\!%")
"""What a shell does not leave as it is between double quotes."""

_QUOTES = frozenset("\u2018\u2019\u201a\u201b\u201c\u201d\u201e\0")
"""What PowerShell takes for quotes, also inside a quotation."""

_COMMIT_WORDS = frozenset(
    {"-a", "--all", "-q", "--quiet", "-n", "--no-verify", "-v", "--verbose", "--allow-empty"}
)
_PUSH_WORDS = frozenset({"-u", "--set-upstream", "-q", "--quiet", "-v", "--verbose"})

_REMOTE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_BRANCH = re.compile(r"[^\s:+~^?*\[\\-][^\s:~^?*\[\\]*\Z")


@dataclass(frozen=True)
class Commit:
    """One `git commit -m ...`, or one that amends.

    Args:
        message: as git stores it; None: the message of the commit that is amended.
        folder: the argument of `-C`, if there is one.
        amend: it takes the place of the last commit.
    """

    message: str | None
    folder: str = ""
    amend: bool = False


@dataclass(frozen=True)
class Push:
    """One `git push`, of one branch to one remote; empty where git is to know which."""

    remote: str = ""
    branch: str = ""
    folder: str = ""


def words_of(command: Any) -> list[str] | None:
    """Return a command's words, or None when it is more than one plain command."""
    if not isinstance(command, str) or _QUOTES & set(command):
        return None
    quote = ""
    for char in command:
        if quote:
            if char == quote:
                quote = ""
            elif quote == '"' and char in _EXPANDED:
                return None
        elif char in "'\"":
            quote = char
        elif char not in _PLAIN and not (char.isalnum() and not char.isascii()):
            return None
    return None if quote else shlex.split(command)


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
    amend = kept = False
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "-am", "--message") and rest:
            messages.append(rest.pop(0))
        elif word.startswith("--message="):
            messages.append(word.removeprefix("--message="))
        elif word in ("--amend", "--no-edit"):
            amend, kept = amend or word == "--amend", kept or word == "--no-edit"
        elif word not in _COMMIT_WORDS:
            return None
    text = cleaned("\n\n".join(messages))
    if amend and kept and not messages:
        return Commit(None, folder, True)
    return Commit(text, folder, amend) if text and not kept else None


def _push(words: list[str], folder: str) -> Push | None:
    plain = [w for w in words if w not in _PUSH_WORDS]
    remote, branch = [*plain, "", ""][:2]
    if len(plain) > 2 or (remote and not _REMOTE.match(remote)):
        return None
    branch = branch.removeprefix("refs/heads/")
    if len(plain) == 2 and (not _BRANCH.match(branch) or branch.startswith("refs/")):
        return None
    return Push(remote, branch, folder)


def cleaned(message: str) -> str:
    """Return a message as git stores one that nobody edits: no blank line more than it needs."""
    lines = "\n".join(line.rstrip(" \t\r") for line in message.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")
