-- title: Stage rates
-- shows: Records that each stage finished a minute, over time.
-- kind: line
-- x: time
-- unit: per minute
-- order: 90
WITH
    finished AS
    (
        SELECT 'design' AS stage, created_at FROM designs FINAL WHERE run_id = {run:String}
        UNION ALL SELECT 'validate', created_at FROM verdicts FINAL WHERE run_id = {run:String}
        UNION ALL SELECT 'play', created_at FROM episodes FINAL WHERE run_id = {run:String}
        UNION ALL SELECT 'score', created_at FROM scores FINAL WHERE run_id = {run:String}
        UNION ALL SELECT 'train', created_at FROM steps FINAL WHERE run_id = {run:String}
    ),
    (SELECT greatest(15, intDiv(dateDiff('second', min(created_at), max(created_at)), 60)) FROM finished) AS width,
    (SELECT min(created_at) FROM finished) AS begun
SELECT
    begun + toIntervalSecond(width * intDiv(dateDiff('second', begun, created_at), width)) AS time,
    60 * countIf(stage = 'design') / width AS `design`,
    60 * countIf(stage = 'validate') / width AS `validate`,
    60 * countIf(stage = 'play') / width AS `play`,
    60 * countIf(stage = 'score') / width AS `score`,
    60 * countIf(stage = 'train') / width AS `train`
FROM finished
GROUP BY time
ORDER BY time
