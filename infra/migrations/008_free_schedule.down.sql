ALTER TABLE batches
    DROP COLUMN IF EXISTS stale,
    DROP COLUMN IF EXISTS asked_again;

ALTER TABLE episodes DROP COLUMN IF EXISTS asked_before;

ALTER TABLE scores MODIFY ORDER BY (run_id, generation, env_id, step);

ALTER TABLE scores DROP COLUMN IF EXISTS asked_before;
