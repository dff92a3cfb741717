-- title: Top regret
-- shows: Environments whose hint gained the agent the most return, by the lower bound (regret less 0.6 standard errors) that credits the designer.
-- kind: view
-- unit: return
-- order: 310
SELECT
    r.env_id AS environment,
    r.generation AS generation,
    r.skill AS skill,
    r.win_rate AS `win rate`,
    r.hint_win_rate AS `with hint`,
    r.regret AS regret,
    r.regret_se AS `standard error`,
    r.regret - 0.6 * r.regret_se AS `lower bound`,
    r.uncredited AS uncredited,
    r.reward AS reward,
    v.hint AS hint
FROM
(
    SELECT env_id, generation, skill, win_rate, hint_win_rate, regret, regret_se, uncredited, reward
    FROM rewards FINAL
    WHERE run_id = {run:String} AND valid AND evicted = ''
    ORDER BY regret - 0.6 * regret_se DESC, env_id
    LIMIT {limit:UInt32}
) AS r
LEFT JOIN (SELECT env_id, generation, hint FROM verdicts FINAL WHERE run_id = {run:String}) AS v
    ON v.env_id = r.env_id AND v.generation = r.generation
ORDER BY `lower bound` DESC, environment
