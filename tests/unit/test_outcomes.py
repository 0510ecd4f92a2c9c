"""C29, C04 and trap 3: what an exception proves about the effect."""

from __future__ import annotations

import concurrent.futures
import http.client
import io
import json
import socket
import ssl
import types
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import pydantic
import pytest

from openworker_durable.outcomes import MAY_HAVE_BEGUN, NEVER_BEGAN, state_of, table
from openworker_durable.states import State

FAILED, UNKNOWN = State.FAILED, State.UNKNOWN


def foreign(module: str, name: str, *bases: type[BaseException]) -> type[BaseException]:
    """Make a class that has the qualified name of one from a library we do not depend on."""
    return type(name, bases or (Exception,), {"__module__": module})


HTTPX_ERROR = foreign("httpx", "HTTPError")
HTTPX_TRANSPORT = foreign("httpx", "TransportError", HTTPX_ERROR)
HTTPX_TIMEOUT = foreign("httpx", "TimeoutException", HTTPX_TRANSPORT)
HTTPX_NETWORK = foreign("httpx", "NetworkError", HTTPX_TRANSPORT)
REQUESTS_ERROR = foreign("requests.exceptions", "RequestException", OSError)
REQUESTS_CONNECTION = foreign("requests.exceptions", "ConnectionError", REQUESTS_ERROR)
REQUESTS_TIMEOUT = foreign("requests.exceptions", "Timeout", REQUESTS_ERROR)


def refused() -> BaseException:
    """Return what a connection to a closed port of this machine really raises."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as exc:
        return exc
    raise AssertionError("a closed port accepted a connection")


def not_json() -> BaseException:
    try:
        json.loads("<html>")
    except ValueError as exc:
        return exc
    raise AssertionError


def not_utf8() -> BaseException:
    try:
        b"\xff".decode()
    except ValueError as exc:
        return exc
    raise AssertionError


def invalid_model() -> BaseException:
    class Model(pydantic.BaseModel):
        n: int

    try:
        Model.model_validate({"n": "x"})
    except ValueError as exc:
        return exc
    raise AssertionError


def http_error(code: int) -> BaseException:
    return urllib.error.HTTPError("http://h/", code, "m", Message(), io.BytesIO())


CASES: list[tuple[BaseException, State]] = [
    # C29: the effect never began
    (refused(), FAILED),
    (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), FAILED),
    (ssl.SSLCertVerificationError("bad certificate"), FAILED),
    (PermissionError("permission denied"), FAILED),
    (ValueError("invalid argument"), FAILED),
    (TypeError("'NoneType' object is not subscriptable"), UNKNOWN),
    (KeyError("id"), UNKNOWN),
    (NotImplementedError(), FAILED),
    (invalid_model(), UNKNOWN),
    (foreign("httpx", "ConnectError", HTTPX_NETWORK)(), FAILED),
    (foreign("httpx._exceptions", "ConnectError", HTTPX_NETWORK)(), FAILED),
    (foreign("httpx", "ConnectTimeout", HTTPX_TIMEOUT)(), FAILED),
    (foreign("requests.exceptions", "ConnectTimeout", REQUESTS_CONNECTION, REQUESTS_TIMEOUT)(),
     FAILED),
    (foreign("requests.exceptions", "MissingSchema", REQUESTS_ERROR, ValueError)(), FAILED),
    (foreign("builtins", "MyRefusal", ConnectionRefusedError)(), FAILED),
    # C04, trap 12: it may have happened
    (TimeoutError("timed out"), UNKNOWN),
    (TimeoutError("timed out"), UNKNOWN),
    (concurrent.futures.TimeoutError(), UNKNOWN),
    (concurrent.futures.CancelledError(), UNKNOWN),
    (ConnectionResetError(), UNKNOWN),
    (ConnectionAbortedError(), UNKNOWN),
    (BrokenPipeError(), UNKNOWN),
    (http.client.RemoteDisconnected("closed"), UNKNOWN),
    (http.client.IncompleteRead(b""), UNKNOWN),
    (KeyboardInterrupt(), UNKNOWN),
    (SystemExit(1), UNKNOWN),
    (MemoryError(), UNKNOWN),
    (OSError("something"), UNKNOWN),
    (RuntimeError("something"), UNKNOWN),
    (Exception("something"), UNKNOWN),
    (ssl.SSLError("record"), UNKNOWN),
    (foreign("httpx", "ReadTimeout", HTTPX_TIMEOUT)(), UNKNOWN),
    (foreign("httpx", "ReadError", HTTPX_NETWORK)(), UNKNOWN),
    (foreign("httpx", "RemoteProtocolError", HTTPX_TRANSPORT)(), UNKNOWN),
    (foreign("requests.exceptions", "ReadTimeout", REQUESTS_TIMEOUT)(), UNKNOWN),
    (foreign("requests.exceptions", "ConnectionError", REQUESTS_ERROR)(), UNKNOWN),
    (foreign("requests.exceptions", "JSONDecodeError", REQUESTS_ERROR, ValueError)(), UNKNOWN),
    (foreign("mcp.shared.exceptions", "McpError")(), UNKNOWN),
    # subclasses of a refusal that are raised after a reply came
    (not_json(), UNKNOWN),
    (not_utf8(), UNKNOWN),
    # replies of a server
    (http_error(404), FAILED),
    (http_error(403), FAILED),
    (http_error(422), FAILED),
    (http_error(500), UNKNOWN),
    (http_error(408), UNKNOWN),
    (http_error(409), UNKNOWN),
    (http_error(429), UNKNOWN),
    (http_error(302), UNKNOWN),
    # wrapped causes
    (urllib.error.URLError(ConnectionRefusedError()), FAILED),
    (urllib.error.URLError(socket.gaierror()), FAILED),
    (urllib.error.URLError(TimeoutError()), UNKNOWN),
    (urllib.error.URLError(urllib.error.URLError(ConnectionRefusedError())), FAILED),
    (urllib.error.URLError("no host given"), UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("exc", "state"), CASES, ids=[f"{type(e).__name__}-{i}" for i, (e, _) in enumerate(CASES)]
)
def test_c29_c04_what_an_exception_proves(exc: BaseException, state: State) -> None:
    assert state_of(exc, external=True) is state


def test_c29_the_refusal_of_a_real_closed_port_is_a_failure() -> None:
    exc = refused()
    assert isinstance(exc, ConnectionRefusedError)
    assert state_of(exc, external=True) is FAILED


def test_the_most_specific_class_decides() -> None:
    assert isinstance(not_json(), ValueError)
    assert isinstance(not_utf8(), ValueError)
    assert state_of(ValueError("x"), external=True) is FAILED
    both = foreign("x", "Both", ConnectionRefusedError, ConnectionResetError)()
    assert state_of(both, external=True) is FAILED
    assert state_of(foreign("x", "B2", TimeoutError, ValueError)(), external=True) is UNKNOWN


def test_names_are_qualified_not_bare() -> None:
    assert state_of(foreign("mine", "ConnectError")(), external=True) is UNKNOWN
    assert state_of(foreign("httpx", "ConnectErrorish")(), external=True) is UNKNOWN


@pytest.mark.parametrize(
    ("exc", "state"),
    [
        (RuntimeError("x"), FAILED),
        (OSError("x"), FAILED),
        (not_json(), FAILED),
        (not_utf8(), FAILED),
        (EOFError(), FAILED),
        (TimeoutError(), UNKNOWN),
        (KeyboardInterrupt(), UNKNOWN),
        (MemoryError(), UNKNOWN),
        (PermissionError(), FAILED),
    ],
)
def test_tools_of_this_machine_fail_unless_they_were_cut_short(
    exc: BaseException, state: State
) -> None:
    assert state_of(exc, external=False) is state


@pytest.mark.parametrize(("code", "state"), [(400, FAILED), (404, FAILED), (500, UNKNOWN)])
def test_a_status_is_read_where_clients_keep_it(code: int, state: State) -> None:
    class Response:
        status_code = code

    one: Any = RuntimeError("x")
    other: Any = RuntimeError("x")
    one.response = Response()
    other.status_code = code
    assert state_of(one, external=True) is state
    assert state_of(other, external=True) is state


def test_numbers_that_are_no_status_are_no_status() -> None:
    odd: Any = RuntimeError("x")
    odd.code = 4
    assert state_of(odd, external=True) is UNKNOWN
    refusal: Any = ValueError("x")
    refusal.code = 7000
    assert state_of(refusal, external=True) is FAILED


def test_c04_the_exit_code_of_a_process_is_not_a_status() -> None:
    """`SystemExit.code` is a number too; a process that exits in mid-call proves nothing."""
    assert state_of(SystemExit(404), external=True) is UNKNOWN


def test_table_lists_every_name_once() -> None:
    text = table()
    assert not NEVER_BEGAN & MAY_HAVE_BEGUN
    for names, word in ((NEVER_BEGAN, "failed"), (MAY_HAVE_BEGUN, "unknown")):
        for name in names:
            lines = [x for x in text.splitlines() if f"`{name.removeprefix('builtins.')}`" in x]
            assert len(lines) == 1
            assert lines[0].endswith(f"| {word} |")


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (-32700, FAILED),
        (-32600, FAILED),
        (-32601, FAILED),
        (-32602, FAILED),
        (-32603, UNKNOWN),  # an error inside the server: it may have begun
        (-32000, UNKNOWN),
        (408, UNKNOWN),
        (None, UNKNOWN),
        ("-32602", UNKNOWN),
    ],
)
def test_c04_an_mcp_server_says_by_its_code_that_it_did_not_begin(
    code: object, state: State
) -> None:
    error: Any = foreign("mcp.shared.exceptions", "McpError")()
    error.error = types.SimpleNamespace(code=code, message="m")
    assert state_of(error, external=True) is state


def test_a_code_of_another_library_says_nothing() -> None:
    error: Any = RuntimeError()
    error.error = types.SimpleNamespace(code=-32602)
    assert state_of(error, external=True) is UNKNOWN
