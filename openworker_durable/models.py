"""The records that travel between the ledger and its callers: frozen, validated, pure."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .snapshot import Snapshot
from .states import PROTOCOL_VERSION, AuthorityKind, Decision, Reason, State


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class ToolIdentity(_Record):
    """Which tool a call runs, as it was when the attempt was dispatched.

    Args:
        source: where the tool comes from: `host`, or `mcp:<server>`.
        name: the name the model calls.
        version: the tool's own version, empty when it has none.
        schema_digest: digest of its argument schema.
        account: whose account it acts for, as the tool declares it; empty when it does not.
    """

    source: str = "host"
    name: str
    version: str = ""
    schema_digest: str = ""
    account: str = ""


class Authority(_Record):
    """What allowed an attempt: an inbox item, a rule, a grant, a policy or a decision."""

    kind: AuthorityKind
    ref: str = ""


class Intent(_Record):
    """One protected call, ready to be dispatched.

    Args:
        session_id, incarnation, tool_call_id: where the call stands.
        execution_id: derived from the three.
        tool: the tool's identity now.
        intent_digest: digest of tool name and canonical arguments.
        preview: redacted line about the arguments.
        policy: the tool's recovery policy now, as `str` of it.
        prepared: what its reconciler noted before the effect.
        occurrence: task and scheduled slot, for calls made by an automation.
        linked: an earlier unknown execution this one repeats with a person's yes.
    """

    session_id: str
    incarnation: str
    tool_call_id: str
    execution_id: str
    tool: ToolIdentity
    intent_digest: str
    preview: str = ""
    policy: str = "manual"
    prepared: str = ""
    occurrence: str = ""
    linked: str = ""


class Outcome(_Record):
    """How one attempt ended, with what the model would see of it."""

    state: State
    reason: Reason
    snapshot: Snapshot | None = None
    detail: str = ""


class Evidence(_Record):
    """What a named source says of one unknown attempt.

    Args:
        source: who says it.
        event: the source's own id of this statement; the same event again is the same statement.
        outcome: succeeded with a result, or failed with an authoritative error.
    """

    source: str = Field(min_length=1, max_length=100)
    event: str = Field(min_length=1, max_length=200)
    outcome: Outcome


class Execution(_Record):
    """One row of `tool_executions`: one attempt of one execution. Times are epoch seconds."""

    execution_id: str
    attempt: int = Field(ge=1)
    session_id: str
    incarnation: str
    tool_call_id: str
    tool_source: str
    tool_name: str
    tool_version: str
    tool_account: str
    schema_digest: str
    intent_digest: str
    preview: str
    policy: str
    prepared: str
    authority_kind: AuthorityKind | None
    authority_ref: str
    occurrence: str
    linked: str
    owner: str
    protocol_version: int
    state: State | str
    reason: str
    detail: str
    dispatched_at: float
    ended_at: float | None
    snapshot_digest: str | None
    lossy: bool
    decision: Decision | None
    decided_by: str
    decided_at: float | None
    decision_note: str
    probe_at: float | None
    probes: int
    found: str
    acknowledged_at: float | None
    superseded: bool

    @property
    def newer(self) -> bool:
        """Say whether a newer protocol wrote this row."""
        return self.protocol_version > PROTOCOL_VERSION

    @property
    def undecided(self) -> bool:
        """Say whether this attempt is unknown, nobody has decided, and none came after it."""
        return self.state == State.UNKNOWN and self.decision is None and not self.superseded

    @property
    def key(self) -> tuple[str, int]:
        """Return (execution id, attempt)."""
        return (self.execution_id, self.attempt)


class Coverage(_Record):
    """What `session_protocol` says of a session: its incarnation and the covered reply."""

    session_id: str
    incarnation: str
    protocol_version: int
    covered_digest: str
    covered_ordinal: int
    audit_mark: int
    covered_at: float | None
    deleted_at: float | None


class AuditEntry(_Record):
    """One line of the audit table that concerns an execution."""

    id: int
    timestamp: str
    session_id: str
    tool: str
    stage: str
    status: str
    reason: str
    tool_call_id: str | None
    execution_id: str | None
    attempt: int | None
    recovery_decision: str | None


def as_json(record: BaseModel) -> dict[str, Any]:
    """Return a record as JSON-able values."""
    return record.model_dump(mode="json")
