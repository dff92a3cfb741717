-- One environment among a million is read by its key, and a key's granule is what is read: so tables of long rows get small granules.
-- Each table is copied beside itself, changes places with its copy and goes; a migration that was interrupted begins anew.
DROP TABLE IF EXISTS verdicts_again;

CREATE TABLE verdicts_again AS verdicts
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 256;

INSERT INTO verdicts_again SELECT * FROM verdicts;

EXCHANGE TABLES verdicts_again AND verdicts;

DROP TABLE verdicts_again;

DROP TABLE IF EXISTS designs_again;

CREATE TABLE designs_again AS designs
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 256;

INSERT INTO designs_again SELECT * FROM designs;

EXCHANGE TABLES designs_again AND designs;

DROP TABLE designs_again;

-- and of prompts, which know every environment, an order by id for who has no more than the beginning of one
DROP TABLE IF EXISTS prompts_again;

CREATE TABLE prompts_again AS prompts
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 256, deduplicate_merge_projection_mode = 'rebuild';

ALTER TABLE prompts_again ADD PROJECTION by_env_id (SELECT env_id, run_id, generation ORDER BY env_id);

INSERT INTO prompts_again SELECT * FROM prompts;

EXCHANGE TABLES prompts_again AND prompts;

DROP TABLE prompts_again;

-- A batch names hundreds of samples, and a story asks for dozens: fewer batches a granule, and an index that is hardly ever wrong.
DROP TABLE IF EXISTS batches_again;

CREATE TABLE batches_again AS batches
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, step)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 64;

ALTER TABLE batches_again DROP INDEX sample_ids_index;

ALTER TABLE batches_again ADD INDEX sample_ids_index sample_ids TYPE bloom_filter(0.0001) GRANULARITY 1;

INSERT INTO batches_again SELECT * FROM batches;

EXCHANGE TABLES batches_again AND batches;

DROP TABLE batches_again;

-- Standings by age instead of by id: the newest of a skill are read from the end, and stop early.
DROP TABLE IF EXISTS standings_again;

CREATE TABLE standings_again AS standings
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, skill, generation, slot, measured, env_id)
SETTINGS non_replicated_deduplication_window = 1000;

INSERT INTO standings_again SELECT * FROM standings;

EXCHANGE TABLES standings_again AND standings;

DROP TABLE standings_again;

-- How long each stage worked on a generation, by its writers' clocks, and how many records came out; of training, each step by itself.
CREATE VIEW IF NOT EXISTS stage_timings AS
SELECT run_id, generation, stage, -1 AS step, min(at) AS begun, max(at) AS ended, countIf(done) AS records,
       dateDiff('millisecond', begun, ended) / 1000 AS seconds
FROM
(
    SELECT run_id, generation, 'design' AS stage, created_at AS at, false AS done FROM requests FINAL WHERE stage = 'design'
    UNION ALL SELECT run_id, generation, 'design', created_at, true FROM designs FINAL
    UNION ALL SELECT run_id, generation, 'validate', created_at, false FROM designs FINAL
    UNION ALL SELECT run_id, generation, 'validate', created_at, true FROM verdicts FINAL
    UNION ALL SELECT run_id, generation, 'play', created_at, false FROM requests FINAL WHERE stage = 'rollout'
    UNION ALL SELECT run_id, generation, 'play', created_at, true FROM episodes FINAL
    UNION ALL SELECT run_id, generation, 'score', created_at, false FROM episodes FINAL
    UNION ALL SELECT run_id, generation, 'score', created_at, true FROM scores FINAL
)
GROUP BY run_id, generation, stage
UNION ALL
SELECT s.run_id, b.generation, 'train', s.step, s.created_at - toIntervalMillisecond(toInt64(1000 * spent)), s.created_at, 1,
       arraySum(mapValues(mapFilter((part, time) -> part != 'wait', s.seconds))) AS spent
FROM steps AS s FINAL
LEFT JOIN (SELECT run_id, step, generation FROM batches FINAL) AS b ON b.run_id = s.run_id AND b.step = s.step;
