"""Tools of a connector that declares policies, for the kit: `Scenario(tools=...)` names `tools`.

The argument `mode` says what goes wrong with the first attempt; a later one goes well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openworker_durable import current_execution, recoverable
from openworker_durable.hosts.reference import tool
from openworker_durable.policy import idempotent, reconcile
from openworker_durable.reconciler import (
    Probe,
    Reconciler,
    Verdict,
    cannot_tell,
    did_not_happen,
    happened,
    pending,
)
from openworker_durable.testing import ACTS, Tools

KEYED = idempotent(key_valid=3600.0, attempts=3)


def tools(kit: Tools) -> list[Any]:
    """Make the tools: `post` is looked up, `stamp` is made again with its key, `both` is both.

    `wait` is looked up not at once: half a second after its attempt has ended.
    """

    def act(name: str, key: str, mode: str) -> dict[str, Any]:
        now = current_execution()
        own, first = (now.idempotency_key, now.attempt == 1) if now else ("", True)
        if first and mode == "lost":
            raise TimeoutError("nothing has left")
        return kit.act(name, key, idempotency_key=own, drop=first and mode != "fine")

    def look(probe: Probe) -> Verdict:
        mode = str(probe.arguments["mode"])
        if mode == "slow" and probe.number == 1:
            return pending(0.01)
        if mode == "dark":
            return cannot_tell("the register is closed")
        there = kit.find(probe.idempotency_key)
        return did_not_happen() if there is None else happened({"ok": True, "key": there["key"]})

    register = Reconciler(
        look, name="register", timeout=2.0, reads_see_writes=True, delays=(0.0, 0.0, 0.0)
    )
    later = replace(register, delays=(0.5, 0.0))

    @recoverable(reconcile(attempts=3), reconciler=register)
    def post(key: str, mode: str = "fine") -> dict[str, Any]:
        """Post a letter."""
        return act("post", key, mode)

    @recoverable(reconcile(), reconciler=later)
    def wait(key: str, mode: str = "fine") -> dict[str, Any]:
        """Post a letter at an office that is slow to register it."""
        return act("wait", key, mode)

    @recoverable(KEYED)
    def stamp(key: str, mode: str = "fine") -> dict[str, Any]:
        """Post a letter with a stamp that counts once."""
        return act("stamp", key, mode)

    @recoverable(reconcile(then=KEYED), reconciler=register)
    def both(key: str, mode: str = "fine") -> dict[str, Any]:
        """Post a letter that can be looked up, with a stamp that counts once."""
        return act("both", key, mode)

    return [tool(each, metadata=ACTS) for each in (post, wait, stamp, both)]


def without_register(kit: Tools) -> list[Any]:
    """Make the tools as after the connector was changed: `post` declares nothing any more."""

    def post(key: str, mode: str = "fine") -> dict[str, Any]:
        """Post a letter."""
        raise AssertionError("nobody allowed it again")

    return [tool(post, metadata=ACTS)]
