-- name: tables
CREATE TABLE IF NOT EXISTS durable_meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tool_executions (
    execution_id     TEXT    NOT NULL,
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    session_id       TEXT    NOT NULL,
    incarnation      TEXT    NOT NULL,
    tool_call_id     TEXT    NOT NULL,
    tool_source      TEXT    NOT NULL,
    tool_name        TEXT    NOT NULL,
    tool_version     TEXT    NOT NULL DEFAULT '',
    tool_account     TEXT    NOT NULL DEFAULT '',
    schema_digest    TEXT    NOT NULL DEFAULT '',
    intent_digest    TEXT    NOT NULL,
    preview          TEXT    NOT NULL DEFAULT '',
    policy           TEXT    NOT NULL DEFAULT 'manual',
    prepared         TEXT    NOT NULL DEFAULT '',
    authority_kind   TEXT    CHECK (authority_kind IN
                     ('item', 'prompt', 'rule', 'grant', 'policy', 'decision')),
    authority_ref    TEXT    NOT NULL DEFAULT '',
    occurrence       TEXT    NOT NULL DEFAULT '',
    linked           TEXT    NOT NULL DEFAULT '',
    owner            TEXT    NOT NULL,
    protocol_version INTEGER NOT NULL,
    state            TEXT    NOT NULL CHECK (protocol_version > 1 OR state IN
                     ('dispatched', 'succeeded', 'failed', 'unknown')),
    reason           TEXT    NOT NULL,
    detail           TEXT    NOT NULL DEFAULT '',
    dispatched_at    REAL    NOT NULL,
    ended_at         REAL,
    snapshot         BLOB,
    snapshot_digest  TEXT,
    lossy            INTEGER NOT NULL DEFAULT 0,
    decision         TEXT    CHECK (decision IN ('happened', 'retry', 'drop')),
    decided_by       TEXT    NOT NULL DEFAULT '',
    decided_at       REAL,
    decision_note    TEXT    NOT NULL DEFAULT '',
    probe_at         REAL,
    probes           INTEGER NOT NULL DEFAULT 0,
    found            TEXT    NOT NULL DEFAULT '',
    acknowledged_at  REAL,
    superseded       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (execution_id, attempt)
) WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS tool_executions_item
    ON tool_executions (authority_ref) WHERE authority_kind = 'item';

CREATE INDEX IF NOT EXISTS tool_executions_call
    ON tool_executions (session_id, tool_call_id);

CREATE INDEX IF NOT EXISTS tool_executions_open
    ON tool_executions (session_id, execution_id, attempt) WHERE acknowledged_at IS NULL;

CREATE INDEX IF NOT EXISTS tool_executions_probe
    ON tool_executions (probe_at) WHERE probe_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS tool_executions_occurrence
    ON tool_executions (occurrence) WHERE occurrence <> '';

CREATE TABLE IF NOT EXISTS session_protocol (
    session_id       TEXT    NOT NULL,
    incarnation      TEXT    NOT NULL,
    protocol_version INTEGER NOT NULL,
    covered_digest   TEXT    NOT NULL DEFAULT '',
    covered_ordinal  INTEGER NOT NULL DEFAULT -1,
    audit_mark       INTEGER NOT NULL DEFAULT 0,
    covered_at       REAL,
    deleted_at       REAL,
    PRIMARY KEY (session_id, incarnation)
) WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS session_protocol_living
    ON session_protocol (session_id) WHERE deleted_at IS NULL;

CREATE TABLE IF NOT EXISTS execution_evidence (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id TEXT    NOT NULL,
    attempt      INTEGER NOT NULL,
    at           REAL    NOT NULL,
    state        TEXT    NOT NULL,
    reason       TEXT    NOT NULL,
    digest       TEXT,
    detail       TEXT    NOT NULL DEFAULT '',
    source       TEXT    NOT NULL DEFAULT '',
    event        TEXT    NOT NULL DEFAULT ''
);

CREATE TABLE IF NOT EXISTS audit_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    timestamp TEXT DEFAULT CURRENT_TIMESTAMP,
    session_id TEXT, agent TEXT, workspace TEXT, connector TEXT, tool TEXT, stage TEXT,
    status TEXT, approval TEXT, args TEXT, result_preview TEXT, reason TEXT, resource TEXT
);

-- name: audit_indexes
CREATE INDEX IF NOT EXISTS audit_events_execution
    ON audit_events (execution_id) WHERE execution_id IS NOT NULL;
