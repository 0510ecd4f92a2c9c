"""The person's configuration file, `durable.toml` in the host's state folder.

    [tools.gmail_send]
    policy = "reconcile"            # manual | idempotent | reconcile
    then = "idempotent"             # reconcile only: when it cannot be told; manual if left out
    key_valid = "24h"               # idempotent: seconds, or a text with s, m, h or d
    attempts = 3                    # most attempts, the first included
    repeatable = false              # may be called while an earlier call of it is unknown

    [tools."mcp:github/create_issue"]
    policy = "idempotent"
    key_valid = "24h"
    output = { type = "object", required = ["number"] }      # a JSON Schema, draft 2020-12

    [sources.ops]                   # who may give evidence, which is no right to decide
    tools = ["gmail_send"]

A tool is named exactly, by its name or `mcp:server/tool`; no pattern widens by itself. Whatever
is unknown, of the wrong type, or contradicts itself is a `PolicyError` that says where it stands
and what to do, so that the start is refused rather than half of the file obeyed; nothing is lost by
that. No file at all is an empty one: every tool is `manual` unless its author declared otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .declare import Declaration, normal_key
from .errors import PolicyError
from .policy import PolicyKind, RecoveryPolicy
from .toml_words import header, kind_of, seconds_of, shown
from .validate import shape, usable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "durable.toml"
"""The file's name in the host's state folder."""

MAX_KEY_VALID = 366 * 86400.0
"""Most seconds of a key's validity."""

MAX_ATTEMPTS = 100
MAX_SOURCE = 100

_KINDS = '"manual", "idempotent" or "reconcile"'
_OF_POLICY = ("then", "key_valid", "attempts", "repeatable")
_OF_TOOL = ("policy", *_OF_POLICY, "output")


@dataclass(frozen=True)
class Settings:
    """What a person configured, by the tools' exact keys (see `declare.normal_key`).

    Args:
        policies: recovery policies.
        outputs: JSON Schemas that results given from outside have to pass.
        sources: for each source of evidence, the tools it may give evidence about.
        file: where it was read from, for messages; empty when nothing was.
    """

    policies: dict[str, RecoveryPolicy] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, frozenset[str]] = field(default_factory=dict)
    file: str = ""

    def may_give(self, source: str, key: str) -> bool:
        """Say whether a source may give evidence about calls of a tool."""
        return key in self.sources.get(source, frozenset())


@dataclass(frozen=True)
class Problem:
    """What shows only when the tools are known.

    Args:
        tool: the tool's key.
        text: what is wrong, where, and the remedy.
        fatal: True when the start is to be refused; False for a warning.
    """

    tool: str
    text: str
    fatal: bool


# -- reading
def settings_path(state_dir: Path | str) -> Path:
    """Return where the configuration file of a host's state folder is, or would be."""
    return Path(state_dir) / FILE


def read_settings(path: Path | str) -> Settings:
    """Read a configuration file; it is only read, never written.

    Args:
        path: the file; UTF-8, with or without a byte order mark.

    Returns:
        empty settings when there is no such file.

    Raises:
        PolicyError: it cannot be read, is no TOML, or says something that this version cannot
            honour; the message names file, table, key and remedy.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if not path.is_symlink():
            return Settings()
        raise _unreadable(path, "it is a link that leads nowhere") from None
    except OSError as exc:
        raise _unreadable(path, exc.strerror or type(exc).__name__) from exc
    return settings_from(content, str(path))


def settings_from(content: bytes, file: str = FILE) -> Settings:
    """Return the settings that a configuration file of this content stands for.

    Args:
        content: the file's bytes.
        file: its name, for messages.

    Raises:
        PolicyError: see `read_settings`.
    """
    return _Reader(file).settings(_parsed(content, file))


def _unreadable(path: Path, why: str) -> PolicyError:
    return PolicyError(f"{path} cannot be read ({why}); make it readable, or move it away")


def _parsed(content: bytes, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise PolicyError(f"{file} is not UTF-8; save it as UTF-8 in your editor") from None
    except (ValueError, RecursionError) as exc:
        why = str(exc)[:200] if isinstance(exc, ValueError) else "nested too deep"
        raise PolicyError(
            f"{file} is no valid TOML: {why}; mend that line (a name with `:`, `/` or `.` has to "
            'be in quotes, as in [tools."mcp:server/tool"])'
        ) from None


class _Reader:
    """Turns parsed TOML into settings; every fault names the file, the table and the key."""

    def __init__(self, file: str) -> None:
        self.file = file

    def settings(self, top: dict[str, Any]) -> Settings:
        self._only(top, ("tools", "sources"), "")
        policies: dict[str, RecoveryPolicy] = {}
        outputs: dict[str, Any] = {}
        seen: set[str] = set()
        for name, table in self._tables(top, "tools"):
            where = header("tools", name)
            key = self._key(name, where, "")
            if key in seen:
                raise self._fault(where, "", "this tool has another table already", "keep one")
            seen.add(key)
            self._tool(key, table, where, policies, outputs)
        sources = {name: self._source(name, table) for name, table in self._tables(top, "sources")}
        return Settings(policies, outputs, sources, self.file)

    # -- tools
    def _tool(
        self, key: str, table: dict[str, Any], where: str,
        policies: dict[str, RecoveryPolicy], outputs: dict[str, Any],
    ) -> None:  # fmt: skip
        self._only(table, _OF_TOOL, where)
        if "output" in table:
            outputs[key] = self._output(table, where)
        if "policy" in table:
            policies[key] = self._policy(table, where)
            return
        for word in _OF_POLICY:
            if word in table:
                what = "it belongs to a policy, and none is given"
                raise self._fault(where, word, what, f"add policy = {_KINDS}")
        if not table:
            raise self._fault(where, "", "it says nothing", f"add policy = {_KINDS}, or remove it")

    def _policy(self, table: dict[str, Any], where: str) -> RecoveryPolicy:
        kind = self._kind(table, "policy", where)
        if "then" in table and kind is not PolicyKind.RECONCILE:
            what = f'it belongs to "reconcile", and the policy is "{kind.value}"'
            raise self._fault(where, "then", what, "remove it")
        then = self._then(table, where)
        sends_key = PolicyKind.IDEMPOTENT in (kind, then)
        key_valid = self._key_valid(table, where, sends_key)
        attempts = self._attempts(table, where, kind, sends_key)
        repeatable = self._repeatable(table, where)
        try:
            return RecoveryPolicy(kind, then, key_valid, attempts, repeatable)
        except PolicyError as exc:
            why = str(exc)
        raise self._fault(where, "policy", why, "correct it")

    def _kind(self, table: dict[str, Any], key: str, where: str) -> PolicyKind:
        value = self._typed(table, key, str, f"one of {_KINDS}", where)
        try:
            return PolicyKind(value)
        except ValueError:
            what = f"{shown(value)} is no policy"
        raise self._fault(where, key, what, f"write {_KINDS}")

    def _then(self, table: dict[str, Any], where: str) -> PolicyKind:
        if "then" not in table:
            return PolicyKind.MANUAL
        words = '"manual" or "idempotent"'
        value = self._typed(table, "then", str, words, where)
        if value not in ("manual", "idempotent"):
            what = f'{shown(value)} cannot follow "reconcile"'
            raise self._fault(where, "then", what, f"write {words}")
        return PolicyKind(value)

    def _key_valid(self, table: dict[str, Any], where: str, sends_key: bool) -> float:
        how = 'write the time that the service keeps a key, such as key_valid = "24h"'
        value = table.get("key_valid")
        if value is None:
            if sends_key:
                what = 'it is missing, and "idempotent" needs it'
                raise self._fault(where, "key_valid", what, how)
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise self._fault(where, "key_valid", f"found {kind_of(value)}", how)
        seconds = seconds_of(value)
        if seconds is None or not 0 < seconds <= MAX_KEY_VALID:
            what = f"it is no time between 0 and {MAX_KEY_VALID / 86400:.0f} days"
            raise self._fault(where, "key_valid", what, how)
        if not sends_key:
            what = 'it belongs to "idempotent", which this policy does not lead to'
            raise self._fault(where, "key_valid", what, "remove it, or change the policy")
        return seconds

    def _attempts(
        self, table: dict[str, Any], where: str, kind: PolicyKind, sends_key: bool
    ) -> int:
        if "attempts" not in table:
            return 3 if sends_key else 1
        value = int(self._typed(table, "attempts", int, "a whole number", where))
        low = 2 if sends_key else 1
        high = 1 if kind is PolicyKind.MANUAL else MAX_ATTEMPTS
        if not low <= value <= high:
            what = f"it is not between {low} and {high}, which this policy allows"
            raise self._fault(where, "attempts", what, "correct it, or remove it; the first counts")
        return value

    def _repeatable(self, table: dict[str, Any], where: str) -> bool:
        if "repeatable" not in table:
            return False
        return bool(self._typed(table, "repeatable", bool, "true or false", where))

    def _output(self, table: dict[str, Any], where: str) -> dict[str, Any]:
        schema: dict[str, Any] = self._typed(table, "output", dict, "a JSON Schema table", where)
        why = shape(schema)
        if why:
            raise self._fault(where, "output", why, "write it as a JSON Schema")
        try:
            usable(schema)
        except PolicyError as exc:
            why = str(exc)
        if why:
            raise self._fault(where, "output", why, "mend it, or remove it")
        return schema

    # -- sources
    def _source(self, name: str, table: dict[str, Any]) -> frozenset[str]:
        where = header("sources", name)
        if not source_name(name):
            what = f"a source's name has 1 to {MAX_SOURCE} visible characters, and no space"
            raise self._fault(where, "", what, "rename it")
        self._only(table, ("tools",), where)
        how = 'write tools = ["name", "mcp:server/tool"]'
        names = table.get("tools")
        if not isinstance(names, list) or not names:
            raise self._fault(where, "tools", "a list of at least one tool is wanted", how)
        for one in names:
            if not isinstance(one, str):
                raise self._fault(where, "tools", f"found {kind_of(one)} in the list", how)
        keys = [self._key(one, where, "tools") for one in names]
        if len(set(keys)) != len(keys):
            raise self._fault(where, "tools", "a tool stands in it twice", "keep one")
        return frozenset(keys)

    # -- what all tables share
    def _tables(self, top: dict[str, Any], name: str) -> list[tuple[str, dict[str, Any]]]:
        tables = self._typed(top, name, dict, f"tables [{name}.NAME]", "") if name in top else {}
        for one, table in tables.items():
            if not isinstance(table, dict):
                what = f"found {kind_of(table)} where a table is wanted"
                raise self._fault(f"[{name}]", one, what, f"write it below {header(name, one)}")
        return list(tables.items())

    def _key(self, name: str, where: str, key: str) -> str:
        try:
            return normal_key(name)
        except PolicyError as exc:
            what, _, remedy = str(exc).partition("; ")
        raise self._fault(where, key, what, remedy)

    def _only(self, table: Mapping[str, Any], words: tuple[str, ...], where: str) -> None:
        for key, value in table.items():
            if key not in words:
                remedy = f"remove it, or correct it to one of: {', '.join(words)}"
                if isinstance(value, dict) and where:
                    remedy += "; a name with a dot has to be in quotes"
                raise self._fault(where, key, "it is unknown", remedy)

    def _typed(self, table: dict[str, Any], key: str, kind: type, wanted: str, where: str) -> Any:
        value = table[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._fault(where, key, f"found {kind_of(value)}", f"write {wanted}")
        return value

    def _fault(self, where: str, key: str, what: str, remedy: str) -> PolicyError:
        place = ", ".join(part for part in (self.file, where, key[:100]) if part)
        return PolicyError(f"{place}: {what}; {remedy}")


def source_name(name: str) -> bool:
    """Say whether a text can name a source of evidence."""
    return 0 < len(name) <= MAX_SOURCE and name.isprintable() and not re.search(r"\s", name)


# -- with the tools known
def check(settings: Settings, known: Callable[[str], Declaration | None]) -> list[Problem]:
    """Return what is wrong with settings once it is known which tools there are.

    Args:
        settings: what `read_settings` returned.
        known: returns what is declared about the tool of a key, None when nobody offers one;
            asked once for each tool that the settings name.

    Returns:
        problems by tool: fatal ones, such as `reconcile` without a reconciler, and warnings,
        such as a tool that nobody offers, which may be one whose server is not connected yet.
    """
    named = {*settings.policies, *settings.outputs}.union(*settings.sources.values())
    found = [_problem(settings, key, known) for key in sorted(named)]
    return [problem for problem in found if problem is not None]


def _problem(
    settings: Settings, key: str, known: Callable[[str], Declaration | None]
) -> Problem | None:
    where = f"{settings.file or FILE}, {header('tools', key)}"
    try:
        declared = known(key)
    except PolicyError as exc:
        return Problem(key, f"{where}: {exc}", True)
    if declared is None:
        return Problem(key, f"{where}: no tool of that name is offered; {_hint(key)}", False)
    policy = settings.policies.get(key)
    if policy and policy.kind is PolicyKind.RECONCILE and declared.reconciler is None:
        text = (
            'its policy is "reconcile", and no reconciler is declared for it; write '
            'policy = "manual", or install what declares one'
        )
        return Problem(key, f"{where}, policy: {text}", True)
    return None


def _hint(key: str) -> str:
    if key.startswith("mcp__"):
        return 'a tool of an MCP server is named "mcp:server/tool"'
    return "correct the name, or connect what offers it"
