-- What memory selects from: how each environment stood whenever it was measured, first when its own generation closed. Sorted so
-- that the environments of a skill lie together. A later measurement is a row of its own, so that a selection can be repeated.
CREATE TABLE IF NOT EXISTS standings
(
    run_id String,
    skill LowCardinality(String),
    env_id String,
    measured Int32,
    generation Int32,
    slot UInt32,
    w Float64,
    win_rate Float64,
    hint_win_rate Float64,
    regret Float64,
    regret_se Float64,
    pairs UInt32,
    reward Float64,
    evicted String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, skill, env_id, measured)
SETTINGS non_replicated_deduplication_window = 1000;

INSERT INTO standings
SELECT
    r.run_id, r.skill, r.env_id, r.generation, r.generation, r.slot, r.w, r.win_rate, r.hint_win_rate, r.regret, r.regret_se, s.pairs,
    r.reward, r.evicted, r.event_id, r.causation_id, r.created_at, r._topic, r._partition, r._offset, r._version
FROM rewards AS r FINAL
LEFT JOIN (SELECT run_id, env_id, max(pairs) AS pairs FROM scores GROUP BY run_id, env_id) AS s
    ON s.run_id = r.run_id AND s.env_id = r.env_id
WHERE r.valid;

-- which earlier environments a generation's designs repeat, and how often
ALTER TABLE generations ADD COLUMN IF NOT EXISTS repeated Map(String, UInt32);

-- probe plays of earlier environments: their rows stand under the generation that played them
ALTER TABLE scores ADD COLUMN IF NOT EXISTS probe Bool DEFAULT false;

-- which batches hold a sample, which prompts showed an environment, where a play stands, without a look at each
ALTER TABLE batches ADD INDEX IF NOT EXISTS sample_ids_index sample_ids TYPE bloom_filter(0.01) GRANULARITY 1;

ALTER TABLE batches MATERIALIZE INDEX IF EXISTS sample_ids_index;

ALTER TABLE prompts ADD INDEX IF NOT EXISTS memory_env_ids_index memory_env_ids TYPE bloom_filter(0.01) GRANULARITY 1;

ALTER TABLE prompts MATERIALIZE INDEX IF EXISTS memory_env_ids_index;

ALTER TABLE episodes ADD INDEX IF NOT EXISTS play_id_index play_id TYPE bloom_filter(0.01) GRANULARITY 1;

ALTER TABLE episodes MATERIALIZE INDEX IF EXISTS play_id_index;
