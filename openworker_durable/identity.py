"""Names for calls: execution ids, intent digests, covered replies, unique call ids.

An execution id is derived, never passed: the live turn, the resume, another process and
every attempt compute the same one (G6). A digest refuses; it never merges two calls: two
honest identical calls are two executions. Pure: no I/O.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MAX_CALL_ID = 40
MAX_DEPTH = 200
_CALL_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CALL_ID}}}\Z")
_RAW_KEYS = frozenset({"_raw"})


class CallRef(NamedTuple):
    """One call of a reply as the thread stores it: id, tool name, raw argument text."""

    call_id: str
    name: str
    arguments: str


class TornArguments(ValueError):
    """Stored arguments are no JSON object, or too deep; they must never run as empty ones."""


def _digest(*parts: str) -> str:
    """Hash `parts` with their lengths between them, so that no two lists look alike."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(f"{len(raw)}:".encode("ascii"))
        h.update(raw)
    return h.hexdigest()


def execution_id(session_id: str, incarnation: str, call_id: str) -> str:
    """Return the id of one tool call, the same through all its attempts.

    Args:
        session_id: the host's session.
        incarnation: the nonce of this life of the session (a deleted id may be used again).
        call_id: the call's id in the thread, unique there.

    Returns:
        `x` and 32 hex digits; also the idempotency key of every attempt.
    """
    return "x" + _digest("execution", session_id, incarnation, call_id)[:32]


def _plain(value: Any) -> Any:
    """Make JSON-able values unambiguous: NaN and infinities become tagged objects."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"\u0000float": repr(value)}
    if isinstance(value, dict):
        return {_plain_key(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _check_depth(value: Any) -> None:
    """Refuse what is nested more deeply than any real call, before code that recurses sees it.

    Raises:
        TornArguments: more than `MAX_DEPTH` levels.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list, tuple))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise TornArguments("the value is nested too deeply")


def _plain_key(key: str) -> str:
    """Keep real keys apart from the tag that stands for a number JSON does not have."""
    return "\u0000" + key if key.startswith("\u0000") else key


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and ASCII escapes; equal values, equal text.

    Raises:
        TornArguments: it is nested too deeply to be told apart from others.
    """
    _check_depth(value)
    return json.dumps(
        _plain(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=repr
    )


def intent_digest(name: str, arguments: Any) -> str:
    """Return the digest of what one call means to do: the tool's name and its arguments."""
    return _digest("intent", name, canonical_json(arguments))[:40]


def schema_digest(schema: Any) -> str:
    """Return the digest of a tool's argument schema."""
    return _digest("schema", canonical_json(schema))[:16]


def parse_arguments(raw: Any) -> dict[str, Any]:
    """Read a call's stored argument text.

    Raises:
        TornArguments: when the text is not a JSON object (empty text means no arguments).
    """
    if isinstance(raw, dict):
        return raw
    try:
        value = json.loads(raw or "{}")
    except (TypeError, ValueError, RecursionError) as exc:
        raise TornArguments("the stored arguments are not JSON") from exc
    if not isinstance(value, dict):
        raise TornArguments("the stored arguments are not a JSON object")
    _check_depth(value)
    return value


def is_mangled(arguments: Any) -> bool:
    """Say whether these arguments are the host's stand-in for text that never parsed."""
    return isinstance(arguments, dict) and frozenset(arguments) == _RAW_KEYS


def covered_digest(calls: Iterable[CallRef]) -> str:
    """Return the digest of one reply's calls: ids, names and raw arguments, in order.

    The host shortens unparsed text when the reply enters the history, and such a call
    cannot run; its arguments therefore count as one fixed word.
    """
    parts: list[str] = ["covered"]
    for call in calls:
        raw = call.arguments
        try:
            if is_mangled(parse_arguments(raw)):
                raw = "\u0000mangled"
        except TornArguments:
            pass
        parts += [call.call_id, call.name, raw]
    return _digest(*parts)[:40]


def usable_call_id(call_id: Any) -> bool:
    """Say whether every provider accepts `call_id`: 1 to 40 of [A-Za-z0-9_-]."""
    return isinstance(call_id, str) and bool(_CALL_ID.match(call_id))


def unique_call_ids(
    ids: Sequence[str | None], taken: Callable[[str], bool], fresh: Callable[[], str]
) -> list[str]:
    """Return one id for each call of a reply, each used by no other call of the session.

    Only an empty id, one that is taken, or one that a call before it in this reply has, is
    replaced; the others stay as the provider gave them.

    Args:
        ids: the ids as the provider gave them, in order.
        taken: says whether an id is used in the history, the ledger, a tombstone or an item.
        fresh: gives random [a-z0-9] text.
    """
    out: list[str] = []
    for given in ids:
        call_id = given or ""
        while not call_id or call_id in out or taken(call_id):
            call_id = "call_" + fresh()[:24]
        out.append(call_id)
    return out


def rewrite_ids(sidecar: Any, old: Sequence[str | None], new: Sequence[str]) -> Any:
    """Return a provider's private copy of a reply with its call ids renamed.

    The Responses provider keeps its own list of items; each `function_call` there carries
    the call's id as `call_id`, and they stand in the order of the calls. Items are matched
    by that order, because two of them may share an id.

    Args:
        sidecar: any JSON value; other shapes come back as they are.
        old: the ids before, in the order of the reply's calls.
        new: the ids now, in the same order.
    """
    if not isinstance(sidecar, dict) or list(old) == list(new):
        return sidecar
    out = dict(sidecar)
    items = out.get("items")
    if isinstance(items, list):
        names = iter(new)
        out["items"] = [
            {**item, "call_id": next(names, item.get("call_id"))}
            if isinstance(item, dict) and item.get("type") == "function_call"
            else item
            for item in items
        ]
    return out
