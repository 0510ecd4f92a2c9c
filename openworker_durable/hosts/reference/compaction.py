"""A shorter view of a long thread, for the provider only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .providers import Message


@dataclass
class CompactionState:
    """Messages before `boundary_index` are represented by `summary_text`."""

    boundary_index: int
    summary_text: str
    working_state: str = ""
    user_messages: list[str] = field(default_factory=list)
    user_messages_dropped: int = 0
    created_at: float = 0.0
    model_used: str = ""
    trimmed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the state as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Any) -> CompactionState | None:
        """Read what `as_dict` wrote; None when there is nothing usable."""
        if not isinstance(raw, dict) or "boundary_index" not in raw:
            return None
        known = {f.name for f in fields(cls)}
        return cls(**{"summary_text": "", **{k: v for k, v in raw.items() if k in known}})


def _summary_block(state: CompactionState) -> str:
    parts = [state.summary_text, state.working_state, *state.user_messages]
    return "<summary-of-earlier-turns>\n" + "\n".join(p for p in parts if p) + "\n</summary>"


def apply_to_outbound(messages: list[Message], state: CompactionState | None) -> list[Message]:
    """Return the system message, the summary and the tail; the thread itself if not compacted."""
    if state is None or not 0 < state.boundary_index < len(messages):
        return messages
    head = messages[:1] if messages[0].get("role") == "system" else []
    summary = {"role": "user", "content": _summary_block(state)}
    return [*head, summary, *messages[state.boundary_index :]]
