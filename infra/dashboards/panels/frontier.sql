-- title: Frontier share
-- shows: Share of each generation's environments that the agent wins between 40 and 60 % of the time without the hint, and of those that are too easy (above 90 %) or too hard (below 10 %).
-- kind: line
-- x: generation
-- unit: share
-- order: 40
SELECT
    generation,
    countIf(win_rate >= 0.4 AND win_rate <= 0.6) / count() AS `frontier`,
    countIf(win_rate > 0.9) / count() AS `too easy`,
    countIf(win_rate < 0.1) / count() AS `too hard`
FROM rewards FINAL
WHERE run_id = {run:String} AND valid
GROUP BY generation
ORDER BY generation
