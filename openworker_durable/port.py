"""What recovery needs of a host's session: its thread, its tools, its prompts, its items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .identity import CallRef
from .models import ToolIdentity
from .policy import Descriptor
from .recovery import Approval
from .review import ItemDraft
from .thread import Message


@dataclass(frozen=True)
class Prompt:
    """The approval prompt of one call.

    Args:
        state: pending, allowed, ...
        intent_digest: what was asked about, empty for a prompt from before the ledger.
        item_id: the host's id of it.
    """

    state: Approval = Approval.NONE
    intent_digest: str = ""
    item_id: str = ""


class SessionPort(Protocol):
    """One session of a host, held by this process while recovery looks at it."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        ...

    @property
    def server(self) -> bool:
        """Whether this process writes inbox items."""
        ...

    def exists(self) -> bool:
        """Say whether the session has a thread (a deleted one has none)."""
        ...

    def readable(self) -> bool:
        """Say whether the saved thread can be read; one that cannot is never written."""
        ...

    def messages(self) -> list[Message]:
        """The thread as the engine holds it, or as saved when no engine is cached."""
        ...

    def saved(self) -> list[Message]:
        """The part of `messages` that is on disk."""
        ...

    def rewrite(self, messages: list[Message], at: int, count: int) -> None:
        """Save the whole thread in one atomic step, engine and compaction boundary included.

        Args:
            messages: the thread as it shall be.
            at, count: where messages were put in, and how many.
        """
        ...

    def append(self, message: Message) -> None:
        """Add one message at the end and save."""
        ...

    def protects(self, name: str) -> bool:
        """Say whether calls of a tool are recorded."""
        ...

    def tool(self, name: str) -> ToolIdentity:
        """Return the tool's identity now."""
        ...

    def descriptor(self, name: str) -> Descriptor | None:
        """Return the tool with its policy as it is now; None when that cannot be told yet.

        A tool that is not there any more, or is not the one its engine was built with, has an
        identity that equals no other.
        """
        ...

    def gave_up(self, execution_id: str, attempt: int) -> bool:
        """Say whether this process tried in vain to settle the attempt without a person."""
        ...

    def now(self) -> float:
        """Return the time, seconds since the epoch."""
        ...

    def prompt(self, ref: CallRef) -> Prompt:
        """Return the call's approval prompt."""
        ...

    def void_prompt(self, call_id: str, why: str) -> None:
        """Close the call's prompt so that no answer to it counts any more."""
        ...

    def ask_again(self, call_id: str) -> None:
        """Void the call's prompt and raise it afresh."""
        ...

    def admit_prompt(self, call_id: str, intent_digest: str) -> None:
        """Bind a pending prompt from before the ledger to the call as it stands."""
        ...

    def stale_prompts(self, waiting: set[str]) -> list[CallRef]:
        """Return the calls whose approval is pending although they do not wait for one."""
        ...

    async def interrupted(self) -> None:
        """Return when the person stops the turn or types a line into it."""
        ...

    def has_item(self, execution_id: str, attempt: int) -> bool:
        """Say whether a recovery item for the attempt is before a person."""
        ...

    def raise_item(self, draft: ItemDraft, execution_id: str, attempt: int) -> None:
        """Put a recovery item before a person."""
        ...

    def close_items(self, execution_id: str, keep_attempt: int, resolution: str) -> int:
        """Close pending recovery items of other attempts; return how many were closed."""
        ...
