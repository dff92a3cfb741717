-- title: Rejected by reason
-- shows: Designs that the gate refused by its first rule that failed, and environments that were taken out after play, with the newest evidence of each.
-- kind: view
-- unit: count
-- order: 330
WITH
    (SELECT count() FROM verdicts FINAL WHERE run_id = {run:String}) AS designs,
    lost AS
    (
        SELECT 'gate' AS `by`, rule AS reason, evidence, generation, env_id FROM verdicts FINAL WHERE run_id = {run:String} AND NOT valid
        UNION ALL
        SELECT 'play' AS `by`, evicted AS reason, '' AS evidence, generation, env_id
        FROM rewards FINAL
        WHERE run_id = {run:String} AND valid AND evicted != ''
    )
SELECT
    `by`,
    reason,
    count() AS rejected,
    count() / designs AS share,
    min(generation) AS `first generation`,
    max(generation) AS `last generation`,
    argMax(substring(evidence, 1, 200), (generation, env_id)) AS `newest evidence`
FROM lost
GROUP BY `by`, reason
ORDER BY rejected DESC, `by`, reason
LIMIT {limit:UInt32}
