-- title: Effective sample size
-- shows: Share of a step's tokens that still count once the correction for old policies has weighted them, by role. Below 0.3 sampler and trainer have drifted apart.
-- kind: line
-- x: step
-- unit: share
-- order: 80
SELECT
    step,
    if(agent_samples > 0, agent_ess, NULL) AS `agent`,
    if(designer_samples > 0, designer_ess, NULL) AS `designer`
FROM steps FINAL
WHERE run_id = {run:String}
ORDER BY step
