"""A service that keeps idempotency keys, a tool for it, and what a test declares about the tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openworker_durable import declare
from openworker_durable.guard import current_execution
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.hosts.reference.tools import tool
from openworker_durable.policy import RecoveryPolicy
from openworker_durable.reconciler import Probe, Reconciler, Verdict, cannot_tell, happened
from tests.host.harness import WRITE, Lab, Outside, World

DAY = 86400.0
DONE = AssistantTurn(text="done")


class Post(Outside):
    """The outside world with a post office: one letter for one key, and a register of letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters: list[tuple[str, str]] = []
        self.keeps_keys = True
        self.calls = 0
        self.fails: list[BaseException] = []
        self.lost: list[BaseException] = []
        self.looks: list[Probe] = []
        self.says: Callable[[Probe], Verdict] = self.register

    def post(self, what: str = "") -> dict[str, Any]:
        """Take a letter; one that was taken before under the same key is the same letter."""
        self.calls += 1
        if self.lost:
            raise self.lost.pop(0)
        now = current_execution()
        key = now.idempotency_key if now else "none"
        if not (self.keeps_keys and key in dict(self.letters)):
            self.letters.append((key, what))
        if self.fails:
            raise self.fails.pop(0)
        return {"posted": what}

    def register(self, probe: Probe) -> Verdict:
        """Look a letter up."""
        there = dict(self.letters).get(probe.idempotency_key)
        return cannot_tell("not found") if there is None else happened({"posted": there})

    def look(self, probe: Probe) -> Verdict:
        self.looks.append(probe)
        return self.says(probe)

    def tools(self) -> list[Callable[..., Any]]:
        def post(what: str = "") -> dict[str, Any]:
            return self.post(what)

        return [*super().tools(), tool(post, metadata=WRITE)]

    def reconciler(self, **more: Any) -> Reconciler:
        values: dict[str, Any] = {"name": "register", "delays": (0.0, 0.0, 0.0), **more}
        return Reconciler(self.look, **values)


@contextmanager
def declared(
    policy: RecoveryPolicy | None, reconciler: Reconciler | None = None, **more: Any
) -> Iterator[None]:
    """Declare something about `post` for the time being."""
    declare.register("post", policy, reconciler=reconciler, **more)
    try:
        yield
    finally:
        declare.forget("post")


def office(lab: Lab) -> Post:
    """Give a laboratory its post office."""
    lab.outside = made = Post()
    return made


async def at_rest(world: World) -> None:
    """Wait until no turn runs, no probe is due, and nothing is left to be looked at."""
    await world.until(lambda: not world.busy() and world.runtime.prober.idle and settled(world))
    await world.quiet()


def settled(world: World) -> bool:
    """Say whether no probe is scheduled."""
    return all(row.probe_at is None for row in world.rows())
