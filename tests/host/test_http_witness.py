"""C04 through connectors that swallow their errors: a real client, a real service on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from openworker_durable.hosts.http_hooks import HTTP
from openworker_durable.hosts.patching import Patches
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.hosts.reference.tools import tool
from openworker_durable.witness import witness
from tests.host.harness import READ, Lab, Outside, World, call, reply

DEADLINE = 1.5
"""Seconds; long enough that a busy machine answers in time what is to be answered."""

SLOW = "/slow"


class Service(ThreadingHTTPServer):
    """Treats each request as its script says, and counts what it carried out."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[Any] = []
        self.done: list[str] = []
        self.late = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that did not wait is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        service = self.server
        assert isinstance(service, Service)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        how = "late" if self.path == SLOW else service.script.pop(0) if service.script else 200
        self.close_connection = True
        if how in (200, "drop", "late", "cut"):
            service.done.append(self.command)
        if how == "drop":
            return
        if how == "late":
            service.late.wait(20)
        self.send_response(how if isinstance(how, int) else 200)
        if how == 307:
            self.send_header("Location", f"{service.url}/moved")
        self.send_header("Content-Length", "9" if how == "cut" else "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_PUT = do_PATCH = do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.late.set()
        made.shutdown()
        thread.join()


Work = Callable[[str], Any]


class Connector(Outside):
    """Tools that do their work over HTTP and return every error as a text, as the host's do."""

    def __init__(self, url: str, work: Work) -> None:
        super().__init__()
        self.url, self.work = url, work

    def effect(self, name: str, what: str) -> Any:
        try:
            return {"status": self.work(self.url)}
        except httpx.HTTPError as exc:
            return {"error": str(exc)}


def post(url: str) -> int:
    with httpx.Client(timeout=DEADLINE, follow_redirects=True) as client:
        return client.post(url, json={"to": "ann"}).status_code


def put(url: str) -> int:
    return httpx.put(url, timeout=DEADLINE).status_code


def twice(url: str) -> int:
    try:
        return post(url)
    except httpx.HTTPError:
        return post(url)


def post_in_a_loop(url: str) -> int:
    async def send() -> int:
        async with httpx.AsyncClient(timeout=DEADLINE) as client:
            return (await client.post(url, json={"to": "ann"})).status_code

    return asyncio.run(send())


class Again(httpx.BaseTransport):
    """A transport that tries again by itself, as retrying transports do."""

    def __init__(self) -> None:
        self.inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return self.inner.handle_request(request)
        except httpx.TransportError:
            return self.inner.handle_request(request)


def post_again(url: str) -> int:
    with httpx.Client(transport=Again(), timeout=DEADLINE) as client:
        return client.post(url, json={"to": "ann"}).status_code


def post_elsewhere(url: str) -> int:
    """Through a transport that is none of httpx's own."""

    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("too late", request=request)

    with httpx.Client(transport=httpx.MockTransport(lost)) as client:
        return client.post(url).status_code


def of_two_accounts(url: str) -> int:
    """The same text, sent for one account and then for another."""
    for account in ("one", "two"):
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(
                url, json={"text": "hi"}, headers={"Authorization": account}, timeout=DEADLINE
            )
    return 200


def post_then_patch(url: str) -> int:
    for method in ("POST", "PATCH"):
        with contextlib.suppress(httpx.HTTPError):
            httpx.request(method, url, json={"text": "hi"}, timeout=DEADLINE)
    return 200


def with_a_token(url: str, *, form: bool = False) -> None:
    """Renew the access first, as connectors do; an error there is not the end."""
    fields = {"refresh_token": "r", "grant_type": "refresh_token"}
    with contextlib.suppress(httpx.HTTPError):
        if form:
            httpx.post(url, data=fields, timeout=DEADLINE)
        else:
            httpx.post(url, json=fields, timeout=DEADLINE)


def token_and_post(url: str) -> int:
    with_a_token(url)
    return post(url)


def token_and_put(url: str) -> int:
    with_a_token(url, form=True)
    reply = httpx.put(url, timeout=DEADLINE)
    if reply.status_code == 404:
        raise FileNotFoundError("no such event")
    return reply.status_code


def token_and_no_scope(url: str) -> int:
    with_a_token(url)
    raise PermissionError("no scope")


def about_tokens(url: str) -> int:
    """A mail about such requests is none."""
    text = {"text": "grant_type=refresh_token&refresh_token=x"}
    return httpx.post(url, json=text, timeout=DEADLINE).status_code


class Authenticating(httpx.Auth):
    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        yield httpx.Request("POST", request.url, json={"user": "me"})
        yield request


def read_with_auth(url: str) -> int:
    return httpx.get(url, auth=Authenticating(), timeout=DEADLINE).status_code


def read_beside_a_post(url: str) -> int:
    async def both() -> int:
        async with httpx.AsyncClient(timeout=DEADLINE) as client:
            answers = await asyncio.gather(
                client.get(f"{url}{SLOW}"), client.post(url, json={"text": "hi"})
            )
            return answers[0].status_code

    return asyncio.run(both())


def nobody_there(_url: str) -> int:
    return post("http://127.0.0.1:9")


def then_wrong(url: str) -> int:
    raise ValueError(f"the reply is no receipt: {post(url)}")


async def one_call(lab: Lab, service: Service, work: Work, script: list[Any]) -> World:
    lab.outside = Connector(service.url, work)
    service.script = script
    world = lab.world(reply(call("send", "c1", what="x")), AssistantTurn(text="done"))
    await world.say("go", "send")
    return world


@pytest.mark.parametrize(
    ("work", "script", "state", "done", "detail"),
    [
        (post, [200], "succeeded", 1, ""),
        (post, ["drop"], "unknown", 1, "POST: RemoteProtocolError"),
        (post, ["late"], "unknown", 1, "POST: ReadTimeout"),
        (post, ["cut"], "unknown", 1, "POST: RemoteProtocolError"),
        (post, [409], "succeeded", 0, ""),
        (post, [500], "succeeded", 0, ""),
        (post, [307, "drop"], "unknown", 1, "POST: RemoteProtocolError"),
        (post, [307, 200], "succeeded", 1, ""),
        (post_in_a_loop, ["drop"], "unknown", 1, "POST: RemoteProtocolError"),
        (post_in_a_loop, [200], "succeeded", 1, ""),
        (post_elsewhere, [], "unknown", 0, "POST: ReadTimeout"),
        (nobody_there, [], "succeeded", 0, ""),
        (put, ["drop"], "succeeded", 1, ""),
        (twice, ["drop", 409], "unknown", 1, "POST: RemoteProtocolError, sent 2 times"),
        (twice, ["drop", "drop"], "unknown", 2, "POST: RemoteProtocolError, sent 2 times"),
        (twice, ["drop", 200], "succeeded", 2,
         "POST, sent 2 times; an earlier one may have been carried out too"),
        (post_again, ["drop", 200], "succeeded", 2,
         "POST, sent 2 times; an earlier one may have been carried out too"),
        (then_wrong, [200], "unknown", 1, "ValueError after a request was accepted"),
        (then_wrong, [403], "failed", 0, "ValueError"),
        (of_two_accounts, ["drop", 200], "unknown", 2, "POST: RemoteProtocolError"),
        (post_then_patch, ["drop", 200], "unknown", 2, "POST: RemoteProtocolError"),
        (token_and_post, ["late", 401], "succeeded", 1, ""),
        (token_and_post, [200, "drop"], "unknown", 2, "POST: RemoteProtocolError"),
        (token_and_put, [200, 404], "failed", 1, "FileNotFoundError"),
        (token_and_no_scope, [200], "failed", 1, "PermissionError"),
        (about_tokens, ["drop"], "unknown", 1, "POST: RemoteProtocolError"),
        (read_with_auth, [200, "late"], "succeeded", 2, ""),
        (read_beside_a_post, [200], "succeeded", 2, ""),
    ],
    ids=[
        "accepted", "dropped", "late", "cut",
        "refused-409", "failed-500", "redirected-dropped", "redirected",
        "async-dropped", "async", "own-transport", "nobody-there",
        "idempotent", "dropped-then-409", "dropped-twice", "sent-again",
        "sent-again-by-the-transport", "accepted-then-wrong", "refused-then-wrong",
        "of-two-accounts", "post-then-patch", "token-lost-then-refused", "token-then-dropped",
        "token-then-no-such-event", "token-then-no-scope", "about-tokens",
        "read-with-authentication", "read-beside-a-post",
    ],
)  # fmt: skip
async def test_c04_a_swallowed_error_is_no_answer(
    lab: Lab, service: Service, work: Work, script: list[Any], state: str, done: int, detail: str
) -> None:
    world = await one_call(lab, service, work, script)
    assert (world.states(), len(service.done)) == ([state], done)
    assert world.rows()[0].detail == detail
    assert len(world.items()) == (state == "unknown")
    if state == "unknown":
        assert "may have happened" in world.answer("c1")
        assert world.messages()[-1]["role"] == "tool", "the turn has halted"
    else:
        assert world.messages()[-1]["content"] == "done"
    world.valid()


async def test_c04_the_person_decides_and_the_turn_goes_on(lab: Lab, service: Service) -> None:
    world = await one_call(lab, service, post, ["drop"])
    assert await world.decide("send", "retry")
    assert (world.states(), service.done) == (["unknown", "succeeded"], ["POST", "POST"])
    assert world.messages()[-1]["content"] == "done"
    world.valid()


async def test_c05_the_same_tool_asks_while_a_swallowed_error_is_in_doubt(
    lab: Lab, service: Service
) -> None:
    lab.outside = Connector(service.url, post)
    service.script = ["drop"]
    again = reply(call("send", "c2", what="x"))
    world = lab.world(reply(call("send", "c1", what="x")), again, AssistantTurn(text="done"))
    world.manager.get_engine("s1").permissions.allow_tool_for_session("send")
    await world.say("go")
    turn = world.start("and?")
    prompt = await world.prompt("send")
    assert "may have happened" in prompt.body
    await world.manager.resolve_inbox(prompt.id, "deny")
    await turn
    assert service.done == ["POST"]


async def test_what_nobody_protects_is_not_watched(lab: Lab, service: Service) -> None:
    seen: list[Any] = []

    class Reading(Connector):
        def tools(self) -> list[Callable[..., Any]]:
            def lookup(what: str = "") -> Any:
                seen.append(witness())
                return self.effect("lookup", what)

            return [*super().tools()[:-1], tool(lookup, metadata=READ)]

    lab.outside = Reading(service.url, post)
    service.script = ["drop"]
    world = lab.world(reply(call("lookup", "c1", what="x")), AssistantTurn(text="done"))
    await world.say("go")
    assert (seen, world.rows(), world.items()) == ([None], [], [])


def test_detaching_leaves_httpx_as_it_was(tmp_path: Any) -> None:
    methods = [
        (httpx.Client, "send"),
        (httpx.AsyncClient, "send"),
        (httpx.HTTPTransport, "handle_request"),
        (httpx.AsyncHTTPTransport, "handle_async_request"),
    ]
    before = [cls.__dict__[name] for cls, name in methods]
    lab, another = Lab(tmp_path), Patches()
    HTTP.attach(another)
    ours = [cls.__dict__[name] for cls, name in methods]
    assert [method.__wrapped__ for method in ours] == before, "wrapped once for all hosts"
    lab.detach()
    assert [cls.__dict__[name] for cls, name in methods] == ours
    another.restore()
    assert [cls.__dict__[name] for cls, name in methods] == before


def test_an_httpx_that_cannot_be_imported_keeps_nothing_from_attaching(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    send = httpx.Client.send
    lab = Lab(tmp_path)
    assert httpx.Client.send is send
    lab.detach()
