-- title: Regret
-- shows: Mean return with hint minus return without, over each generation's environments, with one standard error on either side. Below zero hints mislead.
-- kind: line
-- x: generation
-- band: regret
-- unit: return
-- order: 30
SELECT generation, regret, regret - regret_se AS `regret low`, regret + regret_se AS `regret high`
FROM generations FINAL
WHERE run_id = {run:String} AND members > 0
ORDER BY generation
