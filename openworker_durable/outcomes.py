"""What an exception proves about an effect: it never began, or it may have happened.

A table of exception types, looked up by qualified name along the class's bases, so that no
library is imported for it. What the table does not name is unknown for tools that reach
beyond this machine and failed for tools that only touch it. Pure.
"""

from __future__ import annotations

from .states import State

NEVER_BEGAN: frozenset[str] = frozenset(
    {
        # Refused by the machine or the peer before anything was sent.
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
        "socket.herror",
        "ssl.SSLCertVerificationError",
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx.LocalProtocolError",
        "httpx.InvalidURL",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "requests.exceptions.ConnectTimeout",
        "requests.exceptions.InvalidURL",
        "requests.exceptions.MissingSchema",
        "aiohttp.client_exceptions.ClientConnectorError",
        # Refused by the tool or the operating system: bad arguments, no permission.
        "builtins.PermissionError",
        "builtins.FileNotFoundError",
        "builtins.FileExistsError",
        "builtins.IsADirectoryError",
        "builtins.NotADirectoryError",
        "builtins.ValueError",
        "builtins.ImportError",
        "builtins.NotImplementedError",
    }
)
"""Types that are raised before an effect can begin; the outcome is failed."""

MAY_HAVE_BEGUN: frozenset[str] = frozenset(
    {
        "builtins.TimeoutError",
        "asyncio.exceptions.TimeoutError",
        "concurrent.futures._base.TimeoutError",
        "concurrent.futures._base.CancelledError",
        "asyncio.exceptions.CancelledError",
        "builtins.ConnectionResetError",
        "builtins.ConnectionAbortedError",
        "builtins.BrokenPipeError",
        "builtins.EOFError",
        "builtins.KeyboardInterrupt",
        "builtins.SystemExit",
        "builtins.GeneratorExit",
        "builtins.MemoryError",
        "builtins.UnicodeError",
        "json.decoder.JSONDecodeError",
        "http.client.HTTPException",
        "urllib.error.HTTPError",
        "httpx.TimeoutException",
        "httpx.NetworkError",
        "httpx.RemoteProtocolError",
        "httpx.DecodingError",
        "httpx.TooManyRedirects",
        "httpcore.TimeoutException",
        "httpcore.NetworkError",
        "httpcore.RemoteProtocolError",
        "requests.exceptions.RequestException",
        "aiohttp.client_exceptions.ClientError",
        "mcp.shared.exceptions.McpError",
        # Raised as often on a reply as on arguments.
        "pydantic_core._pydantic_core.ValidationError",
        "jsonschema.exceptions.ValidationError",
    }
)
"""Types that are raised when a request may have been sent, or its reply was not understood."""

REFUSING_STATUS = frozenset({400, 401, 403, 404, 405, 406, 410, 411, 412, 413, 414, 415, 422})
"""HTTP statuses with which a service says that it did nothing."""

REFUSING_CODES = frozenset({-32700, -32600, -32601, -32602})
"""JSON-RPC codes (2.0, section 5.1) with which a server says that it did not begin: the request
cannot be read, is none, names no method, or has parameters that do not fit."""


def _qualified(cls: type) -> str:
    name = f"{cls.__module__}.{cls.__qualname__}"
    # httpx re-exports its exceptions under the package's own name.
    return name.replace("httpx._exceptions.", "httpx.").replace(
        "httpcore._exceptions.", "httpcore."
    )


def _status(exc: BaseException) -> int | None:
    """Return the HTTP status an exception carries, if any."""
    response = getattr(exc, "response", None)
    for value in (
        getattr(response, "status_code", None),
        getattr(exc, "status_code", None),
        getattr(exc, "code", None) if _is_http_error(exc) else None,
    ):
        if isinstance(value, int) and 100 <= value <= 599:
            return value
    return None


def _is_http_error(exc: BaseException) -> bool:
    return any(_qualified(cls) == "urllib.error.HTTPError" for cls in type(exc).__mro__)


def _refused_by_server(exc: BaseException) -> bool:
    """Say whether an MCP server answered that it did not begin."""
    code = getattr(getattr(exc, "error", None), "code", None)
    return isinstance(code, int) and code in REFUSING_CODES


def _wrapped_connection_refusal(exc: BaseException) -> bool:
    """Say whether a transport error carries a cause that proves nothing was sent."""
    reason = getattr(exc, "reason", None)
    return isinstance(reason, BaseException) and state_of(reason, external=True) is State.FAILED


Types = tuple[type[BaseException], ...]


def state_of(
    exc: BaseException, *, external: bool, never_began: Types = (), may_have_begun: Types = ()
) -> State:
    """Return what `exc` proves about the call that raised it.

    Args:
        exc: what the tool raised.
        external: whether the tool reaches beyond this machine.
        never_began, may_have_begun: what the tool declares about its own exceptions; of two that
            fit, the more specific one counts, and doubt where both name the same.

    Returns:
        `State.FAILED` when the effect cannot have begun, `State.UNKNOWN` otherwise. The most
        specific class that a table names decides; an HTTP reply that refuses is a failure.
    """
    for cls in type(exc).__mro__:
        if cls in may_have_begun:
            return State.UNKNOWN
        if cls in never_began:
            return State.FAILED
    status = _status(exc)
    if status is not None:
        return State.FAILED if status in REFUSING_STATUS else State.UNKNOWN
    for cls in type(exc).__mro__:
        name = _qualified(cls)
        if name == "urllib.error.URLError":
            return State.FAILED if _wrapped_connection_refusal(exc) else State.UNKNOWN
        if name == "mcp.shared.exceptions.McpError" and _refused_by_server(exc):
            return State.FAILED
        if name in NEVER_BEGAN:
            return State.FAILED
        if name in MAY_HAVE_BEGUN:
            return State.UNKNOWN if external else _local(exc)
    return State.UNKNOWN if external else State.FAILED


def _local(exc: BaseException) -> State:
    """A tool on this machine that was cut short is in doubt; its other errors are failures."""
    return State.FAILED if isinstance(exc, (ValueError, EOFError)) else State.UNKNOWN


def table() -> str:
    """Return the table as markdown, for the docs."""
    lines = ["| raised | proves | outcome |", "|---|---|---|"]
    for names, proves, state in (
        (NEVER_BEGAN, "the effect never began", State.FAILED),
        (MAY_HAVE_BEGUN, "it may have happened", State.UNKNOWN),
    ):
        for name in sorted(names):
            lines.append(f"| `{name.removeprefix('builtins.')}` | {proves} | {state.value} |")
    lines.append("| anything else, a tool that reaches beyond this machine | nothing | unknown |")
    lines.append("| anything else, a tool that only touches this machine | a failure | failed |")
    return "\n".join(lines) + "\n"
