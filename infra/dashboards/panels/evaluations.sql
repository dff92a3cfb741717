-- title: Held-out evaluation
-- shows: Win rate of a policy on a fixed suite that is never trained on.
-- kind: points
-- x: policy version
-- series: suite
-- unit: share
-- order: 20
SELECT policy_version AS `policy version`, suite, round(sum(won) / sum(items), 4) AS `win rate`
FROM evaluations FINAL
WHERE run_id = {run:String} AND items > 0
GROUP BY policy_version, suite
ORDER BY policy_version, suite
