-- The free schedule: plays that were too old for their batch are asked for again. How often those of a score or an episode had been
-- asked for before; of a batch, the samples that were dropped while it was filled, and its samples that had been asked for again.
ALTER TABLE scores
    ADD COLUMN IF NOT EXISTS asked_before UInt32,
    MODIFY ORDER BY (run_id, generation, env_id, step, asked_before);

ALTER TABLE episodes ADD COLUMN IF NOT EXISTS asked_before UInt32 DEFAULT 0;

ALTER TABLE batches
    ADD COLUMN IF NOT EXISTS stale UInt32 DEFAULT 0,
    ADD COLUMN IF NOT EXISTS asked_again UInt32 DEFAULT 0;
