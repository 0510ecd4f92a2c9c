"""Idempotency keys: the same in all attempts, on the call's own requests, and nowhere else."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openworker_durable.guard import Guard
from openworker_durable.keys import (
    HEADER,
    META_KEY,
    NoProtectedCall,
    async_key_hook,
    derived_key,
    idempotency_key,
    key_hook,
    key_or_none,
    mcp_meta,
    send_key,
)
from openworker_durable.staged import record_in
from tests.calls import protected, rows

API, ELSEWHERE = "https://api.test", "https://elsewhere.test"


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    with record_in(tmp_path) as made:
        yield made


class Service:
    """Notes each request: method, host and path, and its key; answers as its script says."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str | None]] = []
        self.script: list[httpx.Response] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        where = f"{request.url.host}{request.url.path}"
        self.seen.append((request.method, where, request.headers.get(HEADER)))
        return self.script.pop(0) if self.script else httpx.Response(200)

    @property
    def keys(self) -> list[str | None]:
        return [key for _, _, key in self.seen]

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(
            transport=httpx.MockTransport(self.handle), follow_redirects=True, **more
        )


def moved(status: int, to: str) -> httpx.Response:
    return httpx.Response(status, headers={"Location": to})


@pytest.fixture
def service() -> Service:
    return Service()


def in_call(guard: Guard, effect: Callable[[], Any], call_id: str = "c1") -> str:
    """Make a protected call and return its execution's id."""
    protected(guard, effect, call_id=call_id)
    return rows(guard)[-1].execution_id


# -- plain
def test_g6_every_attempt_has_the_same_keys(guard: Guard) -> None:
    keys: list[tuple[str, str, dict[str, str]]] = []

    def effect() -> None:
        keys.append((idempotency_key(), idempotency_key("second"), mcp_meta()))
        raise TimeoutError

    for again in (False, True):
        with pytest.raises(TimeoutError):
            protected(guard, effect, again=again)
    own = rows(guard)[0].execution_id
    assert keys == [(own, derived_key(own, "second"), {META_KEY: own})] * 2
    assert [r.attempt for r in rows(guard)] == [1, 2]


def test_g6_another_call_and_another_part_have_other_keys(guard: Guard) -> None:
    keys: list[str] = []
    parts = ("", "a", "b", "\ud800")
    for call_id in ("c1", "c2"):
        protected(guard, lambda: keys.extend(map(idempotency_key, parts)), call_id=call_id)
    assert len(set(keys)) == 8
    assert {len(k) for k in keys} == {33}


def test_outside_a_protected_call_there_is_no_key(guard: Guard) -> None:
    inside: list[contextvars.Context] = []
    protected(guard, lambda: inside.append(contextvars.copy_context()))
    with pytest.raises(NoProtectedCall, match="no protected call runs here"):
        idempotency_key()
    for run in (contextvars.Context().run, inside[0].run):  # what the call left running, too
        assert run(key_or_none) is None
        assert run(mcp_meta) == {}


# -- httpx
def test_g6_each_request_of_the_call_carries_the_key(guard: Guard, service: Service) -> None:
    with service.client() as client:
        send_key(client)
        own = in_call(guard, lambda: [client.request(m, API) for m in ("POST", "PUT", "PATCH")])
    assert service.keys == [own] * 3


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "get"])
def test_what_changes_nothing_carries_no_key(guard: Guard, service: Service, method: str) -> None:
    with service.client() as client:
        send_key(client)
        protected(guard, lambda: client.request(method, API))
    assert service.keys == [None]


def test_outside_a_protected_call_a_request_is_as_it_was(guard: Guard, service: Service) -> None:
    with service.client() as client:
        send_key(client)
        request = client.build_request("POST", API)
        own = in_call(guard, lambda: client.send(request))
        assert client.post(API).request.extensions.keys() == {"timeout"}
        client.send(request)  # the same one, after the call
        other = in_call(guard, lambda: client.send(request), "c2")
    assert service.keys == [own, None, None, other]
    assert own != other


@pytest.mark.parametrize("header", [HEADER, HEADER.lower()])
def test_a_header_of_the_caller_stays(guard: Guard, service: Service, header: str) -> None:
    service.script = [moved(307, f"{API}/moved")]
    with service.client() as client:
        send_key(client)
        protected(guard, lambda: client.post(API, headers={header: "mine"}))
    assert service.keys == ["mine", "mine"]


@pytest.mark.parametrize(
    ("start", "redirects", "keys"),
    [
        (API, [(307, f"{API}/moved")], "KK"),
        (API, [(303, f"{API}/done")], "K-"),
        (API, [(307, ELSEWHERE)], "K-"),
        (API, [(308, f"{API}:8443/")], "K-"),
        (API, [(307, "http://api.test/")], "K-"),
        (API, [(307, ELSEWHERE), (307, API)], "K-K"),
        ("http://api.test", [(308, API)], "KK"),
        ("http://api.test", [(308, ELSEWHERE)], "K-"),
        ("http://api.test:8080", [(308, API)], "K-"),
    ],
)
def test_a_redirect_takes_the_key_to_no_other_origin(
    guard: Guard, service: Service, start: str, redirects: list[tuple[int, str]], keys: str
) -> None:
    service.script = [moved(*r) for r in redirects]
    with service.client() as client:
        send_key(client)
        own = in_call(guard, lambda: client.post(start, json={"to": "ann"}))
    assert service.keys == [own if k == "K" else None for k in keys]


def test_a_redirect_takes_the_key_to_an_origin_that_is_named(
    guard: Guard, service: Service
) -> None:
    service.script = [moved(307, ELSEWHERE)]
    with service.client() as client:
        send_key(client, origins=[f"{ELSEWHERE}/any/path"])
        own = in_call(guard, lambda: client.post(API))
    assert service.keys == [own, own]


def test_each_part_of_a_call_has_its_own_key(guard: Guard, service: Service) -> None:
    parts = {"/draft": "draft", "/send": "", "/log": None}
    with service.client(base_url=API) as client:
        send_key(client, part=lambda request: parts[request.url.path])
        own = in_call(guard, lambda: [client.post(path) for path in parts])
    assert service.keys == [derived_key(own, "draft"), own, None]


def test_two_headers_on_one_client_do_not_meet(guard: Guard, service: Service) -> None:
    service.script = [moved(307, ELSEWHERE)]
    with service.client() as client:
        send_key(client)
        send_key(client, "X-Request-Id", origins=[ELSEWHERE])
        answer: list[httpx.Response] = []
        own = in_call(guard, lambda: answer.append(client.post(API)))
    assert service.keys == [own, None]
    assert answer[0].request.headers["X-Request-Id"] == own


def test_taken_away_nothing_is_sent(guard: Guard, service: Service) -> None:
    with service.client() as client:
        remove = send_key(client)
        remove()
        remove()
        protected(guard, lambda: client.post(API))
        assert client.event_hooks["request"] == []
    assert service.keys == [None]


def test_the_hook_can_be_given_to_a_new_client(guard: Guard, service: Service) -> None:
    with service.client(event_hooks={"request": [key_hook()]}) as client:
        own = in_call(guard, lambda: client.post(API))
    assert service.keys == [own]


@pytest.mark.parametrize("given", [True, False])
def test_g6_an_asynchronous_client_sends_it_too(
    guard: Guard, service: Service, given: bool
) -> None:
    async def send() -> None:
        transport = httpx.MockTransport(service.handle)
        hooks = {"request": [async_key_hook()]} if given else {}
        async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as client:
            if not given:
                send_key(client)
            await asyncio.gather(client.post(API), client.get(API))

    own = in_call(guard, lambda: asyncio.run(send()))
    asyncio.run(send())
    assert sorted(service.keys, key=str) == [None, None, None, own]
