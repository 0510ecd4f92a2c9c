"""The outside world of a test: a real HTTP service on loopback that counts what reached it.

It lives in the test's own process, so that a kill of the process under test never touches what
was done. A mail service is meant, but it stands for anything that acts when it is asked to.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, cast

SEND = "/send"
READ = "/read"
FIND = "/find"


@dataclass(frozen=True)
class Effect:
    """One thing that was done.

    Args:
        key: what was done, as the caller named it; the same key twice is a repetition.
        world: whose it is, so that runs that share a service do not mix.
        execution_id, attempt: what the adapter said through `current_execution()`, or empty.
        body: the whole request.
    """

    key: str
    world: str = ""
    execution_id: str = ""
    attempt: int = 0
    body: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Behaviour:
    """How the service treats a request.

    Args:
        delay_before, delay_after: seconds to wait before and after the effect.
        effect: False when nothing is done.
        drop_reply: cut the connection instead of answering.
        status: HTTP status of the answer.
    """

    delay_before: float = 0.0
    delay_after: float = 0.0
    effect: bool = True
    drop_reply: bool = False
    status: int = 200


class Hold:
    """Keeps a request waiting inside the service until `release`.

    Args:
        after: wait after the effect instead of before it.
    """

    def __init__(self, *, after: bool = False) -> None:
        self.after = after
        self.arrived = threading.Event()
        self._go_on = threading.Event()

    def wait(self) -> None:
        """Say that the request is here, and wait."""
        self.arrived.set()
        self._go_on.wait()

    def release(self) -> None:
        """Let the request, and every later one with its key, go on."""
        self._go_on.set()


class EffectService:
    """A service on 127.0.0.1 at a free port; use it as a context manager.

    `POST /send` with a JSON body that has a `key` does one effect; with an `idempotency_key`
    that it has seen it does nothing more and answers as before. `POST /find` tells what was done
    with a `reference`, or under an `idempotency_key`; `POST /read` only counts.

    Args:
        behaviour: how requests are treated unless `behave` says otherwise for their key.
        sleep: what waits for a delay.
    """

    def __init__(
        self, behaviour: Behaviour | None = None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self._sleep = sleep
        self._by_key: dict[str, Behaviour] = {}
        self._holds: dict[str, Hold] = {}
        self._lock = threading.Lock()
        self._effects: list[Effect] = []
        self._reads: list[Effect] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05},
            name="effect-service", daemon=True,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """Return `http://127.0.0.1:<port>`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    # -- what was done
    def effects(self, world: str | None = None) -> list[Effect]:
        """Return everything that was done, in order; of one world, if it is named."""
        with self._lock:
            return [e for e in self._effects if world is None or e.world == world]

    def count(self, key: str, world: str | None = None) -> int:
        """Return how often `key` was done."""
        return sum(e.key == key for e in self.effects(world))

    def total(self, world: str | None = None) -> int:
        """Return how many effects there were."""
        return len(self.effects(world))

    def reads(self, key: str | None = None, world: str | None = None) -> int:
        """Return how many reads there were, of one key if it is named."""
        with self._lock:
            reads = list(self._reads)
        return sum(key in (None, r.key) and world in (None, r.world) for r in reads)

    def find(self, reference: str, world: str) -> Effect | None:
        """Return what was done with a reference, or under an idempotency key."""
        found = (
            e for e in self.effects(world)
            if reference in (_key_of(e), e.body.get("reference"))
        )  # fmt: skip
        return next(found, None) if reference else None

    def adopt(self, old: str, new: str) -> None:
        """Let a world begin with the effects of another, as a copied state folder does."""
        with self._lock:
            self._effects += [_moved(e, new) for e in self._effects if e.world == old]

    # -- what tests arrange
    def behave(self, key: str, behaviour: Behaviour) -> None:
        """Treat requests with this key in a way of their own."""
        self._by_key[key] = behaviour

    def hold(self, key: str, *, after: bool = False) -> Hold:
        """Keep requests with this key waiting, before (or `after`) their effect."""
        hold = self._holds[key] = Hold(after=after)
        return hold

    # -- one request
    def answer(self, path: str, body: dict[str, Any]) -> tuple[Behaviour, dict[str, Any]]:
        """Do what one request asks for; return how it is to be answered, and with what."""
        if path == FIND:
            found = self.find(str(body.get("reference", "")), str(body.get("world", "")))
            return Behaviour(), {"found": found.body if found else None}
        how = self.take(path, body)
        return how, {"ok": how.status < 400, "key": body.get("key")}

    def take(self, path: str, body: dict[str, Any]) -> Behaviour:
        """Do what one request asks for; return how it is to be answered."""
        effect = Effect(
            key=str(body.get("key", "")),
            world=str(body.get("world", "")),
            execution_id=str(body.get("execution_id") or ""),
            attempt=int(body.get("attempt") or 0),
            body=body,
        )
        if path == READ:
            with self._lock:
                self._reads.append(effect)
            return Behaviour()
        how = self._by_key.get(effect.key, self.behaviour)
        if body.get("drop"):
            how = Behaviour(drop_reply=True)
        self._wait(effect.key, how.delay_before, after=False)
        if how.effect:
            with self._lock:
                if not self._knows(effect):
                    self._effects.append(effect)
        self._wait(effect.key, how.delay_after, after=True)
        return how

    def _knows(self, effect: Effect) -> bool:
        key = _key_of(effect)
        return bool(key) and any(
            _key_of(e) == key and e.world == effect.world for e in self._effects
        )

    def _wait(self, key: str, seconds: float, *, after: bool) -> None:
        if seconds:
            self._sleep(seconds)
        hold = self._holds.get(key)
        if hold is not None and hold.after == after:
            hold.wait()

    # -- life
    def start(self) -> EffectService:
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop answering and let everything go on that was held."""
        for hold in self._holds.values():
            hold.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> EffectService:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _key_of(effect: Effect) -> str:
    return str(effect.body.get("idempotency_key") or "")


def _moved(effect: Effect, world: str) -> Effect:
    return Effect(effect.key, world, effect.execution_id, effect.attempt, effect.body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    service: EffectService

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed is gone before its answer; that is what tests are about."""


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        how, answer = cast(_Server, self.server).service.answer(self.path, body)
        self.close_connection = True
        if how.drop_reply:
            return
        text = json.dumps(answer).encode()
        self.send_response(how.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def post(url: str, body: dict[str, Any], *, timeout: float = 20.0) -> dict[str, Any]:
    """Send one request and return its JSON answer.

    Args:
        url: with the path.
        body: anything that JSON can hold.
        timeout: seconds to wait for each part of the answer.

    Raises:
        urllib.error.URLError, OSError: as `urllib` raises them.
    """
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _opener.open(request, timeout=timeout) as reply:
        answer: dict[str, Any] = json.loads(reply.read())
    return answer


# A proxy of the environment has no business between a test and its own machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
