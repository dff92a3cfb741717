-- title: Diversity
-- shows: Vendi score divided by the number of environments (1: all different), and the share of environments that nearly repeat an earlier design.
-- kind: line
-- x: generation
-- unit: share
-- order: 60
SELECT generation, vendi AS `Vendi / n`, repeats AS `repeats`
FROM generations FINAL
WHERE run_id = {run:String} AND members > 0
ORDER BY generation
