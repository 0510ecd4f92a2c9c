"""What the adapter wraps around the MCP SDK's client: the key of a protected call in `_meta`.

A `tools/call` that is sent for a protected call carries its idempotency key, the same in every
attempt, under `keys.META_KEY`; a key that is there already stays. A host that hands its calls over
to another loop (`run_coroutine_threadsafe`) hands the call's context over too, and a hand-over
that comes late, after the host has given up waiting, is still that call's: it has the key as well.
The SDK is not imported for this: it is wrapped once the host has imported it. Outside a protected
call nothing is done beyond looking at one context variable.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ..guard import current_execution
from ..keys import META_KEY
from .patching import Patches

log = logging.getLogger("openworker_durable")


class McpHooks:
    """The wrapper for `mcp.ClientSession`, of version 1; one for all hosts."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._hosts = 0
        self._wrapped = False
        self._lock = threading.Lock()

    def attach(self, patches: Patches, registry: type) -> None:
        """Have requests carry the key until the last host is detached.

        Args:
            patches: of the host that is being attached.
            registry: the host's class whose `execute` runs a tool: the SDK may have been imported
                by then.
        """
        with self._lock:
            self._hosts += 1
        patches.on_restore(self._give_back)
        patches.wrap(registry, "execute", self._execute)
        self.catch_up()

    def catch_up(self) -> None:
        """Wrap the SDK's client if it has been imported meanwhile."""
        if self._wrapped or "mcp" not in sys.modules:
            return
        sdk: Any = sys.modules["mcp"]
        session = getattr(sdk, "ClientSession", None)
        with self._lock:
            if session is None or not self._hosts or self._wrapped:
                return  # not imported to its end yet
            self._wrapped = True
            if takes_key(sdk):
                self._patches.wrap(session, "send_request", _keyed)
            else:
                log.warning("MCP calls are sent without a key: this version of `mcp` is not known")

    def _execute(self, host: Callable[..., Any]) -> Callable[..., Any]:
        def execute(*args: Any, **kwargs: Any) -> Any:
            self.catch_up()
            return host(*args, **kwargs)

        return execute

    def _give_back(self) -> None:
        with self._lock:
            self._hosts -= 1
            if self._hosts == 0:
                self._patches.restore()
                self._wrapped = False


def takes_key(sdk: Any) -> bool:
    """Say whether a key that is put on a request of this SDK is really sent.

    Args:
        sdk: the module `mcp`.
    """
    try:
        types: Any = sdk.types
        params = types.CallToolRequestParams(name="tool", arguments={})
        request = types.ClientRequest(types.CallToolRequest(method="tools/call", params=params))
        sent = _with_key(request, "key").model_dump(by_alias=True, mode="json", exclude_none=True)
        return bool(sent["params"]["_meta"] == {META_KEY: "key"})
    except Exception:
        return False


def _keyed(host: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def send_request(session: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        running = current_execution()
        if running is not None:
            request = _with_key(request, running.idempotency_key)
        return await host(session, request, *args, **kwargs)

    return send_request


def _with_key(request: Any, key: str) -> Any:
    """Return the request with the key; whatever is no `tools/call`, and what has one, as it is."""
    root = request.root
    if root.method != "tools/call":
        return request
    root = root.model_copy(update={"params": _params(root.params, key)})
    return request.model_copy(update={"root": root})


def _params(params: Any, key: str) -> Any:
    kind = type(params)
    if "meta" not in kind.model_fields:  # the first versions: `_meta` is one of the extra fields
        there = (params.model_extra or {}).get("_meta") or {}
        return params.model_copy(update={"_meta": {META_KEY: key, **there}})
    if params.meta is None:
        return params.model_copy(update={"meta": kind.Meta.model_validate({META_KEY: key})})
    if META_KEY in (params.meta.model_extra or {}):
        return params
    return params.model_copy(update={"meta": params.meta.model_copy(update={META_KEY: key})})


MCP = McpHooks()
"""The one of this process."""
