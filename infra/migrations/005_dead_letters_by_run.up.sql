-- Two runs that meet the same broken bytes each keep their own letter: the run belongs to the key.
CREATE TABLE IF NOT EXISTS dead_letters_by_run
(
    run_id String,
    origin_topic LowCardinality(String),
    origin_partition UInt32,
    origin_offset UInt64,
    reason String,
    data_base64 String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, origin_topic, origin_partition, origin_offset)
SETTINGS non_replicated_deduplication_window = 1000;

INSERT INTO dead_letters_by_run SELECT * FROM dead_letters;

DROP TABLE dead_letters;

RENAME TABLE dead_letters_by_run TO dead_letters;
