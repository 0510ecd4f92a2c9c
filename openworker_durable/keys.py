"""Idempotency keys out of band: what a tool sends so that its service does one thing once.

The key is the execution's id (G6): the same in every attempt, never an argument, never seen by the
model. It is there only while the protected call runs, in its own thread and in what inherits its
context; a call that makes several requests gives each a name of its own, for a key of its own.
`httpx` and the MCP SDK are not imported here. Killed anywhere, the next attempt has the same keys.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .errors import DurableError
from .guard import current_execution
from .witness import SAFE_METHODS, witness

HEADER = "Idempotency-Key"
"""The header that most services take a key in."""

META_KEY = "io.github.openworker-durable/idempotency-key"
"""The name of the key in `_meta` of an MCP request: a prefix in reverse DNS order, and a name."""


class NoProtectedCall(DurableError):
    """A key was asked for where no protected call runs: there is no execution to take it from."""


def derived_key(key: str, part: str) -> str:
    """Return the key of one of several requests that a call makes.

    Args:
        key: the execution's.
        part: names the request within its call, the same in every attempt; empty: `key` itself.

    Returns:
        as long as a key, `x` and 32 hex digits.
    """
    if not part:
        return key
    return "x" + hashlib.sha256(f"{key}\n{part}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def key_or_none(part: str = "") -> str | None:
    """Return the key of the protected call that this code runs for, or None outside one.

    What a call left running has no key any more once the call has ended.

    Args:
        part: see `derived_key`.
    """
    running, seen = current_execution(), witness()
    if running is None or seen is None or seen.over:
        return None
    return derived_key(running.idempotency_key, part)


def idempotency_key(part: str = "") -> str:
    """Return the key of the protected call that this code runs for; the same for all attempts.

    Args:
        part: see `derived_key`; for a call that makes several requests.

    Raises:
        NoProtectedCall: no protected call runs here; `key_or_none` returns None instead.
    """
    key = key_or_none(part)
    if key is None:
        raise NoProtectedCall(
            "no protected call runs here, so there is no idempotency key: ask for it inside the "
            "tool, in the call's own thread or in a task that was started from it"
        )
    return key


def mcp_meta(part: str = "") -> dict[str, str]:
    """Return what a `tools/call` request carries in `_meta`; nothing outside a protected call.

    For tools that call `mcp.ClientSession.call_tool(..., meta=mcp_meta())` themselves; where the
    host is attached, its calls carry the key already.

    Args:
        part: see `derived_key`.
    """
    key = key_or_none(part)
    return {} if key is None else {META_KEY: key}


# -- httpx
Part = Callable[[Any], "str | None"]
"""Takes a request; returns its part, empty for the execution's own key, None for no key."""

MARK = "openworker_durable.keys"
"""The extension of a request that remembers which headers on it are ours."""


@dataclass(frozen=True)
class _Mark:
    """What was done about one header when a request was first seen.

    Args:
        value: of the header, None where it was not ours to set.
        origin: that the request was first made to.
    """

    value: str | None
    origin: str


def key_hook(
    header: str = HEADER, *, part: Part | None = None, origins: Iterable[str] = ()
) -> Callable[[Any], None]:
    """Return a request hook for `httpx.Client(event_hooks={"request": [...]})`; see `send_key`."""
    allowed = frozenset(map(_origin_of_text, origins))

    def put_key(request: Any) -> None:
        _put(request, header, part, allowed)

    return put_key


def async_key_hook(
    header: str = HEADER, *, part: Part | None = None, origins: Iterable[str] = ()
) -> Callable[[Any], Awaitable[None]]:
    """Return a request hook for `httpx.AsyncClient`; see `send_key`."""
    hook = key_hook(header, part=part, origins=origins)

    async def put_key(request: Any) -> None:
        hook(request)

    return put_key


def send_key(
    client: Any,
    header: str = HEADER,
    *,
    part: Part | None = None,
    origins: Iterable[str] = (),
) -> Callable[[], None]:
    """Have a client of `httpx` send the key with each request that a protected call makes.

    Not on requests that change nothing, not where the caller set the header, not outside a
    protected call, and not to another origin that a redirect leads to.

    Args:
        client: an `httpx.Client` or `httpx.AsyncClient`; or its like, with `event_hooks`.
        header: that the service takes the key in.
        part: tells the requests of one call apart; without it all of them have the same key, and
            a service may answer the second with its answer to the first.
        origins: such as `https://eu.example.com`, further ones that a redirect may take it to.

    Returns:
        what takes the hook away again.
    """
    make = async_key_hook if inspect.iscoroutinefunction(client.send) else key_hook
    hook: Any = make(header, part=part, origins=origins)
    client.event_hooks["request"].append(hook)

    def remove() -> None:
        if hook in client.event_hooks["request"]:
            client.event_hooks["request"].remove(hook)

    return remove


def _put(request: Any, header: str, part: Part | None, allowed: frozenset[str]) -> None:
    """Set the header, or take ours away: a redirect and a second `send` come with it on them."""
    marks: dict[str, _Mark] = request.extensions.get(MARK, {})
    before = marks.get(header.lower())
    if before is None and key_or_none() is None:
        return
    there = request.headers.get(header)
    if before is not None and there is not None and there == before.value:
        del request.headers[header]
        there = None
    origin = _origin(request.url)
    home = before.origin if before is not None else origin
    value = None if there is not None else _value(request, part)
    if value is not None and (_same_origin(home, origin) or origin in allowed):
        request.headers[header] = value
    mark = {**marks, header.lower(): _Mark(value, home)}
    request.extensions = {**request.extensions, MARK: mark}


def _value(request: Any, part: Part | None) -> str | None:
    if request.method.upper() in SAFE_METHODS or key_or_none() is None:
        return None
    named = part(request) if part is not None else ""
    return None if named is None else key_or_none(named)


_PORTS = {"http": 80, "https": 443}


def _origin(url: Any) -> str:
    return f"{url.scheme}://{url.host}:{url.port or _PORTS.get(url.scheme, 0)}"


def _origin_of_text(text: str) -> str:
    from urllib.parse import urlsplit

    return _origin(_Url(urlsplit(text)))


class _Url:
    """A URL that was given as text, read as those of requests are."""

    def __init__(self, parts: Any) -> None:
        self.scheme, self.host, self.port = parts.scheme, parts.hostname, parts.port


def _same_origin(home: str, origin: str) -> bool:
    """Say whether a request stays where it was first made to; going on to TLS is staying."""
    host = home.removeprefix("http://").removesuffix(":80")
    return origin == home or (home == f"http://{host}:80" and origin == f"https://{host}:443")
