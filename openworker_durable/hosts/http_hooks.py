"""What the adapter wraps around `httpx`, where it is installed: a protected call's requests.

A call's requests are told to its witness: each try at the transport, and, where a transport of
somebody's own has none of ours, each `send` of a client. A reply's body is read inside `send`, so
a reply that breaks off there is a failed try too. Outside a protected call nothing is done beyond
looking at one context variable. Requests made in threads that do not inherit the call's context,
bodies read from a stream after `send`, and other HTTP libraries are not seen.
"""

from __future__ import annotations

import contextvars
import hashlib
import importlib
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from ..clock import fresh_id
from ..witness import IDEMPOTENT_METHODS, Try, Witness, witness
from .patching import Patches

log = logging.getLogger("openworker_durable")


class HttpHooks:
    """The wrappers for `httpx`, of any version that has its public classes; one for all hosts."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._hosts = 0
        self._lock = threading.Lock()

    def attach(self, patches: Patches) -> None:
        """Wrap the clients' and transports' methods until the last host is detached.

        Does nothing where the library is not installed.

        Args:
            patches: of the host that is being attached.
        """
        try:
            httpx = importlib.import_module("httpx")
        except ImportError as exc:
            log.info("requests are not watched: httpx cannot be imported (%s)", exc)
            return
        with self._lock:
            self._hosts += 1
            patches.on_restore(self._give_back)
            if self._hosts > 1:
                return
            for name, method, make in WATCHED:
                cls: Any = getattr(httpx, name, None)
                if hasattr(cls, method):
                    self._patches.wrap(cls, method, make)

    def _give_back(self) -> None:
        with self._lock:
            self._hosts -= 1
            if self._hosts == 0:
                self._patches.restore()


def _watched(host: Callable[..., Any]) -> Callable[..., Any]:
    def handle_request(transport: Any, request: Any) -> Any:
        seen = witness()
        if seen is None:
            return host(transport, request)
        noted = _sent(seen, request)
        try:
            response = host(transport, request)
        except BaseException as exc:
            noted.failed(exc)
            raise
        noted.answered(response.status_code)
        return response

    return handle_request


def _watched_async(host: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def handle_async_request(transport: Any, request: Any) -> Any:
        seen = witness()
        if seen is None:
            return await host(transport, request)
        noted = _sent(seen, request)
        try:
            response = await host(transport, request)
        except BaseException as exc:
            noted.failed(exc)
            raise
        noted.answered(response.status_code)
        return response

    return handle_async_request


def _watched_send(host: Callable[..., Any]) -> Callable[..., Any]:
    def send(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        seen = witness()
        if seen is None:
            return host(client, request, *args, **kwargs)
        with _Send(seen, request) as whole:
            response = host(client, request, *args, **kwargs)
            whole.answered(response)
        return response

    return send


def _watched_send_async(host: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def send(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        seen = witness()
        if seen is None:
            return await host(client, request, *args, **kwargs)
        with _Send(seen, request) as whole:
            response = await host(client, request, *args, **kwargs)
            whole.answered(response)
        return response

    return send


class _Send:
    """One `send` of a client: its redirects, its authentication, and the reply's body.

    Args:
        seen: the witness of the call.
        request: as the client was asked to send it.
    """

    def __init__(self, seen: Witness, request: Any) -> None:
        self.seen, self.request = seen, request
        self.tries: list[Try] = []

    def __enter__(self) -> _Send:
        self._token = _tries.set(self.tries)
        return self

    def answered(self, response: Any) -> None:
        """It came back; a transport that is not watched has told of no try."""
        if not self.tries:
            _sent(self.seen, self.request).answered(response.status_code)

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        _tries.reset(self._token)
        if exc is None or self.request.method.upper() in IDEMPOTENT_METHODS:
            return
        if not self.tries:
            _sent(self.seen, self.request).failed(exc)
        counting = [t for t in self.tries if t.counts]
        if counting and not counting[-1].doubt:
            counting[-1].failed(exc)


_tries: contextvars.ContextVar[list[Try] | None] = contextvars.ContextVar(
    "openworker_durable_tries", default=None
)
"""The tries of the `send` under way, in its own task."""


def _sent(seen: Witness, request: Any) -> Try:
    counts = request.method.upper() not in IDEMPOTENT_METHODS and not _asks_for_a_token(request)
    noted = seen.sent(request.method, _what(request) if counts else "", counts=counts)
    own = _tries.get()
    if own is not None:
        own.append(noted)
    return noted


def _body(request: Any) -> bytes | None:
    """Return what is sent, None for a body that is read while it is sent."""
    try:
        body: bytes = request.content
    except Exception:  # httpx.RequestNotRead
        return None
    return body


def _what(request: Any) -> str:
    """Return what is equal only for the same request; a body that is a stream has no equal."""
    body = _body(request)
    if body is None:
        return fresh_id()
    sent = hashlib.sha256(f"{request.method} {request.url}\n".encode())
    for name, value in request.headers.raw:
        sent.update(b"%b: %b\n" % (name, value))
    sent.update(body)
    return sent.hexdigest()


def _asks_for_a_token(request: Any) -> bool:
    """Say whether a request only renews a connector's own access (RFC 6749, sections 4 and 6)."""
    body, kind = _body(request), request.headers.get("content-type", "")
    if body is None or len(body) > TOKEN_BYTES:
        return False
    try:
        text = body.decode()
        fields = json.loads(text) if "json" in kind else parse_qs(text) if "form" in kind else None
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and not TOKEN_FIELDS.isdisjoint(fields)


TOKEN_FIELDS = frozenset({"grant_type", "refresh_token"})
TOKEN_BYTES = 16 * 1024

WATCHED: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("HTTPTransport", "handle_request", _watched),
    ("AsyncHTTPTransport", "handle_async_request", _watched_async),
    ("Client", "send", _watched_send),
    ("AsyncClient", "send", _watched_send_async),
)
"""The methods of `httpx` that are wrapped; one that a version lacks is left out."""

HTTP = HttpHooks()
"""The one of this process: two hosts must not note a request twice."""
