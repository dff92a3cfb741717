-- title: Designs by verdict
-- shows: What the gate said of each generation's designs: admitted, or the first rule that refused.
-- kind: stacked
-- x: generation
-- series: verdict
-- unit: count
-- order: 50
SELECT generation, if(valid, 'admitted', rule) AS verdict, count() AS designs
FROM verdicts FINAL
WHERE run_id = {run:String}
GROUP BY generation, verdict
ORDER BY generation, verdict = 'admitted' DESC, verdict
