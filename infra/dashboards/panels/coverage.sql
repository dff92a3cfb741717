-- title: Coverage
-- shows: Designs by skill, and the admitted environments of closed generations by how often the agent wins them without the hint: too hard below 10 %, hard below 40 %, frontier to 60 %, easy to 90 %, too easy above.
-- kind: view
-- unit: count
-- order: 300
SELECT
    v.skill AS skill,
    count() AS designs,
    countIf(v.valid) AS admitted,
    countIf(r.closed AND r.evicted != '') AS evicted,
    countIf(r.closed AND r.evicted = '' AND r.win_rate < 0.1) AS `too hard`,
    countIf(r.closed AND r.evicted = '' AND r.win_rate >= 0.1 AND r.win_rate < 0.4) AS hard,
    countIf(r.closed AND r.evicted = '' AND r.win_rate >= 0.4 AND r.win_rate <= 0.6) AS frontier,
    countIf(r.closed AND r.evicted = '' AND r.win_rate > 0.6 AND r.win_rate <= 0.9) AS easy,
    countIf(r.closed AND r.evicted = '' AND r.win_rate > 0.9) AS `too easy`,
    avgOrNullIf(r.win_rate, r.closed AND r.evicted = '') AS `win rate`,
    avgOrNullIf(r.regret, r.closed AND r.evicted = '') AS regret
FROM (SELECT env_id, generation, skill, valid FROM verdicts FINAL WHERE run_id = {run:String}) AS v
LEFT JOIN
(
    SELECT env_id, generation, win_rate, regret, evicted, true AS closed FROM rewards FINAL WHERE run_id = {run:String} AND valid
) AS r ON v.env_id = r.env_id AND v.generation = r.generation
GROUP BY v.skill
ORDER BY skill
