-- title: Most repeated
-- shows: Admitted code that was written more than once, and code that nearly repeats an earlier design (similarity of at least 0.8), most copies first.
-- kind: view
-- unit: count
-- order: 320
SELECT
    argMin(v.env_id, (v.generation, v.slot, v.design_attempt)) AS environment,
    argMin(v.skill, (v.generation, v.slot, v.design_attempt)) AS skill,
    count() AS copies,
    min(v.generation) AS `first generation`,
    max(v.generation) AS `last generation`,
    max(r.repeated) AS similarity,
    avgOrNullIf(r.win_rate, r.closed) AS `win rate`
FROM
(
    SELECT env_id, generation, slot, design_attempt, skill, source_digest FROM verdicts FINAL WHERE run_id = {run:String} AND valid
) AS v
LEFT JOIN
(
    SELECT env_id, generation, repeated, win_rate, true AS closed FROM rewards FINAL WHERE run_id = {run:String} AND valid
) AS r ON v.env_id = r.env_id AND v.generation = r.generation
GROUP BY v.source_digest
HAVING copies > 1 OR similarity >= 0.8
ORDER BY copies DESC, similarity DESC, environment
LIMIT {limit:UInt32}
