"""What sessions and bindings need of the runtime they belong to; keeps the arrows one way."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..clock import Clock, IdFactory
from ..declare import Declaration
from ..failpoints import Failpoint
from ..guard import Guard
from ..ledger import Ledger
from ..models import Intent
from ..owner import Owner, ServerLock, SessionHold
from ..settle import Settler
from ..thread import Message
from .names import HostNames
from .opening import Opening


class Life(Protocol):
    """One state folder in one process, as its sessions see it; `runtime.Runtime` is the one."""

    names: HostNames
    clock: Clock
    fresh: IdFactory
    failpoint: Failpoint
    owner: Owner
    server: ServerLock
    ledger: Ledger
    guard: Guard
    settler: Settler
    asking: dict[tuple[str, str | None], Intent]
    warnings: dict[tuple[str, str | None], str]
    loop: asyncio.AbstractEventLoop | None
    opening: Opening
    gave_up: set[tuple[str, int]]
    unopened: set[str]

    def declared(self, spec: Any) -> Declaration:
        """Return all that is declared about a tool; raises `PolicyError`."""
        ...

    def note_saved(self, manager: Any, session_id: str, messages: list[Message]) -> None:
        """Note that these messages of a session, and no others, are on disk."""
        ...

    def saved_count(self, manager: Any, session_id: str) -> int:
        """Return how many of a session's messages are on disk."""
        ...

    def remember_loop(self) -> bool:
        """Note the running event loop; false outside one."""
        ...

    def turn_ended(self, session_id: str) -> None:
        """A turn, or a call that outlived its turn, has ended."""
        ...

    async def hold_for_turn(self, session_id: str) -> SessionHold:
        """Take a session for a turn; waits for a triage of this process, for nobody else."""
        ...

    def tell(self, item: Any) -> None:
        """Mirror a recovery item to the chat its inbox is bound to, when there is one."""
        ...

    def writing(self, session_id: str) -> AbstractContextManager[bool]:
        """Yield whether this process may save the session's thread now."""
        ...
