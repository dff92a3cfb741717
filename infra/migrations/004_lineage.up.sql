-- What each design was asked with: its document, the earlier environments that its prompt showed, its seed.
CREATE TABLE IF NOT EXISTS prompts
(
    run_id String,
    generation Int32,
    env_id String,
    slot UInt32,
    design_attempt UInt32,
    unit_id String,
    skill LowCardinality(String),
    document_id String,
    document_title String,
    document_text String,
    document_skill LowCardinality(String),
    memory_env_ids Array(String),
    memory_kinds Array(LowCardinality(String)),
    sampling_seed UInt64,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- the event of the equal design whose verdict was taken over, empty where the gate judged
ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS verdict_from String DEFAULT '';
