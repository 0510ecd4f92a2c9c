"""What the adapter wraps around `httpx`, where it is installed: a protected call's requests.

A call's requests are told to its witness: each try at the transport, and, where a transport of
somebody's own has none of ours, each `send` of a client. A reply's body is read inside `send`, so
a reply that breaks off there is a failed try too. Outside a protected call nothing is done beyond
looking at one context variable. Requests made in threads that do not inherit the call's context,
bodies read from a stream after `send`, and other HTTP libraries are not seen.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ..clock import fresh_id
from ..witness import Try, Witness, witness
from .patching import Patches


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
        if importlib.util.find_spec("httpx") is None:
            return
        httpx = importlib.import_module("httpx")
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
        before = len(seen.tries)
        try:
            response = host(client, request, *args, **kwargs)
        except BaseException as exc:
            _send_failed(seen, before, request, exc)
            raise
        _send_answered(seen, before, request, response)
        return response

    return send


def _watched_send_async(host: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def send(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        seen = witness()
        if seen is None:
            return await host(client, request, *args, **kwargs)
        before = len(seen.tries)
        try:
            response = await host(client, request, *args, **kwargs)
        except BaseException as exc:
            _send_failed(seen, before, request, exc)
            raise
        _send_answered(seen, before, request, response)
        return response

    return send


def _send_failed(seen: Witness, before: int, request: Any, exc: BaseException) -> None:
    """The whole of a `send` failed: its last try, or a try that no transport told of."""
    tries = seen.tries[before:]
    if not tries:
        _sent(seen, request).failed(exc)
    elif not tries[-1].doubt:
        tries[-1].failed(exc)


def _send_answered(seen: Witness, before: int, request: Any, response: Any) -> None:
    if len(seen.tries) == before:
        _sent(seen, request).answered(response.status_code)


def _sent(seen: Witness, request: Any) -> Try:
    return seen.sent(request.method, _what(request))


def _what(request: Any) -> str:
    """Return what is equal only for the same request; a body that is a stream has no equal."""
    try:
        body = request.content
    except Exception:  # httpx.RequestNotRead
        return fresh_id()
    return hashlib.sha256(f"{request.url}\n".encode() + body).hexdigest()


WATCHED: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("HTTPTransport", "handle_request", _watched),
    ("AsyncHTTPTransport", "handle_async_request", _watched_async),
    ("Client", "send", _watched_send),
    ("AsyncClient", "send", _watched_send_async),
)
"""The methods of `httpx` that are wrapped; one that a version lacks is left out."""

HTTP = HttpHooks()
"""The one of this process: two hosts must not note a request twice."""
