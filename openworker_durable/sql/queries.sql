-- Named statements. Every write is guarded: it names the state it expects, and the ledger
-- checks that exactly one row changed.

-- name: insert_execution
INSERT INTO tool_executions
    (execution_id, attempt, session_id, incarnation, tool_call_id, tool_source, tool_name,
     tool_version, tool_account, schema_digest, intent_digest, preview, policy, prepared,
     authority_kind, authority_ref, occurrence, linked, owner, protocol_version, state, reason, dispatched_at, ended_at)
VALUES
    (:execution_id, :attempt, :session_id, :incarnation, :tool_call_id, :tool_source, :tool_name,
     :tool_version, :tool_account, :schema_digest, :intent_digest, :preview, :policy, :prepared,
     :authority_kind, :authority_ref, :occurrence, :linked, :owner, :protocol_version, :state, :reason, :at,
     :ended_at);

-- name: supersede
UPDATE tool_executions SET superseded = 1, probe_at = NULL
WHERE execution_id = :execution_id AND attempt = :attempt
  AND state = 'unknown' AND decision IS :decision AND superseded = 0;

-- name: finish
UPDATE tool_executions
SET state = :state, reason = :reason, detail = :detail, ended_at = :at, snapshot = :snapshot,
    snapshot_digest = :digest, lossy = :lossy, probe_at = NULL
WHERE execution_id = :execution_id AND attempt = :attempt AND owner = :owner
  AND superseded = 0
  AND (state = 'dispatched'
       OR (state = 'unknown' AND decision IS NULL AND :state <> 'unknown'));

-- name: lose
UPDATE tool_executions SET state = 'unknown', reason = :reason, ended_at = :at
WHERE execution_id = :execution_id AND attempt = :attempt AND owner = :owner
  AND state = 'dispatched';

-- name: found_in_thread
UPDATE tool_executions
SET state = :state, reason = 'thread', ended_at = :at, snapshot = :snapshot,
    snapshot_digest = :digest
WHERE execution_id = :execution_id AND attempt = :attempt AND owner = :owner
  AND state = 'dispatched';

-- name: decide
UPDATE tool_executions
SET decision = :decision, decided_by = :by, decided_at = :at, decision_note = :note,
    state = :state, reason = CASE WHEN :state = 'unknown' THEN reason ELSE 'decided' END,
    acknowledged_at = NULL, probe_at = NULL
WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND protocol_version <= :protocol;

-- name: schedule_probe
UPDATE tool_executions SET probe_at = :next_at
WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND protocol_version <= :protocol
  AND probes = 0 AND probe_at IS NULL;

-- name: postpone
UPDATE tool_executions SET probe_at = :next_at
WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND probes = 0 AND probe_at IS NOT NULL;

-- name: begin_probe
UPDATE tool_executions SET probes = probes + 1, probe_at = :next_at
WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND protocol_version <= :protocol
  AND probes = :probes AND probe_at IS NOT NULL;

-- name: end_probe
UPDATE tool_executions SET probe_at = :next_at, found = :found
WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND probes = :probes AND probe_at IS NOT NULL;

-- name: end_probes
UPDATE tool_executions SET probe_at = NULL, found = :found, probes = MAX(probes, 1)
WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND probe_at IS NOT NULL;

-- name: settle
UPDATE tool_executions
SET state = :state, reason = :reason, detail = :detail, ended_at = :at, snapshot = :snapshot,
    snapshot_digest = :digest, lossy = :lossy, probe_at = NULL, found = :found
WHERE execution_id = :execution_id AND attempt = :attempt AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND protocol_version <= :protocol;

-- name: rebind
UPDATE tool_executions SET owner = :owner
WHERE execution_id = :execution_id AND attempt = :attempt AND owner = :before
  AND superseded = 0
  AND (state = 'dispatched' OR (state = 'unknown' AND decision IS NULL));

-- name: acknowledge
UPDATE tool_executions SET acknowledged_at = :at
WHERE execution_id = :execution_id AND attempt = :attempt AND acknowledged_at IS NULL
  AND NOT (state = 'dispatched'
           OR (state = 'unknown' AND decision IS NULL AND superseded = 0));

-- name: add_evidence
INSERT INTO execution_evidence
    (execution_id, attempt, at, state, reason, digest, detail, source, event)
SELECT :execution_id, :attempt, :at, :state, :reason, :digest, :detail, :source, :event
WHERE NOT EXISTS (SELECT 1 FROM execution_evidence WHERE execution_id = :execution_id
                  AND attempt = :attempt AND state = :state AND digest IS :digest
                  AND source = :source AND event = :event);

-- name: audit
INSERT INTO audit_events
    (session_id, agent, workspace, connector, tool, stage, status, approval, args,
     result_preview, reason, resource, tool_call_id, execution_id, attempt, recovery_decision)
VALUES (:session_id, '', '', 'durable', :tool, :stage, :status, '', '{}', '', :reason, '',
        :tool_call_id, :execution_id, :attempt, :decision);

-- name: open_session
INSERT INTO session_protocol (session_id, incarnation, protocol_version)
VALUES (:session_id, :incarnation, :protocol);

-- name: cover
UPDATE session_protocol
SET covered_digest = :digest, covered_ordinal = :ordinal, covered_at = :at,
    audit_mark = (SELECT COALESCE(MAX(id), 0) FROM audit_events)
WHERE session_id = :session_id AND deleted_at IS NULL AND protocol_version <= :protocol;

-- name: tombstone
UPDATE session_protocol SET deleted_at = :at
WHERE session_id = :session_id AND deleted_at IS NULL;

-- name: drop_snapshots
UPDATE tool_executions SET snapshot = NULL
WHERE acknowledged_at IS NOT NULL AND acknowledged_at < :before AND snapshot IS NOT NULL;

-- name: drop_rows
DELETE FROM tool_executions WHERE execution_id IN (
    SELECT execution_id FROM tool_executions GROUP BY execution_id
    HAVING SUM(acknowledged_at IS NULL) = 0 AND MAX(acknowledged_at) < :before);

-- name: row
SELECT @columns@ FROM tool_executions WHERE execution_id = :execution_id AND attempt = :attempt;

-- name: latest
SELECT @columns@ FROM tool_executions WHERE execution_id = :execution_id ORDER BY attempt DESC LIMIT 1;

-- name: attempts
SELECT @columns@ FROM tool_executions WHERE execution_id = :execution_id ORDER BY attempt;

-- name: open_in_session
SELECT @columns@ FROM tool_executions
WHERE session_id = :session_id AND acknowledged_at IS NULL ORDER BY dispatched_at, attempt;

-- name: open_all
SELECT @columns@ FROM tool_executions INDEXED BY tool_executions_open
WHERE acknowledged_at IS NULL ORDER BY dispatched_at, attempt;

-- name: all_rows
SELECT @columns@ FROM tool_executions ORDER BY dispatched_at DESC, attempt DESC LIMIT :limit;

-- name: undecided_tool
SELECT @columns@ FROM tool_executions
WHERE session_id = :session_id AND acknowledged_at IS NULL AND state = 'unknown'
  AND decision IS NULL AND superseded = 0 AND tool_name = :tool_name
ORDER BY dispatched_at LIMIT 20;

-- name: same_occurrence
SELECT @columns@ FROM tool_executions
WHERE occurrence = :occurrence AND occurrence <> '' AND session_id <> :session_id
  AND superseded = 0 ORDER BY dispatched_at, attempt LIMIT 20;

-- name: occurrence_since
SELECT occurrence FROM tool_executions
WHERE occurrence >= :first AND occurrence < :last AND occurrence <> ''
  AND session_id <> :session_id AND dispatched_at >= :since
ORDER BY dispatched_at LIMIT 1;

-- name: occurrence_of
SELECT occurrence FROM tool_executions
WHERE session_id = :session_id AND occurrence <> '' ORDER BY dispatched_at LIMIT 1;

-- name: call_ids
SELECT DISTINCT tool_call_id FROM tool_executions WHERE session_id = :session_id;

-- name: any_of_call
SELECT execution_id FROM tool_executions
WHERE session_id = :session_id AND tool_call_id = :tool_call_id LIMIT 1;

-- name: snapshot
SELECT snapshot, lossy FROM tool_executions
WHERE execution_id = :execution_id AND attempt = :attempt;

-- name: session
SELECT * FROM session_protocol WHERE session_id = :session_id AND deleted_at IS NULL;

-- name: life
SELECT deleted_at FROM session_protocol
WHERE session_id = :session_id AND incarnation = :incarnation;

-- name: host_started
SELECT DISTINCT tool FROM audit_events
WHERE session_id = :session_id AND id > :mark AND stage = 'started' AND execution_id IS NULL;

-- name: history
SELECT id, timestamp, session_id, tool, stage, status, reason, tool_call_id, execution_id,
       attempt, recovery_decision
FROM audit_events WHERE execution_id = :execution_id ORDER BY id;

-- name: probes_due
SELECT @columns@ FROM tool_executions INDEXED BY tool_executions_probe
WHERE probe_at IS NOT NULL AND probe_at <= :now ORDER BY probe_at;

-- name: conflicts
SELECT e.id, e.execution_id, e.attempt, e.state, e.at FROM execution_evidence AS e
JOIN tool_executions AS t ON t.execution_id = e.execution_id AND t.attempt = e.attempt
WHERE (e.state = 'succeeded' AND (t.state = 'failed' OR t.superseded = 1))
   OR (e.state = 'failed' AND t.state = 'succeeded')
ORDER BY e.id;

-- name: event
SELECT execution_id, attempt, state, digest FROM execution_evidence
WHERE source = :source AND event = :event AND source <> '' LIMIT 1;

-- name: evidence
SELECT execution_id, attempt, at, state, reason, digest, detail, source, event
FROM execution_evidence
WHERE execution_id = :execution_id ORDER BY id;
