-- title: Runs
-- shows: Every run that the store knows, newest first.
-- kind: detail
-- unit: text
-- order: 210
SELECT
    run_id AS run,
    anyIf(recipe_name, event = 'started') AS recipe,
    minIf(created_at, event = 'started') AS begun,
    multiIf(countIf(event = 'finished') > 0, 'finished', countIf(event = 'ending') > 0, 'ending', 'running') AS state
FROM runs FINAL
GROUP BY run_id
ORDER BY begun DESC, run
LIMIT 200
