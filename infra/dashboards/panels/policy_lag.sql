-- title: Policy lag
-- shows: Age in policy versions of the oldest sample that each step trained, by role.
-- kind: line
-- x: step
-- unit: versions
-- order: 70
SELECT
    step,
    if(agent_samples > 0, agent_lag_max, NULL) AS `agent`,
    if(designer_samples > 0, designer_lag_max, NULL) AS `designer`
FROM steps FINAL
WHERE run_id = {run:String}
ORDER BY step
