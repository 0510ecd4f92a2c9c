"""How to find out what happened to a `send` of the service: its `lookup`, by the call's key.

Each look opens a connection of its own: the one that the call was made over may be gone.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

from openworker_durable.reconciler import (
    Probe,
    Reconciler,
    Verdict,
    cannot_tell,
    did_not_happen,
    happened,
)
from tests.mcp_service.client import Service


def reconciler(made: Service, **more: Any) -> Reconciler:
    """Return the reconciler of the service's `send`.

    Args:
        more: as `Reconciler` takes them. Nothing is said of when reads see writes: whether "not
            there" is proof is for whoever knows how the service is reached.
    """

    async def look(probe: Probe) -> Verdict:
        async with AsyncExitStack() as stack:
            session = await made.opened(stack)
            reply = await session.call_tool("lookup", {"key": probe.idempotency_key})
        if reply.isError:
            return cannot_tell("the service could not look it up")
        found = json.loads(getattr(reply.content[0], "text", ""))
        return happened(found["result"], "found by its key") if found["happened"] else NOT_THERE

    return Reconciler(look, name="mail lookup", **more)


NOT_THERE = did_not_happen("nothing has this key")
