"""One round: a session, a kill, a restart, and what must hold after it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.waiting import chance, until_blocking

from .process import TOKEN, Server


@dataclass
class Seen:
    """What one round showed; `notes` says what went wrong in it."""

    plan: dict[str, Any]
    effects_at_kill: int = 0
    items: int = 0
    repeats: int = 0
    open_effects: int = 0
    dead: int = 0
    notes: list[str] = field(default_factory=list)


def plan_of(rng: random.Random) -> dict[str, Any]:
    """Return the variant of one round."""
    return {
        "calls": rng.randint(1, 3),
        "grant": rng.choice(["once", "once", "always_tool"]),
        "by": rng.choice(["socket", "rest"]),
        "unattended": rng.random() < 0.3,
        "children": rng.random() < 0.5,
        "wait": rng.uniform(0, 0.3),
        "again": rng.uniform(0, 2.5) if rng.random() < 0.3 else None,
        "message_first": rng.random() < 0.4,
        "lies": rng.random() < 0.3,
    }


class Round:
    """Plays one plan on a server that is running."""

    def __init__(self, server: Server, name: str, plan: dict[str, Any], rng: random.Random) -> None:
        self.server, self.name, self.plan, self.rng = server, name, plan, rng
        self.seen = Seen(plan)

    async def play(self) -> Seen:
        """Play it; the server runs afterwards."""
        await self._to_the_kill()
        await asyncio.to_thread(self._restart)
        if self.plan["message_first"]:
            await self._talk("hello")
        await self._until(lambda: not self._open(), 6)
        self.seen.open_effects = len(self._open())
        if self._open():
            self.seen.notes.append(f"open without an item: {self._open()}")
        await self._decide()
        await self._talk("and now?")
        await self._decide()
        self._count_repeats()
        return self.seen

    # -- up to the kill
    async def _to_the_kill(self) -> None:
        if self.plan["unattended"]:
            path = f"/v1/sessions/{self.name}/unattended"
            await asyncio.to_thread(self.server.post, path, {"unattended": True})
        async with self._socket() as socket:
            order = f"please send {self.plan['calls']} letters named {self.name}"
            await _say(socket, {"type": "user_message", "text": order})
            answering = asyncio.create_task(self._answer(socket, self.plan["by"]))
            pushed = await self._until(lambda: bool(self._answered), 20)
            if not pushed:
                self.seen.notes.append("no approval was asked before the kill")
            await asyncio.to_thread(chance, self.plan["wait"])
            await asyncio.to_thread(self.server.kill, children=self.plan["children"])
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await answering
        self.seen.effects_at_kill = len(self._mine())

    _answered = 0

    async def _answer(self, socket: ClientConnection, by: str) -> None:
        async for text in socket:
            if json.loads(text)["type"] != "permission_required":
                continue
            if by == "socket":
                # The item is parked just after the event; an earlier answer would be lost.
                await self._until(lambda: bool(self._pending()), 5)
                await _say(socket, {"type": "approval", "decision": self.plan["grant"]})
            else:
                await self._until(lambda: bool(self._pending()), 5)
                for item in await asyncio.to_thread(self._pending):
                    if not recovery(item):
                        await asyncio.to_thread(self._resolve, item, self.plan["grant"])
            self._answered += 1

    def _restart(self) -> None:
        if self.plan["again"] is not None:
            self.server.launch()
            chance(self.plan["again"])
            self.server.kill(children=self.plan["children"])
        self.server.start()

    # -- after the restart
    def _pending(self) -> list[dict[str, Any]]:
        query = {"session_id": self.name, "state": "pending"}
        return list(self.server.get("/v1/inbox", **query)["items"])

    def _resolve(self, item: dict[str, Any], word: str) -> bool:
        """Answer an item; an answer that is not back within a second counts as taken.

        The request lasts as long as the turn it resumes, and that may wait for a next prompt.
        """
        said: list[bool] = []

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                said.append(self.server.resolve(item["id"], word))

        asking = Thread(target=ask, daemon=True)
        asking.start()
        asking.join(1)
        return said[0] if said else True

    def _mine(self) -> list[str]:
        return [text for text in self.server.sent() if text.split(".")[0] == self.name]

    def _open(self) -> list[str]:
        """Return the effects that neither a result in the thread nor an open item speaks of."""
        thread = json.dumps(self.server.get(f"/v1/sessions/{self.name}/messages"))
        asked = {self._key_of(item) for item in self._pending() if recovery(item)}
        return [
            text
            for text in set(self._mine())
            if f"delivered:{text}" not in thread and text not in asked
        ]

    async def _decide(self, bound: float = 15) -> None:
        """Answer every prompt and item until there is none for a second."""
        last = time.monotonic()

        def ended() -> bool:
            nonlocal last
            for item in self._pending():
                self._decide_one(item)
                last = time.monotonic()
            return time.monotonic() - last > 1

        if not await self._until(ended, bound):
            self.seen.notes.append("prompts never ended")

    def _decide_one(self, item: dict[str, Any]) -> None:
        if not recovery(item):
            self._resolve(item, "allow")
            return
        self.seen.items += 1
        key = self._key_of(item)
        truth = "happened" if key in self._mine() else self.rng.choice(["retry", "drop"])
        word = self.rng.choice(["happened", "retry", "drop"]) if self.plan["lies"] else truth
        self._resolve(item, word)

    def _key_of(self, item: dict[str, Any]) -> str:
        """Return the letter an item asks about, by its call id: its text hides long values."""
        call = str(item["data"]["recovery"].get("tool_call_id", ""))
        return f"{self.name}.{call.rpartition('_')[2]}" if f"c_{self.name}_" in call else call

    async def _talk(self, text: str) -> None:
        """Send a message and see its turn end; otherwise the session is dead."""
        errors: list[str] = []
        try:
            await asyncio.wait_for(self._until_idle(text, errors), 25)
        except (asyncio.TimeoutError, TimeoutError, OSError) as fault:
            errors.append(repr(fault))
        if errors:
            self.seen.dead = 1
            self.seen.notes.append(f"after {text!r}: {errors}")

    async def _until_idle(self, text: str, errors: list[str]) -> None:
        async with self._socket() as socket:
            await _say(socket, {"type": "user_message", "text": text})
            async for raw in socket:
                event = json.loads(raw)
                if event["type"] == "input_rejected":
                    await self._until(self._idle, 10)  # a resumed turn still runs
                    await _say(socket, {"type": "user_message", "text": text})
                elif event["type"] == "error":
                    errors.append(str(event["data"])[:300])
                elif event["type"] == "permission_required":
                    await asyncio.to_thread(self._allow_prompts)
                elif event["type"] == "turn_done":
                    return

    def _allow_prompts(self) -> None:
        def allowed() -> bool:
            asked = [item for item in self._pending() if not recovery(item)]
            for item in asked:
                self._resolve(item, "allow")
            return bool(asked)

        with contextlib.suppress(AssertionError):  # answered elsewhere
            until_blocking(allowed, bound=5)

    def _count_repeats(self) -> None:
        """Count letters beyond the first and those a person wanted, as is on record."""
        listed = self.server.get("/v1/inbox", session_id=self.name)["items"]
        wanted = Counter(
            self._key_of(i) for i in listed if recovery(i) and i["resolution"] == "retry"
        )
        for key, times in Counter(self._mine()).items():
            over = times - 1 - wanted[key]
            if over > 0:
                self.seen.repeats += over
                self.seen.notes.append(f"{key} sent {times} times, {wanted[key]} retries")

    def _socket(self) -> connect:
        address = f"ws://127.0.0.1:{self.server.port}/ws/session/{self.name}"
        query = f"?agent=code&workspace={self.server.work}"
        return connect(address + query, subprotocols=["openworker", TOKEN], proxy=None)

    async def _until(self, holds: Any, bound: float) -> bool:
        """Say whether something came to hold within `bound` seconds."""
        try:
            await asyncio.to_thread(until_blocking, holds, bound=bound)
        except AssertionError:
            return False
        return True

    def _idle(self) -> bool:
        rows = self.server.get("/v1/sessions")["sessions"]
        return all(r["liveness"] != "working" for r in rows if r["session_id"] == self.name)


def recovery(item: dict[str, Any]) -> bool:
    """Say whether an item is a recovery item."""
    return bool((item.get("data") or {}).get("recovery"))


async def _say(socket: ClientConnection, frame: dict[str, Any]) -> None:
    await socket.send(json.dumps(frame))
