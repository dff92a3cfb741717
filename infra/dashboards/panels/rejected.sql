-- title: Last rejected designs
-- shows: What the gate refused most recently, and what it saw.
-- kind: table
-- unit: text
-- order: 100
SELECT created_at AS `time`, generation, skill, rule, substring(evidence, 1, 160) AS evidence, env_id AS environment
FROM verdicts FINAL
WHERE run_id = {run:String} AND NOT valid
ORDER BY verdicts.created_at DESC, env_id
LIMIT 12
