-- Every validated environment with what its generation's closing said of it: what memory selects from and dashboards show.
CREATE VIEW IF NOT EXISTS environments AS
SELECT
    v.run_id AS run_id,
    v.generation AS generation,
    v.env_id AS env_id,
    v.slot AS slot,
    v.skill AS skill,
    v.document_id AS document_id,
    v.source AS source,
    v.full_source AS full_source,
    v.hint AS hint,
    v.source_digest AS source_digest,
    v.witness_min_return AS witness_min_return,
    r.w AS w,
    r.win_rate AS win_rate,
    r.hint_win_rate AS hint_win_rate,
    r.regret AS regret,
    r.regret_se AS regret_se,
    r.reward AS reward,
    r.evicted AS evicted,
    r.repeated AS repeated,
    r.identical AS identical
FROM verdicts AS v FINAL
INNER JOIN rewards AS r FINAL ON v.run_id = r.run_id AND v.generation = r.generation AND v.env_id = r.env_id
WHERE v.valid AND r.valid;
