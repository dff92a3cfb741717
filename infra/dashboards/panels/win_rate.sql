-- title: Win rate of both arms
-- shows: Mean share of plays won in each closed generation, without and with the designer's hint. Rising "without hint" is learning; the gap is what hints are worth.
-- kind: line
-- x: generation
-- unit: share
-- order: 10
SELECT generation, win_rate AS `without hint`, hint_win_rate AS `with hint`
FROM generations FINAL
WHERE run_id = {run:String} AND members > 0
ORDER BY generation
