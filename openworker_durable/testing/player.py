"""Inside the child: plays the steps of a scenario against a real host and reports what it saw."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from .. import rows
from ..hosts import probing, watching
from ..hosts.attach import Attachment, attach
from ..hosts.names import REFERENCE
from ..hosts.reference.manager import SessionManager
from ..hosts.runtime import Runtime
from .persons import Persons
from .places import Places, watch_host
from .scenario import Scenario
from .script import Script
from .tools import Tools, acting

LOOK = 0.002
"""Seconds between two looks at whether something has ended."""

QUIET = 3
"""Looks in a row that must find nothing to do before a process counts as settled."""

SETTLES = 15.0
"""Seconds within which a process has to come to rest."""


class NotSettled(Exception):
    """Something still runs, although nothing is left that it could wait for."""


class Player(Persons):
    """One process under test.

    Args:
        scenario: what to do.
        url: the effect service.
        flags: by which pauses are told; see `flag_of`.
    """

    def __init__(self, scenario: Scenario, url: str, flags: Path) -> None:
        self.scenario = scenario
        self.flags = flags
        self.session = scenario.session
        self.places = Places(scenario.kill, scenario.breaks)
        self.notes: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.logs = _Logs()
        self.turns: set[asyncio.Task[Any]] = set()
        self.clicks: set[asyncio.Task[Any]] = set()
        self.errors: list[str] = []
        self.live: list[dict[str, Any]] = []
        self.attachment: Attachment | None = None
        if scenario.poll_seconds is not None:
            watching.POLL_SECONDS = scenario.poll_seconds
        if scenario.grace_seconds is not None:
            probing.GRACE = scenario.grace_seconds
        self.script = Script(scenario.replies, self._replies_given)
        self.tools = Tools(url, scenario, self.places).all(scenario.tools)
        self.acting = acting(self.tools)
        scenario.state_dir.mkdir(parents=True, exist_ok=True)
        self._begin()
        self.words: Iterator[str] = iter(())
        self.do_approvals(scenario.approvals)

    def _begin(self) -> None:
        """Begin the host, with the plugin if the scenario wants it."""
        if self.scenario.durable:
            self.attachment = attach(REFERENCE, failpoint=self.places)
        self.patches = watch_host(REFERENCE, self.places, self.acting)
        self.manager = SessionManager(
            workspace=self.scenario.state_dir / "work", data_dir=self.scenario.state_dir,
            provider=self.script, tools=self.tools,
        )  # fmt: skip

    @property
    def runtime(self) -> Runtime | None:
        """Return the plugin's runtime of the state folder, if it is attached."""
        found = self.attachment.runtimes if self.attachment else []
        return found[0] if found else None

    def _replies_given(self) -> int:
        engine = self.manager._engines.get(self.session)
        messages = engine.messages if engine is not None else []
        return sum(m.get("role") == "assistant" for m in messages)

    # -- the whole life
    async def play(self) -> None:
        """Do every step, then close the host."""
        self._listen()
        person = asyncio.ensure_future(self.answer_prompts())
        try:
            self._grant()
            for step in self.scenario.steps:
                await self._do(*step)
        finally:
            person.cancel()
            await self._end()

    def _listen(self) -> None:
        self.manager.register_session_client(self.session, self._note_event)

    async def _end(self) -> None:
        await self._cancel(self.turns | self.clicks)
        self.live = self.manager.session_messages(self.session)
        await self.manager.aclose()
        self._close()

    async def do_restart(self) -> None:
        await self._end()
        self.patches.restore()
        self._begin()
        self._listen()

    async def _do(self, name: str, *args: Any) -> None:
        done = getattr(self, f"do_{name}")(*args)
        if asyncio.iscoroutine(done):
            await done

    def _close(self) -> None:
        self.manager.session_store.close()
        self.manager.task_store.close()
        if self.attachment is not None:
            self.do_detach()

    def _grant(self) -> None:
        """Give a new session its grant and forget the engine, as if in an earlier life."""
        if self.scenario.authorised_by != "grant" or self._is_known():
            return
        engine = self.manager.get_engine(self.session)
        for name in self.acting:
            engine.permissions.allow_tool_for_session(name)
        self.manager.save(self.session, engine)
        self.manager._engines.pop(self.session)

    def _is_known(self) -> bool:
        if self.manager.session_store._row(self.session) is not None:
            return True
        return bool(self.runtime and self.runtime.ledger.known(rows.call_ids(self.session)))

    async def _note_event(self, message: dict[str, Any]) -> None:
        self.events.append(message)

    # -- steps that drive turns
    async def do_start_gateway(self) -> None:
        await self.manager.start_gateway()

    async def do_message(self, text: str) -> None:
        await self._driven(self.manager.deliver_to_session(self.session, text))

    async def do_attended(self, text: str) -> None:
        await self._driven(self.manager.drive_attended(self.session, text))

    async def do_retry_button(self) -> None:
        await self._driven(self.manager.drive_attended(self.session, retry=True))

    async def do_resume(self) -> None:
        await self._driven(self._resume())

    async def do_begin(self, step: str, *args: Any) -> None:
        drives: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "message": self.manager.deliver_to_session,
            "attended": self.manager.drive_attended,
            "resume": lambda _session: self._resume(),
            "retry_button": lambda session: self.manager.drive_attended(session, retry=True),
        }
        self.begin(drives[step](self.session, *args), self.turns)
        await asyncio.sleep(0)

    async def _resume(self) -> None:
        if not self.manager.try_mark_running(self.session):
            return
        try:
            engine = self.manager.get_engine(self.session)
            async for event in engine.resume():
                await self.manager._broadcast_event_of(self.session, event)
            self.manager.save(self.session, engine)
        finally:
            self.manager.mark_idle(self.session)

    def begin(self, work: Coroutine[Any, Any, Any], among: set[asyncio.Task[Any]]) -> None:
        """Start a turn, or what a click sets off, and remember it."""
        task = asyncio.ensure_future(work)
        among.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.turns.discard(task)
        self.clicks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append("".join(traceback.format_exception(task.exception())))

    async def _driven(self, work: Coroutine[Any, Any, Any]) -> None:
        self.begin(work, self.turns)
        await self.do_settle()

    # -- steps that wait
    async def until(self, true: Callable[[], bool], seconds: float = 3600.0) -> bool:
        """Look again and again; False when the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not true():
            if loop.time() > end:
                return False
            await asyncio.sleep(LOOK)
        return True

    async def do_until(self, place: str, nth: int = 1) -> None:
        await self._quiet(lambda: self.places.counts[place] >= nth)

    async def do_expect(self, place: str, nth: int = 1) -> None:
        await self.until(lambda: self.places.counts[place] >= nth)

    async def do_pause(self, name: str) -> None:
        flag_of(self.flags, name, "here").touch()
        go = flag_of(self.flags, name, "go")
        while not go.exists():  # noqa: ASYNC110 - another process says it, by a file
            await asyncio.sleep(LOOK)

    async def do_settle(self) -> None:
        await self._quiet(lambda: False)

    async def _quiet(self, enough: Callable[[], bool]) -> None:
        """Wait until nothing happens any more, or until it is enough."""
        quiet = 0
        end = time.monotonic() + SETTLES
        while quiet < QUIET and not enough():
            quiet = 0 if self.busy() else quiet + 1
            if time.monotonic() > end:
                raise NotSettled(f"{self.busy()} after {SETTLES:.0f} s\n{_stacks()}")
            await asyncio.sleep(LOOK)

    def busy(self) -> str:
        """Return what runs, or is about to, and does not wait for a person; nothing if none."""
        runtime = self.runtime
        if runtime is not None and runtime.guard._running:
            return "a call runs"
        if self.parked():
            return ""
        if runtime is not None and runtime._tasks:
            return "the plugin works in the background"
        if self.will_answer():
            return "a prompt waits for its answer"
        if self.turns or self.clicks:
            return "a turn runs"
        if runtime is not None and self.looked_up():
            return "an outcome is looked up"
        return "the session is claimed" if self.manager.is_running(self.session) else ""

    # -- steps that interfere
    def do_stop(self) -> None:
        engine = self.manager._engines.get(self.session)
        if engine is not None:
            engine.request_interrupt()

    async def do_cancel(self) -> None:
        await self._cancel(set(self.turns))

    async def _cancel(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def do_delete_session(self) -> None:
        self.manager.delete_session(self.session)

    def do_compact(self, count: int, summary: str) -> None:
        engine = self.manager.get_engine(self.session)
        engine.compact_to(count, summary)
        self.manager.save(self.session, engine)

    def do_detach(self) -> None:
        if self.attachment is not None:
            self.patches.restore()
            self.attachment.detach()
            self.attachment = None
            self.patches = watch_host(REFERENCE, self.places, self.acting)

    def do_approvals(self, words: str | tuple[str, ...]) -> None:
        words = (words,) if isinstance(words, str) else words
        self.leaving = "leave" in words
        self.words = cycle(words)

    # -- what is told
    def report(self, error: str = "") -> dict[str, Any]:
        """Return what this process saw, as JSON can hold it."""
        told = {
            "notes": self.notes,
            "events": self.events,
            "hits": self.places.hits,
            "provider_errors": self.script.errors,
            "model_calls": len(self.script.calls),
            "thread": self.live,
            "logs": self.logs.lines,
            "errors": [*self.errors, *self.logs.errors, *([error] if error else [])],
        }
        plain: dict[str, Any] = json.loads(json.dumps(told, default=repr))
        return plain


def flag_of(report: Path, name: str, word: str) -> Path:
    """Return the file by which a child and its test tell each other about a pause."""
    return report.with_suffix(f".{name}.{word}")


def _stacks() -> str:
    """Return where every task of the event loop stands."""
    text = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(file=text)
    return text.getvalue()


class _Logs(logging.Handler):
    """Keeps what is logged, so that tests can look at it and terminals stay clean."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        root.handlers[:] = [self]
        root.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self.lines.append(text)
        if record.levelno >= logging.ERROR:
            self.errors.append(text)
