-- Standings also in an order of their own (a projection) for what a selection asks of all of a skill: first those measured once, by
-- regret, so that the best are a short range at their end; behind them those measured again, by age.
ALTER TABLE standings MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild';

ALTER TABLE standings ADD PROJECTION IF NOT EXISTS by_regret
(
    SELECT run_id, skill, env_id, measured, generation, slot, win_rate, regret, regret_se, pairs, reward, evicted
    ORDER BY (run_id, skill, measured - generation, regret)
);

ALTER TABLE standings MATERIALIZE PROJECTION IF EXISTS by_regret SETTINGS mutations_sync = 1;

-- where the few environments stand that newer designs repeat
ALTER TABLE standings ADD INDEX IF NOT EXISTS env_id_index env_id TYPE bloom_filter(0.001) GRANULARITY 1;

ALTER TABLE standings MATERIALIZE INDEX IF EXISTS env_id_index SETTINGS mutations_sync = 1;
